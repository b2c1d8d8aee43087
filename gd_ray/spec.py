"""TrialSpec: everything that decides a trial's result, as plain values, and its identity."""

import hashlib
import json
import math
from contextlib import suppress
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from numbers import Integral, Real
from typing import Any

from gd_ray.conventions import convention_named
from gd_ray.errors import UserError, unknown_name
from gd_ray.learners import LEARNERS
from gd_ray.methods import METHODS, Method
from gd_ray.networks import backbone_builder
from gd_ray.plugins import plugin_of
from gd_ray.schedule import Schedule, Training, schedule

_WHOLE = {
    "seed": 0,
    "task_size": 1,
    "first_task_size": 0,
    "num_classes": 2,
    "train_per_class": 1,
    "test_per_class": 1,
    "coreset_size": 0,
    "window": 1,
    "batch_size": 1,
}
"""Whole numbers and their least values."""
_OPTIONAL = ("train_per_class", "test_per_class")
_REAL: dict[str, tuple[float, float]] = {
    "ood_ratio": (0, 1),
    "dropout": (0, 0.99),
    "momentum": (0, 0.9999),
    "weight_decay": (0, 1),
    "epoch_factor": (0, 1e4),
    "fine_tune_factor": (0, 1e4),
    "learning_rate": (0, math.inf),
    "temperature": (0, math.inf),
    "ensemble_temperature": (0, math.inf),
}
"""Real numbers and the range of each."""
_POSITIVE = ("epoch_factor", "fine_tune_factor", "learning_rate", "temperature", "ensemble_temperature")
PRECISIONS = ("float32", "tf32", "bfloat16")
EXTERNAL_FIELDS = ("stream", "window", "ood_ratio")
"""Fields that only methods with external data use."""


