"""Every table and figure of the paper as a named grid of trials.

An experiment is a function that returns TrialSpecs; equal specs of different experiments are the same trial and run
once. CIFAR-100 takes its stream from TinyImages and ten seeds; ImageNet takes it from ImageNet 2011 and seeds 1 to 9,
for seed 0 is the validation split.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import product

from gd_ray.errors import unknown_name
from gd_ray.methods import TABLES
from gd_ray.spec import PAPERS_STREAMS, TrialSpec

TASK_SIZES = (5, 10, 20)
OOD_RATIOS = tuple(k / 10 for k in range(11))
DISTANCES = tuple(range(1, 6))
_SEEDS = {"cifar100": range(10), "imagenet32": range(1, 10)}


@dataclass(frozen=True)
class Experiment:
    """A grid of trials with a name."""

    name: str
    about: str
    specs: Callable[[], list[TrialSpec]]


def _grid(
    methods: Iterable[str],
    datasets: Iterable[str] = ("cifar100",),
    task_sizes: Iterable[int] = (10,),
    ood_ratios: Iterable[float] = (0.7,),
) -> list[TrialSpec]:
    return [
        TrialSpec(
            method=method,
            dataset=dataset,
            stream=PAPERS_STREAMS[dataset],
            task_size=task_size,
            ood_ratio=ood_ratio,
            seed=seed,
        )
        for dataset, task_size in product(datasets, task_sizes)
        for seed in _SEEDS[dataset]
        for method, ood_ratio in product(methods, ood_ratios)
    ]


def _distance() -> list[TrialSpec]:
    return [
        TrialSpec(method="gd+ext", dataset="imagenet32", stream=f"imagenet2011-distance-{distance}", seed=seed)
        for distance in DISTANCES
        for seed in _SEEDS["imagenet32"]
    ]


def _validation() -> list[TrialSpec]:
    return [
        TrialSpec(method="gd+ext", dataset="imagenet32", stream="imagenet2011", ood_ratio=ratio) for ratio in OOD_RATIOS
    ]


def small_spec(method: str, seed: int, **changes: object) -> TrialSpec:
    """Glyphs, a small network and a short schedule: what `demo` and `smoke` start from."""
    small: dict[str, object] = {
        "dataset": "glyphs",
        "stream": "glyphs:6000",
        "num_classes": 15,
        "task_size": 5,
        "train_per_class": 100,
        "test_per_class": 100,
        "coreset_size": 75,
        "window": 2000,
        "depth": 10,
        "width": 1,
        "dropout": 0.0,
        "batch_size": 16,
        "epoch_factor": 0.08,
        "learning_rate": 0.05,
    }
    return TrialSpec(method=method, seed=seed, **{**small, **changes})  # type: ignore[arg-type]


DEMO_METHODS = ("oracle", "baseline", "e2e", "gd", "gd+ext")


def _demo() -> list[TrialSpec]:
    return [small_spec(method, 0) for method in DEMO_METHODS]


def _smoke() -> list[TrialSpec]:
    tiny = {"num_classes": 6, "task_size": 2, "train_per_class": 8, "test_per_class": 4, "coreset_size": 8}
    return [
        small_spec(method, 0, **tiny, stream="glyphs:600", window=200, batch_size=8, epoch_factor=0.01)
        for method in TABLES[1]
    ]


def reduced_spec(method: str, seed: int, **changes: object) -> TrialSpec:
    """CIFAR-100 at a size that two cores carry: 20 classes, a small network, 15 epochs, all of a Tiny-ImageNet stream.

    Few epochs need many updates, hence the small batch. Learning rate and dropout are those with the best ACC of
    Baseline and Oracle on seed 9, which is not among the reported ones (Baseline and Oracle: 51.4 and 76.9% at 0.05,
    51.0 and 76.7% at 0.1, 47.5 and 72.6% at 0.05 with the paper's dropout of 0.3). The stream is made by
    `gd-ray prepare tiny-imagenet streams/tiny-imagenet --exclude cifar100` from 300 images of each class of
    Tiny-ImageNet's training set: 47,700 images of 159 classes, and every stage retrieves all of them.
    """
    reduced: dict[str, object] = {
        "num_classes": 20,
        "task_size": 5,
        "coreset_size": 400,
        "stream": "tiny-imagenet",
        "window": 47_700,
        "depth": 10,
        "width": 1,
        "dropout": 0.0,
        "batch_size": 32,
        "epoch_factor": 0.075,
        "learning_rate": 0.05,
    }
    return TrialSpec(method=method, seed=seed, **{**reduced, **changes})  # type: ignore[arg-type]


_ORDER = ("oracle", "gd+ext", "gd", "e2e", "dr", "lwf", "baseline")
"""The paper's main claim: each of these has a higher ACC than the next."""


def _reduced() -> list[TrialSpec]:
    """Table 1; the OOD ratio; both conventions; and controls, on three seeds. What the order of ACC is about, on five.

    Without external data an epoch has half the updates: Baseline and GD get as many as GD+ext, and then see each
    labelled image twice as often. GD and GD+ext once more so, with all trainings twice as long: does the comparison
    depend on how short they are? GD+ext gets as few updates as GD, by batches twice as large: all that differs then is
    what the external images add to a batch. And the balanced set of E2E is so small that a scaled schedule leaves its
    fine-tuning thirty updates: E2E, and GD too, get about the paper's number.
    """
    specs = [reduced_spec(method, seed) for seed in (3, 4) for method in _ORDER]
    for seed in range(3):
        specs += [reduced_spec(method, seed) for method in TABLES[1]]
        specs += [reduced_spec("gd+ext", seed, ood_ratio=ratio) for ratio in (0.0, 0.3, 0.5, 1.0)]
        specs += [reduced_spec(method, seed, convention="released") for method in ("gd", "gd+ext")]
        specs += [reduced_spec(method, seed, epoch_factor=0.15) for method in ("baseline", "gd", "gd+ext")]
        specs += [reduced_spec("gd", seed, epoch_factor=0.3), reduced_spec("gd+ext", seed, batch_size=64)]
        specs += [reduced_spec("e2e", seed, fine_tune_factor=13), reduced_spec("gd", seed, fine_tune_factor=8)]
    return specs


_BOTH = ("cifar100", "imagenet32")

EXPERIMENTS: dict[str, Experiment] = {
    experiment.name: experiment
    for experiment in (
        Experiment("table1", "all methods, task sizes 5, 10 and 20", lambda: _grid(TABLES[1], _BOTH, TASK_SIZES)),
        Experiment("table2", "reference models P, C and Q", lambda: _grid(TABLES[2])),
        Experiment("table3", "the teacher of the current task", lambda: _grid(TABLES[3])),
        Experiment("table4", "balancing", lambda: _grid(TABLES[4])),
        Experiment("table5", "sampling of external data", lambda: _grid(TABLES[5])),
        Experiment("ood-ratio", "OOD ratios 0.0 to 1.0", lambda: _grid(["gd+ext"], _BOTH, ood_ratios=OOD_RATIOS)),
        Experiment("distance", "streams by hierarchical distance", _distance),
        Experiment("validation", "the OOD ratio on ImageNet's validation split", _validation),
        Experiment("curves", "what Figures 2 and C plot", lambda: _grid(TABLES[1], _BOTH, TASK_SIZES)),
        Experiment("reduced", "Table 1 and more on 20 classes of CIFAR-100, for two cores", _reduced),
        Experiment("demo", "five methods on glyphs, in minutes", _demo),
        Experiment("smoke", "every row of Table 1 on a few glyphs, in seconds", _smoke),
    )
}


def experiment_named(name: str) -> Experiment:
    """The experiment of that name, or a sentence with the nearest one."""
    if name not in EXPERIMENTS:
        raise unknown_name("experiment", name, EXPERIMENTS)
    return EXPERIMENTS[name]
