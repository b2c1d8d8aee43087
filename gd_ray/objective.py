"""What C and M minimize at one stage: the terms of `gd_ray.losses` put together (Equations 9 and 12).

Classes are numbered in the order of learning, so the previous classes are the first columns of the logits and the
current task's are the last.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from gd_ray.conventions import Convention
from gd_ray.losses import (
    EXTERNAL,
    classification,
    confidence,
    count_weights,
    distillation,
    ensemble,
    loss_weight,
    masked_mean,
    softmax_with_temperature,
)
from gd_ray.methods import Previous, Teacher


@dataclass(frozen=True, kw_only=True)
class ModelObjective:
    """The terms of M's loss in one training of one stage."""

    task_sizes: tuple[int, ...]
    """Sizes of tasks 1..t."""
    previous: Previous
    teacher: Teacher
    ensemble: bool
    confidence: bool
    fine_tuning: bool
    temperature: float
    ensemble_temperature: float
    convention: Convention
    class_counts: Tensor | None = None
    """Images of each class, for data weighting (Equation 10); None weighs all images alike."""
    _weight_tables: dict[tuple[int, int, torch.dtype], Tensor] = field(default_factory=dict, init=False, repr=False)

    @property
    def uses_previous(self) -> bool:
        return self.previous != "none" or self.ensemble

    @property
    def uses_teacher(self) -> bool:
        return self.teacher == "distilled" or self.ensemble

    @property
    def num_seen(self) -> int:
        return sum(self.task_sizes)

    @property
    def num_prev(self) -> int:
        return self.num_seen - self.task_sizes[-1]

    def task_ranges(self) -> list[slice]:
        stops = [sum(self.task_sizes[: s + 1]) for s in range(len(self.task_sizes))]
        return [slice(stop - size, stop) for stop, size in zip(stops, self.task_sizes, strict=True)]

    def distillation_weight(self, columns: slice) -> float:
        """Return the weight of a distillation over these classes (Equation 11)."""
        alone = self.teacher == "none" and not self.fine_tuning
        lone = alone and self.convention.lone_previous_over_previous
        return loss_weight(columns.stop - columns.start, self.num_prev if lone else self.num_seen)

    def image_weights(self, logits: Tensor, labels: Tensor, columns: slice) -> Tensor | None:
        """Return the weight of each image in a loss over these classes (Equation 10); 1 for images of other classes."""
        if self.class_counts is None:
            return None
        key = (columns.start, columns.stop, logits.dtype)
        if key not in self._weight_tables:  # once per training
            table = logits.new_ones(self.num_seen + 1)  # index -1 (EXTERNAL) reads the last entry
            table[columns] = count_weights(self.class_counts[columns]).to(logits)
            self._weight_tables[key] = table
        return self._weight_tables[key][labels]

    def scale(self, temperature: float) -> float:
        return temperature**2 if self.convention.scale_by_squared_temperature else 1.0


def model_terms(
    objective: ModelObjective, logits: Tensor, labels: Tensor, previous: Tensor | None, teacher: Tensor | None
) -> dict[str, Tensor]:
    """Return the weighted terms of M's loss on one batch (Equation 9); their sum is the loss.

    `previous` and `teacher` are logits of the references that are needed. A `previous` with all classes is a copy of
    M, which knows the current task too.
    """
    seen, current = slice(0, objective.num_seen), slice(objective.num_prev, objective.num_seen)
    labelled = labels != EXTERNAL
    terms = _global_terms(objective, logits, labels, labelled, previous, teacher)

    def distilled(columns: slice, reference: Tensor) -> Tensor:
        temperature = objective.temperature
        losses = distillation(logits[:, columns], softmax_with_temperature(reference, temperature), temperature)
        mean = masked_mean(losses, weights=objective.image_weights(logits, labels, columns))
        return mean * (objective.scale(temperature) * objective.distillation_weight(columns))

    if objective.previous == "global":  # Equation 3
        p = _needed(previous)
        terms["previous"] = distilled(slice(0, p.shape[1]), p)
    if objective.previous == "local":  # Equation 2
        p = _needed(previous)
        known = [task for task in objective.task_ranges() if task.stop <= p.shape[1]]
        terms["previous"] = torch.stack([distilled(task, p[:, task]) for task in known]).sum()
    if objective.teacher == "distilled":  # Equation 4
        terms["teacher"] = distilled(current, _needed(teacher))
    if objective.teacher == "hard labels":  # Equation 12 without a C (Equation 5 without confidence)
        weight = loss_weight(objective.task_sizes[-1], seen.stop)
        own = teacher_terms(
            logits[:, current],
            task_labels(labels, objective.num_prev),
            calibrate=objective.confidence,
            weights=objective.image_weights(logits, labels, current),
        )
        terms |= {f"teacher {name}": term * weight for name, term in own.items()}
    return terms


def _global_terms(
    objective: ModelObjective,
    logits: Tensor,
    labels: Tensor,
    labelled: Tensor,
    previous: Tensor | None,
    teacher: Tensor | None,
) -> dict[str, Tensor]:
    """Return the terms over all classes: cls on labelled images (Equation 1) and Q on external ones (Equation 8)."""
    cls = classification(logits, labels)
    weights = objective.image_weights(logits, labels, slice(0, objective.num_seen))
    if not objective.ensemble:
        return {"cls": masked_mean(cls, labelled, weights)}
    temperature = objective.ensemble_temperature
    p_prev = softmax_with_temperature(_needed(previous), temperature)
    if teacher is None:  # Q spreads epsilon uniformly
        size = objective.task_sizes[-1]
        p_cur = p_prev.new_full((len(p_prev), size), 1 / size)
    else:
        p_cur = softmax_with_temperature(teacher, temperature)
    q = distillation(logits, ensemble(p_prev, p_cur), temperature) * objective.scale(temperature)
    external = ~labelled
    if objective.convention.pool_global_terms:
        return {"cls": masked_mean(cls * labelled, weights=weights), "ensemble": masked_mean(q * external)}
    return {"cls": masked_mean(cls, labelled, weights), "ensemble": masked_mean(q, external)}


def _needed(reference: Tensor | None) -> Tensor:
    if reference is None:
        raise ValueError("the objective needs the logits of a reference model that was not given")
    return reference


def teacher_terms(
    logits: Tensor, labels: Tensor, *, calibrate: bool, weights: Tensor | None = None
) -> dict[str, Tensor]:
    """Return C's loss on one batch: cls on its own task, and to `calibrate` it, cnf on all other images (Equation 12).

    Labels are numbered within the task, EXTERNAL for every other image.
    """
    own = labels != EXTERNAL
    terms = {"cls": masked_mean(classification(logits, labels), own, weights)}
    if calibrate:
        terms["confidence"] = masked_mean(confidence(logits), ~own)
    return terms


def task_labels(labels: Tensor, num_prev: int) -> Tensor:
    """Return labels numbered within the current task; EXTERNAL for images of previous classes and external ones."""
    return torch.where(labels >= num_prev, labels - num_prev, EXTERNAL)