@dataclass(frozen=True, kw_only=True)
class TrialSpec:
    """One class-incremental trial. The defaults are the paper's; the same spec and images give the same bytes on one
    kind of CPU with a given number of threads, and are meant to on one kind of GPU."""

    method: Method = METHODS["gd+ext"]
    """A Method, or the name of one from `gd-ray list`."""
    seed: int = 0
    """Fixes everything random: class order, initial weights, batches, augmentation, dropout, coreset, sampling."""
    task_size: int = 10
    """Classes per task."""
    first_task_size: int = 0
    """Classes of the first task, where it is larger or smaller than the others; 0 for task_size."""
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
    """Name of the wild stream; --stream NAME=FOLDER gives its folder."""
    window: int = 1_000_000
    """Stream images retrieved at each stage (N_max of Algorithm 2)."""
    ood_ratio: float = 0.7
    """Share of the external set sampled as out-of-distribution."""
    network: str = "wrn-16-2"
    """Backbone: wrn-DEPTH-WIDTH, resnet-32, resnet-18 or one of a plugin."""
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
    """Arithmetic of training: 'float32' (IEEE on every device); 'tf32' (TF32 convolutions, on GPUs from Ampere on) or
    'bfloat16' (autocast), which are faster and change results. Scoring and testing are always in IEEE float32."""
    plugin: str = ""
    """Digest of the plugin that the method, learner, network, ranking or data set comes from; filled in by itself."""

    def __post_init__(self) -> None:
        if not isinstance(self.method, Method):
            object.__setattr__(self, "method", METHODS.named(str(self.method)))
        convention_named(str(self.convention))
        backbone_builder(str(self.network))
        LEARNERS.named(self.method.learner)
        if self.precision not in PRECISIONS:
            raise unknown_name("precision", str(self.precision), PRECISIONS)
        # Whole and real numbers are distinguished once, here, so that 1 and 1.0 name the same trial.
        for name, limits in _REAL.items():
            object.__setattr__(self, name, _real(name, getattr(self, name), *limits))
        for name, low in _WHOLE.items():
            if name not in _OPTIONAL or getattr(self, name) is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name), low))
        check_seed(self.seed)
        for name in ("dataset", "stream"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise UserError(f"{name} {getattr(self, name)!r} must be a name, such as {name}='glyphs'.")
        self._check_tasks()
        if self.method.balancing == "balanced set" and not self.coreset_size:
            raise UserError(
                f"coreset_size 0 leaves method {self.method.name!r} no balanced set to fine-tune on; raise it."
            )
        self._check_plugin()

    def _check_tasks(self) -> None:
        """Refuse tasks that do not add up to all classes; a first task of the others' size is not named."""
        if self.first_task_size == self.task_size:
            object.__setattr__(self, "first_task_size", 0)
        classes, first, size = self.num_classes, self.first_task_size, self.task_size
        if first and (first >= classes or (classes - first) % size):
            fitting = [str(number) for number in range(classes % size or size, classes, size)]
            raise UserError(
                f"first_task_size {first} does not leave whole tasks of task_size {size} of num_classes {classes}; "
                f"choose {'one of ' + ', '.join(fitting) if fitting else 'a smaller task_size'}."
            )
        if not first and (size >= classes or classes % size):
            raise UserError(
                f"task_size {size} does not cut num_classes {classes} into two or more equal tasks; "
                f"choose one of {', '.join(str(part) for part in range(1, classes // 2 + 1) if classes % part == 0)}."
            )

    def _check_plugin(self) -> None:
        """Record the plugin that this trial needs; refuse a digest that is not the loaded plugin's."""
        method = self.method
        digests = {
            plugin_of("method", method.name),
            plugin_of("learner", method.learner),
            plugin_of("network", self.network),
            plugin_of("data set", self.dataset),
            plugin_of("ranking", method.previous_sampling),
            plugin_of("ranking", method.ood_sampling),
        } - {""}
        if len(digests) > 1:
            raise UserError(f"method {method.name!r} needs entries of {len(digests)} plugins; put them into one file.")
        digest = next(iter(digests), "")
        if self.plugin not in ("", digest):
            raise UserError(
                f"plugin {self.plugin} made this trial, but the plugin that is loaded now is {digest or 'none'}; "
                f"load the file as it was, or start a new trial."
            )
        object.__setattr__(self, "plugin", digest)

    @property
    def num_tasks(self) -> int:
        return len(self.task_sizes)

    @property
    def task_sizes(self) -> tuple[int, ...]:
        first = self.first_task_size or self.task_size
        return (first, *(self.task_size,) * ((self.num_classes - first) // self.task_size))

    def schedule(self, training: Training, images: int, batch_size: int | None = None) -> Schedule:
        """Return the schedule of a training on a set of images, in batches of the spec unless others are given."""
        factor = self.epoch_factor * (self.fine_tune_factor if training == "fine-tuning" else 1.0)
        return schedule(
            training,
            images=images,
            batch_size=batch_size or self.batch_size,
            epoch_factor=factor,
            learning_rate=self.learning_rate,
        )

    @property
    def _used_fine_tune_factor(self) -> float:
        """The factor, or 1 where nothing is fine-tuned."""
        return self.fine_tune_factor if self.method.fine_tuned != "nothing" else 1.0

    def canonical(self) -> dict[str, Any]:
        """Return what decides the result: the fields that differ from their defaults, of the spec and of its method.

        A field that is added later changes no id, as long as trials of before had its default. Fields that the method
        does not use, such as a stream, are left out.
        """
        values = _changed(self)
        values["method"] = _changed(self.method)
        del values["method"]["title"]
        if not self.method.external:
            for name in EXTERNAL_FIELDS:
                values.pop(name, None)
        if self._used_fine_tune_factor == 1.0:
            values.pop("fine_tune_factor", None)
        return values

    @cached_property
    def trial_id(self) -> str:
        """Name of the trial's files: equal for specs that ask for the same, on any machine."""
        return _digest(self.canonical())

    @cached_property
    def first_model_id(self) -> str:
        """Equal for trials that share their first-stage model."""
        values = self.canonical()
        if not self.method.shares_first_model:
            return _digest({**values, "first model": "own"})
        for name in ("method", "ood_ratio", "fine_tune_factor", "temperature", "ensemble_temperature"):
            values.pop(name, None)
        if not self.method.calibrated_first_model:
            for name in (*EXTERNAL_FIELDS, "convention"):
                values.pop(name, None)
        if not (plugin_of("network", self.network) or plugin_of("data set", self.dataset)):
            values.pop("plugin", None)
        values["calibrated"] = self.method.calibrated_first_model
        return _digest(values)

    def flat(self) -> dict[str, str | int | float | bool | None]:
        """One column per field, the method's own as `method_<field>`."""
        row: dict[str, str | int | float | bool | None] = {"method": self.method.name}
        row.update({f.name: getattr(self, f.name) for f in fields(self) if f.name != "method"})
        row["fine_tune_factor"] = self._used_fine_tune_factor
        row.update({f"method_{f.name}": getattr(self.method, f.name) for f in fields(Method) if f.name != "name"})
        row["method_options"] = json.dumps(dict(self.method.options))
        return row


def check_seed(seed: int) -> None:
    """Refuse a seed that a generator does not take."""
    if not 0 <= seed < 2**31:
        raise UserError(f"seed {seed} must be at least 0 and below 2**31.")


def _changed(instance: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that differ from their defaults."""
    values = {f.name: getattr(instance, f.name) for f in fields(instance)}
    return {f.name: values[f.name] for f in fields(instance) if f.default is MISSING or values[f.name] != f.default}


def _digest(values: dict[str, Any]) -> str:
    text = json.dumps(values, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _whole(name: str, value: object, low: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or int(value) < low:
        raise UserError(f"{name} {value!r} must be a whole number of at least {low}.")
    return int(value)


def _real(name: str, value: object, low: float, high: float) -> float:
    number = math.nan
    if isinstance(value, Real) and not isinstance(value, bool):
        with suppress(OverflowError):
            number = float(value)
    if not math.isfinite(number):
        raise UserError(f"{name} {value!r} must be a finite number.")
    if low <= number <= high and (number > 0 or name not in _POSITIVE):
        return number
    default = next(f.default for f in fields(TrialSpec) if f.name == name)
    if name in _POSITIVE and number <= 0:
        raise UserError(f"{name} {number} must be above 0; the default is {default}.")
    raise UserError(f"{name} {number} is outside [{low}, {high}]; the default is {default}.")
