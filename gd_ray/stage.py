"""One stage of Algorithm 1: train the teacher C, train the model M, fine-tune it."""

import copy
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from gd_ray.coreset import balanced_set
from gd_ray.errors import UserError
from gd_ray.methods import Method
from gd_ray.network import WideResNet, grown, specialised
from gd_ray.objective import ModelObjective, Terms, model_terms, task_labels, teacher_terms
from gd_ray.progress import Report
from gd_ray.schedule import Training
from gd_ray.seeding import Purpose, generator, numpy_generator
from gd_ray.spec import TrialSpec
from gd_ray.training import Pool, Randomness, fit


@dataclass(frozen=True)
class StageData:
    """What a stage learns from. Members are places in the pool."""

    pool: Pool
    current: NDArray[np.int64]
    """Images of the current task, D_t."""
    replayed: NDArray[np.int64]
    """Images of previous tasks: the coreset, or all of them for the oracle."""
    external: NDArray[np.int64]
    """The external set, D_t^ext."""
    external_previous: int
    """How many of the external images were sampled for previous classes."""

    @property
    def labelled(self) -> NDArray[np.int64]:
        return np.concatenate([self.current, self.replayed])

    @property
    def everything(self) -> NDArray[np.int64]:
        return np.concatenate([self.labelled, self.external])


@dataclass
class StageLog:
    """What the trainings of a stage leave behind besides the model."""

    losses: dict[str, float] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)
    images: dict[str, int] = field(default_factory=dict)

    def add(self, step: str, started: float, images: int) -> None:
        """Notes a step that began at `started` and ends now."""
        self.seconds[step] = perf_counter() - started
        self.images[step] = images


