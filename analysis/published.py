"""Every number that the paper prints about its experiments, as data.

ACC and FGT are in percent, as mean and standard deviation over ten trials for CIFAR-100 and nine for ImageNet. Methods
have their names of `gd_ray.methods`. Figures print no numbers; the text gives the positions of their best points.
"""

from dataclasses import dataclass

from gd_ray.paper import SEEDS, TASK_SIZES

TRIALS = {dataset: len(seeds) for dataset, seeds in SEEDS.items()}
_TITLES = {"cifar100": "CIFAR-100", "imagenet32": "ImageNet", "glyphs": "Glyphs"}


def dataset_title(name: str) -> str:
    """Return a data set's name as the paper spells it."""
    return _TITLES.get(name, name)


@dataclass(frozen=True)
class Published:
    """A cell of a table."""

    mean: float
    sd: float


# Table 1 and the appendix's full table: ACC and FGT at task sizes 5, 10, 20. Table 1 omits LwF, DR and E2E with
# external data; all other rows are the same in both.
_COMPARISON: dict[str, dict[str, str]] = {
    "cifar100": {
        "oracle": "78.6 0.9  3.3 0.2  77.6 0.8  3.1 0.2  75.7 0.7  2.8 0.2",
        "baseline": "57.4 1.2  21.0 0.5  56.8 1.1  19.7 0.4  56.0 1.0  18.0 0.3",
        "lwf": "58.4 1.3  19.3 0.5  59.5 1.2  16.9 0.4  60.0 1.0  14.5 0.4",
        "dr": "59.1 1.4  19.6 0.5  60.8 1.2  17.1 0.4  61.8 0.9  14.3 0.4",
        "e2e": "60.2 1.3  16.5 0.5  62.6 1.1  12.8 0.4  65.1 0.8  8.9 0.2",
        "gd": "62.1 1.2  15.4 0.4  65.0 1.1  12.1 0.3  67.1 0.9  8.5 0.3",
        "lwf+ext": "59.7 1.2  19.4 0.5  61.2 1.1  17.0 0.4  60.8 0.9  14.8 0.4",
        "dr+ext": "59.8 1.0  19.5 0.5  62.0 0.9  16.8 0.4  63.0 1.0  13.9 0.4",
        "e2e+ext": "61.5 1.2  16.4 0.5  64.3 1.0  12.7 0.4  66.1 0.9  9.2 0.4",
        "gd+ext": "66.3 1.2  9.8 0.3  68.1 1.1  7.7 0.3  68.9 1.0  5.5 0.4",
    },
    "imagenet32": {
        "oracle": "68.0 1.7  3.3 0.2  66.9 1.6  3.1 0.3  65.1 1.2  2.7 0.2",
        "baseline": "44.2 1.7  23.6 0.4  44.1 1.6  21.5 0.5  44.7 1.2  18.4 0.5",
        "lwf": "45.6 1.9  21.5 0.4  47.3 1.5  18.5 0.5  48.6 1.2  15.3 0.6",
        "dr": "46.5 1.6  22.0 0.5  48.7 1.6  18.8 0.5  50.7 1.2  15.1 0.5",
        "e2e": "47.7 1.9  17.9 0.4  50.8 1.5  13.4 0.4  53.9 1.2  8.8 0.3",
        "gd": "50.0 1.7  16.8 0.4  53.7 1.5  12.8 0.5  56.5 1.2  8.4 0.4",
        "lwf+ext": "47.2 1.7  21.7 0.5  49.2 1.3  18.6 0.4  49.4 0.8  15.8 0.4",
        "dr+ext": "47.3 1.7  21.8 0.6  50.2 1.5  18.5 0.5  51.8 0.9  14.9 0.5",
        "e2e+ext": "49.2 1.7  17.7 0.6  52.8 1.4  13.2 0.2  55.2 0.9  9.0 0.4",
        "gd+ext": "55.2 1.8  9.6 0.4  57.7 1.6  7.4 0.3  58.7 1.2  5.4 0.3",
    },
}

# Tables 2 to 5: ACC and FGT on CIFAR-100 at task size 10. They print rows that they share with Table 1 or with each
# other alike.
_ABLATIONS: dict[str, str] = {
    "ref-p": "62.9 1.2  14.7 0.4",
    "ref-pc": "67.0 0.9  10.7 0.3",
    "ref-q": "65.7 0.9  11.2 0.2",
    "teacher-cls": "62.9 1.3  14.5 0.5",
    "teacher-cls-cnf": "65.3 1.0  11.7 0.3",
    "teacher-dst": "66.2 1.0  11.2 0.3",
    "balance-none": "67.1 0.9  11.5 0.3",
    "balance-dw": "67.9 0.9  9.6 0.2",
    "balance-dset": "67.2 1.1  8.4 0.2",
    "sample-ood": "67.6 0.9  9.0 0.3",
    "sample-prev": "66.0 1.2  7.8 0.3",
    "sample-ood-pred": "65.7 1.1  10.2 0.2",
}

Key = tuple[str, int, str, str]
"""Data set, task size, method, and 'acc' or 'fgt'."""


def _cells(dataset: str, sizes: tuple[int, ...], rows: dict[str, str]) -> dict[Key, Published]:
    """Return printed rows as cells: mean and standard deviation of ACC and FGT at each task size."""
    cells = {}
    columns = [(size, metric) for size in sizes for metric in ("acc", "fgt")]
    for method, row in rows.items():
        numbers = list(map(float, row.split()))
        for (size, metric), mean, sd in zip(columns, numbers[::2], numbers[1::2], strict=True):
            cells[dataset, size, method, metric] = Published(mean, sd)
    return cells


PUBLISHED: dict[Key, Published] = {
    **_cells("cifar100", TASK_SIZES, _COMPARISON["cifar100"]),
    **_cells("imagenet32", TASK_SIZES, _COMPARISON["imagenet32"]),
    **_cells("cifar100", (10,), _ABLATIONS),
}
"""Every cell of every table."""

BEST_OOD_RATIO = {
    ("cifar100", "acc"): 0.8,
    ("imagenet32", "acc"): 0.7,
    ("cifar100", "fgt"): 0.2,
    ("imagenet32", "fgt"): 0.5,
}
"""Appendix, effect of the OOD ratio at task size 10: the ratios with the best ACC and FGT."""
