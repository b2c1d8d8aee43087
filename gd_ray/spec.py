"""TrialSpec: everything that decides a trial's result, as plain values, and its identity."""

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from gd_ray.conventions import Convention, convention_named
from gd_ray.errors import UserError, unknown_name
from gd_ray.methods import Method, method_named
from gd_ray.schedule import Training

_REAL = (
    "ood_ratio",
    "dropout",
    "epoch_factor",
    "fine_tune_factor",
    "learning_rate",
    "momentum",
    "weight_decay",
    "temperature",
    "ensemble_temperature",
)
_WHOLE = {
    "seed": 0,
    "task_size": 1,
    "num_classes": 2,
    "train_per_class": 1,
    "test_per_class": 1,
    "coreset_size": 0,
    "window": 1,
    "depth": 10,
    "width": 1,
    "batch_size": 1,
}
"""Whole numbers and their least values."""
_OPTIONAL = ("train_per_class", "test_per_class")
PRECISIONS = ("float32", "bfloat16")
YOUNGER_FIELDS: dict[str, str | float] = {"precision": "float32", "fine_tune_factor": 1.0}
"""Fields that came later, and what trials from before them had; with that value they are no part of a trial's id."""
EXTERNAL_FIELDS = ("stream", "window", "ood_ratio")
"""Fields that only methods with external data have a use for."""
PAPERS_STREAMS = {"cifar100": "tinyimages", "imagenet32": "imagenet2011"}
"""The stream that the paper takes for each data set."""
VALIDATION = ("imagenet32", 0)
"""The data set and seed on which the paper chose the OOD ratio: never among the reported trials."""


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One class-incremental trial. The defaults are the paper's; the same spec and images give the same bytes on one
    kind of CPU with a given number of threads."""

    method: Method | str = "gd+ext"
    """A name from `gd-ray list`, or a Method of your own."""
    seed: int = 0
    """Fixes everything random: class order, initial weights, batches, augmentation, dropout, coreset, sampling."""
    task_size: int = 10
    """Classes per task."""
    dataset: str = "cifar100"
    num_classes: int = 100
    """Classes to learn in all: the first of the seed's class order."""
    train_per_class: int | None = None
    """Training images of each class; all of them when not given."""
    test_per_class: int | None = None
    """Test images of each class; all of them when not given."""
    coreset_size: int = 2000
    """Images of previous tasks kept in all."""
    stream: str = "tinyimages"
    """Name of the wild stream; where it lies is said at the start of a run."""
    window: int = 1_000_000
    """Stream images retrieved at each stage (N_max of Algorithm 2)."""
    ood_ratio: float = 0.7
    """Share of the external set sampled as out-of-distribution."""
    depth: int = 16
    """Layers of the WideResNet: 6n + 4."""
    width: int = 2
    """Widening factor of the WideResNet."""
    dropout: float = 0.3
    batch_size: int = 128
    epoch_factor: float = 1.0
    """Multiplies all epochs and decay epochs: 1 is the paper's 200 (180 + 20 with fine-tuning)."""
    fine_tune_factor: float = 1.0
    """Multiplies the epochs of fine-tuning once more: a few epochs of a small balanced set are next to no updates."""
    learning_rate: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    temperature: float = 2.0
    """Softens the distillation of P and C."""
    ensemble_temperature: float = 1.0
    """Softens the distillation of Q."""
    convention: str = "paper"
    """'paper' follows the text, 'released' the authors' program."""
    precision: str = "float32"
    """Of the networks while they learn: 'float32', or 'bfloat16' (autocast), which is faster on GPUs that have it and
    changes results. Scoring and testing never are in bfloat16. On GPUs that have TF32, torch convolves float32 in it
    unless told otherwise."""

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            object.__setattr__(self, "method", method_named(str(self.method)))
        convention_named(str(self.convention))
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", str(self.precision), PRECISIONS)
        # Whole and real numbers are told apart once, here, so that 1 and 1.0 name the same trial.
        for name in _REAL:
            object.__setattr__(self, name, _real(name, getattr(self, name)))
        for name, low in _WHOLE.items():
            if name not in _OPTIONAL or getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name), low))
        check_seed(self.seed)
        for name in ("dataset", "stream"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise UserError(f"{name} {getattr(self, name)!r} must be a name, such as {name}='glyphs'.")
        if self.task_size >= self.num_classes or self.num_classes % self.task_size:
            raise UserError(
                f"task_size {self.task_size} does not cut num_classes {self.num_classes} into two or more equal tasks; "
                f"choose one of {', '.join(map(str, _divisors(self.num_classes)))}."
            )
        _inside("ood_ratio", self.ood_ratio, 0, 1, "0.7 is the paper's")
        _inside("dropout", self.dropout, 0, 0.99, "0.3 is the paper's")
        _inside("momentum", self.momentum, 0, 0.9999, "0.9 is the paper's")
        _inside("weight_decay", self.weight_decay, 0, 1, "0.0005 is the paper's")
        for name in ("epoch_factor", "fine_tune_factor", "learning_rate", "temperature", "ensemble_temperature"):
            if getattr(self, name) <= 0:
                raise UserError(f"{name} {getattr(self, name)} must be above 0; leave it out for the paper's value.")
        for name in ("epoch_factor", "fine_tune_factor"):
            _inside(name, getattr(self, name), 0, 1e4, "1 is the paper's")
        if self.rules.balancing == "balanced set" and not self.coreset_size:
            raise UserError(
                f"coreset_size 0 leaves method {self.rules.name!r} no balanced set to fine-tune on; raise it."
            )
        if (self.depth - 4) % 6:
            raise UserError(f"depth {self.depth} is not 6n + 4 with n of at least 1; use 10, 16, 22, 28 or so on.")

    @property
    def rules(self) -> Method:
        """The method as data, whichever way it was given."""
        assert isinstance(self.method, Method)
        return self.method

    @property
    def reading(self) -> Convention:
        """The convention as data."""
        return convention_named(self.convention)

    @property
    def trains_teacher(self) -> bool:
        """Whether stages after the first train a C: to distil it, or inside Q."""
        inside_ensemble = self.rules.ensemble and not self.reading.ensemble_alone_has_no_teacher
        return self.rules.teacher == "distilled" or inside_ensemble

    @property
    def num_tasks(self) -> int:
        return self.num_classes // self.task_size

    @property
    def task_sizes(self) -> tuple[int, ...]:
        return (self.task_size,) * self.num_tasks

    def factor_of(self, training: Training) -> float:
        """What multiplies the paper's epochs of a training."""
        return self.epoch_factor * (self.fine_tune_factor if training == "fine-tuning" else 1.0)

    @property
    def _used_fine_tune_factor(self) -> float:
        """Means nothing where nothing is fine-tuned."""
        return self.fine_tune_factor if self.rules.fine_tuned != "nothing" else 1.0

    def canonical(self) -> dict[str, Any]:
        """All that decides the result; fields that the method has no use for at all, such as a stream, are left out."""
        values: dict[str, Any] = {f.name: getattr(self, f.name) for f in fields(self)}
        values["method"] = asdict(self.rules)
        del values["method"]["title"]
        if not self.rules.external:
            for name in EXTERNAL_FIELDS:
                del values[name]
        values["fine_tune_factor"] = self._used_fine_tune_factor
        for name, old in YOUNGER_FIELDS.items():
            if values[name] == old:
                del values[name]
        return values

    @cached_property
    def trial_id(self) -> str:
        """Names the trial's files: equal for specs that ask for the same, on any machine."""
        return _digest(self.canonical())

    @cached_property
    def first_model_id(self) -> str:
        """Equal for trials that share their first-stage model."""
        values = self.canonical()
        for name in ("method", "ood_ratio", "fine_tune_factor", "temperature", "ensemble_temperature"):
            values.pop(name, None)
        if not self.rules.calibrated_first_model:
            for name in (*EXTERNAL_FIELDS, "convention"):
                values.pop(name, None)
        values["calibrated"] = self.rules.calibrated_first_model
        return _digest(values)

    def flat(self) -> dict[str, str | int | float | bool | None]:
        """One column per field, the method's own as `method_<field>`."""
        row: dict[str, str | int | float | bool | None] = {"method": self.rules.name}
        row.update({f.name: getattr(self, f.name) for f in fields(self) if f.name != "method"})
        row["fine_tune_factor"] = self._used_fine_tune_factor
        row.update({f"method_{f.name}": getattr(self.rules, f.name) for f in fields(Method) if f.name != "name"})
        return row


def check_seed(seed: int) -> None:
    """Of a trial, or of anything else that is drawn."""
    if not 0 <= seed < 2**31:
        raise UserError(f"seed {seed} must be at least 0 and below 2**31; any smaller number does as well.")


def _digest(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _whole(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
        raise UserError(f"{name} {value!r} must be a whole number of at least {low}.")
    return int(value)


def _real(name: str, value: object) -> float:
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
            if math.isfinite(number):
                return number
    raise UserError(f"{name} {value!r} must be a finite number.")


def _inside(name: str, value: float, low: float, high: float, advice: str) -> None:
    if not low <= value <= high:
        raise UserError(f"{name} {value} is outside [{low}, {high}]; {advice}.")


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number // 2 + 1) if number % size == 0]
