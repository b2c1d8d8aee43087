"""The seam between the incremental loop and a learner: what a learner gets of one stage, and what it gives back."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gd_ray.arithmetic import training_arithmetic
from gd_ray.conventions import Convention, convention_named
from gd_ray.coreset import random_coreset
from gd_ray.data.augmentation import TrainingBatches
from gd_ray.data.pixels import Statistics
from gd_ray.errors import UserError
from gd_ray.networks.classifier import Classifier, new_classifier
from gd_ray.networks.dropout import DropoutRng
from gd_ray.philox import PhiloxDropout
from gd_ray.progress import ProgressCallback
from gd_ray.seeding import Purpose, generator, numpy_generator, step_purposes, torch_seed
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step
from gd_ray.training import Batches, Loss, fit

IntArray = NDArray[np.int64]


@dataclass
class StageLog:
    """What the steps of a stage leave behind besides the model."""

    losses: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)
    recorded: dict[str, float] = field(default_factory=dict)
    """Numbers that a learner finds and results should keep, such as 'gamma'."""
    teacher: Classifier | None = None
    """C of this stage, where one is trained: its confidence is counted beside that of M."""

    def add(self, step: str, started: float, images: int) -> None:
        """Record a step that began at `started` and ends now."""
        self.seconds[step] = perf_counter() - started
        self.images[step] = images


@dataclass(frozen=True, kw_only=True)
class Stage:
    """One stage of a trial: its data on the training device, its random numbers, its schedule, its progress."""

    spec: TrialSpec
    number: int
    """From 1."""
    images: Tensor
    """uint8 images of the stage: the current task, the exemplars, the external set."""
    labels: Tensor
    """Class of each image in the order of learning; EXTERNAL for unlabelled ones."""
    statistics: Statistics
    current: IntArray
    """Indices of the current task, D_t."""
    exemplars: IntArray
    """Indices of labelled images of previous tasks: the coreset, or all of them for the oracle."""
    ranked_exemplars: IntArray
    """The same in the order in which the coreset was selected."""
    external: IntArray
    """Indices of the external set, D_t^ext."""
    external_previous: int
    """How many of the external images were sampled for previous classes."""
    quotas: IntArray
    """Images of each class that the coreset of this stage may keep."""
    progress: ProgressCallback
    log: StageLog = field(default_factory=StageLog)

    @property
    def task_sizes(self) -> tuple[int, ...]:
        """Sizes of tasks 1..t."""
        return self.spec.task_sizes[: self.number]

    @property
    def num_prev(self) -> int:
        return sum(self.task_sizes[:-1])

    @property
    def num_new(self) -> int:
        return self.task_sizes[-1]

    @property
    def labelled(self) -> IntArray:
        return np.concatenate([self.current, self.exemplars])

    @property
    def all(self) -> IntArray:
        return np.concatenate([self.labelled, self.external])

    @property
    def device(self) -> torch.device:
        return self.images.device

    @property
    def convention(self) -> Convention:
        return convention_named(self.spec.convention)

    @property
    def sizes(self) -> StageSizes:
        sets = (self.current, self.exemplars, self.external)
        return StageSizes(self.number, self.num_prev, self.num_new, *map(len, sets))

    def labels_of(self, indices: IntArray) -> IntArray:
        return self.labels.cpu().numpy()[indices]

    def init_rng(self) -> torch.Generator:
        """Return the generator of new weights; every call starts it anew."""
        return generator(self.spec.seed, self.number, Purpose.INITIALISATION)

    def numpy_rng(self, purpose: Purpose) -> np.random.Generator:
        return numpy_generator(self.spec.seed, self.number, purpose)

    def fit(
        self,
        step: Step,
        network: Classifier,
        loss: Loss,
        indices: IntArray,
        parameters: Iterable[nn.Parameter] | None = None,
        *,
        batches: Batches | None = None,
        weight_decay: float | None = None,
        nesterov: bool = False,
    ) -> None:
        """Train a network on some images of the stage, by default all its parameters, and log losses and time.

        `batches` and `weight_decay` take the place of random batches of the images and of the spec's decay.
        """
        assert step.training is not None, "this step trains nothing"
        spec, device = self.spec, self.device
        started, done = perf_counter(), 0
        plan = spec.schedule(step.training, step.epoch_images or len(indices), step.batch_size)
        batch_size = min(step.batch_size or spec.batch_size, len(indices))
        if batches is None:
            batches = self.batches(step.name, indices, batch_size, plan.updates)
        optimizer = torch.optim.SGD(
            list(network.parameters() if parameters is None else parameters),
            lr=plan.learning_rate,
            momentum=spec.momentum,
            weight_decay=spec.weight_decay if weight_decay is None else weight_decay,
            nesterov=nesterov,
            fused=device.type == "cuda",  # on a CPU it gains nothing
        )
        total = plan.updates * batch_size

        def on_images(number: int) -> None:
            nonlocal done
            done += number
            self.progress(self.number, step.name, done, total)

        with training_arithmetic(spec.precision, device):
            losses = fit(network, loss, batches, plan, optimizer, self._dropout_rng(step.name), on_images)
        self._check_finite(step.name, losses)
        self.log.losses |= {f"{step.name} {name}": value for name, value in losses.items()}
        self.log.add(step.name, started, done)

    def batches(self, step: str, indices: IntArray, batch_size: int, updates: int) -> TrainingBatches:
        """Return random batches of some images of the stage, with the random numbers of a step."""
        shuffling, augmentation, _ = step_purposes(step)
        return TrainingBatches(
            images=self.images,
            labels=self.labels,
            statistics=self.statistics,
            indices=torch.from_numpy(indices),
            batch_size=batch_size,
            updates=updates,
            shuffle_rng=generator(self.spec.seed, self.number, shuffling),
            augmentation_rng=generator(self.spec.seed, self.number, augmentation),
        )

    def _dropout_rng(self, step: str) -> DropoutRng:
        *_, purpose = step_purposes(step)
        if self.device.type == "cuda":
            return PhiloxDropout(torch_seed(self.spec.seed, self.number, purpose), self.device)
        return generator(self.spec.seed, self.number, purpose)

    def _check_finite(self, step: str, losses: dict[str, float]) -> None:
        spec = self.spec
        for name, value in losses.items():
            if not math.isfinite(value):
                raise UserError(
                    f"The {step} loss of stage {self.number} is not finite in its term {name!r}; lower learning_rate "
                    f"{spec.learning_rate}, or raise temperature {spec.temperature} or ensemble_temperature "
                    f"{spec.ensemble_temperature} if it is far below 1."
                )


class Learner(Protocol):
    """What trains the model of a stage. Subclass it and register the class in `LEARNERS`; `spec` is the trial's.

    A method with `shares_first_model` (the default) starts from the first model that all methods of a seed share, so
    `train` is only called from stage 2 on; without it, `previous` is None at stage 1.
    """

    spec: TrialSpec
    kind: type[Classifier] = Classifier
    """Of its models."""

    def __init__(self, spec: TrialSpec) -> None:
        self.spec = spec

    def train(self, stage: Stage, previous: Classifier | None) -> Classifier:
        """Return the model of this stage, with a row of its head for every class seen so far."""
        ...

    def steps(self, sizes: StageSizes) -> Sequence[Step]:
        """Return the trainings of `train` and further uses of networks in `train` and `select_coreset`.

        Progress and `gd-ray plan` count them; by default there is one training, on all images.
        """
        return [Step("model", "whole", sizes.all, references=1)]

    def external_size(self, labelled: int) -> int:
        """Return how many stream images a stage samples, by default as many as it has labelled ones."""
        return labelled

    def select_coreset(self, stage: Stage, model: Classifier) -> IntArray:  # noqa: ARG002
        """Return indices of labelled images, at most `stage.quotas[k]` of class k, class by class and best first."""
        labelled = stage.labelled
        return random_coreset(labelled, stage.labels_of(labelled), stage.quotas, stage.numpy_rng(Purpose.CORESET))

    def new_model(self, num_classes: int, rng: torch.Generator) -> Classifier:
        """Return a model with new weights; a checkpoint's weights are loaded into one as well."""
        return new_classifier(self.spec.network, self.spec.dropout, num_classes, rng, self.kind)
