"""Facts of the paper that more than one module needs: rows of its tables, seeds, streams, the validation split."""

TABLES: dict[int, tuple[str, ...]] = {
    1: ("oracle", "baseline", "lwf", "dr", "e2e", "gd", "lwf+ext", "dr+ext", "e2e+ext", "gd+ext"),
    2: ("ref-p", "ref-pc", "ref-q", "gd+ext"),
    3: ("ref-p", "teacher-cls", "teacher-cls-cnf", "teacher-dst", "ref-pc"),
    4: ("balance-none", "balance-dw", "balance-dset", "gd+ext"),
    5: ("gd", "sample-ood", "sample-prev", "sample-ood-pred", "gd+ext"),
}
"""The rows of each table, in its order."""
METHODS = frozenset(method for rows in TABLES.values() for method in rows)
TASK_SIZES = (5, 10, 20)
OOD_RATIOS = tuple(k / 10 for k in range(11))
DISTANCES = tuple(range(1, 6))
SEEDS = {"cifar100": range(10), "imagenet32": range(1, 10)}
"""The reported trials of each data set."""
VALIDATION = ("imagenet32", 0)
"""The data set and seed on which the OOD ratio was chosen: never among the reported trials."""
STREAMS = {"cifar100": "tinyimages", "imagenet32": "imagenet2011"}
"""The stream of each data set."""
ORDER = ("oracle", "gd+ext", "gd", "e2e", "dr", "lwf", "baseline")
"""The main claim: each of these has a higher ACC than the next."""