@dataclass(frozen=True)
class Stage:
    """One stage of one trial; its methods are the lines of Algorithm 1."""

    spec: TrialSpec
    number: int
    data: StageData
    report: Report
    log: StageLog = field(default_factory=StageLog)

    @property
    def task_sizes(self) -> tuple[int, ...]:
        return self.spec.task_sizes[: self.number]

    @property
    def num_prev(self) -> int:
        return sum(self.task_sizes[:-1])

    def first_model(self) -> WideResNet:
        """M_1 = C_1, from new weights."""
        spec = self.spec
        numbers = generator(spec.seed, 1, Purpose.INITIALISATION)
        network = WideResNet(spec.depth, spec.width, spec.dropout, spec.task_size, numbers)
        return self._train_teacher(network.to(self.data.pool.images.device))

    def teacher(self, previous: WideResNet) -> WideResNet:
        """C_t: learns the current task alone, from a copy of P (Equation 5, or 12 with confidence)."""
        return self._train_teacher(specialised(previous, self.task_sizes[-1], self._initialisation()))

    def model(self, previous: WideResNet, teacher: WideResNet | None) -> WideResNet:
        """M_t: learns all classes from the labels and the references (Equation 9)."""
        method = self.spec.rules
        network = grown(previous, self.task_sizes[-1], self._initialisation())
        members = self.data.everything
        training: Training = "whole" if method.fine_tuned == "nothing" else "before fine-tuning"
        objective = self._objective(method, members, weighted=method.balancing == "data weighting", fine_tuning=False)
        self._train_model(network, objective, previous, teacher, members, training, "model", head_only=False)
        return network

    def fine_tuned(self, network: WideResNet, previous: WideResNet, teacher: WideResNet | None) -> WideResNet:
        """M_t with its bias to the current task removed: data weighting on the head, or a balanced set."""
        method = self.spec.rules
        if method.fine_tuned == "nothing":
            return network
        from_copy = method.fine_tunes_from_copy or (
            method.teacher != "distilled" and self.spec.reading.fine_tune_from_copy_without_teacher
        )
        if from_copy:  # the copy knows the current task too, so it takes the place of P and C
            previous, teacher = copy.deepcopy(network), None
        members = self._balanced_members() if method.balancing == "balanced set" else self.data.everything
        objective = self._objective(
            method, members, weighted=method.balancing == "weighted fine-tuning", fine_tuning=True, from_copy=from_copy
        )
        head_only = method.fine_tuned == "head"
        self._train_model(network, objective, previous, teacher, members, "fine-tuning", "fine-tune", head_only)
        return network

    def _logits(
        self, network: WideResNet, inputs: Tensor, dropout: torch.Generator | None = None, *, head_only: bool = False
    ) -> Tensor:
        """The shared part in the spec's precision, the head in its own.

        Head only: the shared part is in training mode but no gradient flows into it.
        """
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and not head_only),
            torch.autocast(inputs.device.type, torch.bfloat16, enabled=self.spec.precision == "bfloat16"),
        ):
            features = network.features(inputs, dropout)
        logits: Tensor = network.head(features.to(network.head.weight.dtype))
        return logits

    def _balanced_members(self) -> NDArray[np.int64]:
        spec, labels = self.spec, self.data.pool.labels.cpu().numpy()
        return balanced_set(
            self.data.current,
            labels[self.data.current],
            self.data.replayed,
            self.num_prev,
            sum(self.task_sizes),
            numpy_generator(spec.seed, self.number, Purpose.BALANCED_SET),
        )

    def _initialisation(self) -> torch.Generator:
        return generator(self.spec.seed, self.number, Purpose.INITIALISATION)

    def _objective(
        self, method: Method, members: NDArray[np.int64], *, weighted: bool, fine_tuning: bool, from_copy: bool = False
    ) -> ModelObjective:
        spec = self.spec
        return ModelObjective(
            task_sizes=self.task_sizes,
            previous=method.previous,
            teacher="none" if from_copy else method.teacher,
            ensemble=method.ensemble and not from_copy,
            confidence=method.confidence,
            fine_tuning=fine_tuning,
            temperature=spec.temperature,
            ensemble_temperature=spec.ensemble_temperature,
            convention=spec.reading,
            class_counts=self._class_counts(members, count_external=not fine_tuning) if weighted else None,
        )

    def _class_counts(self, members: NDArray[np.int64], *, count_external: bool) -> Tensor:
        labels = self.data.pool.labels[torch.from_numpy(members).to(self.data.pool.labels.device)]
        counts = torch.bincount(labels[labels >= 0], minlength=sum(self.task_sizes)).to(torch.float32)
        if count_external and self.spec.reading.weigh_external_as_previous:
            counts[: self.num_prev] += self.data.external_previous / self.num_prev
        return counts

    def _train_teacher(self, network: WideResNet) -> WideResNet:
        method, data, num_prev = self.spec.rules, self.data, self.num_prev
        # Without the confidence loss nothing is to be learned from images of other classes.
        members = data.everything if method.confidence else data.current
        calibrate = len(members) > len(data.current)

        def terms(inputs: Tensor, labels: Tensor, dropout: torch.Generator) -> Terms:
            return teacher_terms(
                self._logits(network, inputs, dropout), task_labels(labels, num_prev), calibrate=calibrate
            )

        network.train()
        purposes = (Purpose.TEACHER_BATCHES, Purpose.TEACHER_AUGMENTATION, Purpose.TEACHER_DROPOUT)
        self._fit(network.parameters(), terms, members, "whole", "teacher", purposes)
        return network.eval()

    def _train_model(
        self,
        network: WideResNet,
        objective: ModelObjective,
        previous: WideResNet,
        teacher: WideResNet | None,
        members: NDArray[np.int64],
        training: Training,
        step: str,
        head_only: bool,
    ) -> None:
        uses_previous = objective.previous != "none" or objective.ensemble
        uses_teacher = objective.teacher == "distilled" or objective.ensemble
        previous.eval()

        def terms(inputs: Tensor, labels: Tensor, dropout: torch.Generator) -> Terms:
            with torch.no_grad():
                p_logits = self._logits(previous, inputs) if uses_previous else None
                c_logits = self._logits(teacher, inputs) if teacher is not None and uses_teacher else None
            logits = self._logits(network, inputs, dropout, head_only=head_only)
            return model_terms(objective, logits, labels, p_logits, c_logits)

        network.train()
        parameters = network.head.parameters() if head_only else network.parameters()
        if training == "fine-tuning":
            purposes = (Purpose.FINE_TUNE_BATCHES, Purpose.FINE_TUNE_AUGMENTATION, Purpose.FINE_TUNE_DROPOUT)
        else:
            purposes = (Purpose.MODEL_BATCHES, Purpose.MODEL_AUGMENTATION, Purpose.MODEL_DROPOUT)
        self._fit(parameters, terms, members, training, step, purposes)
        network.eval()

    def _fit(
        self,
        parameters: Iterable[nn.Parameter],
        terms: Callable[[Tensor, Tensor, torch.Generator], Terms],
        members: NDArray[np.int64],
        training: Training,
        step: str,
        purposes: tuple[Purpose, Purpose, Purpose],
    ) -> None:
        started = perf_counter()
        done = 0

        def on_images(number: int, total: int) -> None:
            nonlocal done
            done = number
            self.report(self.number, step, number, total)

        randomness = Randomness(self.spec.seed, self.number, *purposes)
        places = torch.from_numpy(members)
        losses = fit(self.spec, self.data.pool, places, training, list(parameters), terms, randomness, on_images)
        for name, value in losses.items():
            if not math.isfinite(value):
                spec = self.spec
                raise UserError(
                    f"The {step} loss of stage {self.number} is not finite in its term {name!r}; lower learning_rate "
                    f"{spec.learning_rate}, or raise temperature {spec.temperature} or ensemble_temperature "
                    f"{spec.ensemble_temperature} if it is far below 1."
                )
        self.log.losses |= {f"{step} {name}": value for name, value in losses.items()}
        self.log.add(step, started, done)
