"""What C and M minimise at one stage: the losses of `gd_ray.losses` put together (Equations 9 and 12).

Classes are numbered in the order of learning, so the previous classes are the first columns of the logits and the
current task's are the last.
"""

from dataclasses import dataclass

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
    mean_over,
    soften,
)
from gd_ray.methods import Previous, Teacher

Terms = dict[str, Tensor]


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

    @property
    def num_seen(self) -> int:
        return sum(self.task_sizes)

    @property
    def num_prev(self) -> int:
        return self.num_seen - self.task_sizes[-1]

    def task_ranges(self) -> list[slice]:
        """The columns of each task."""
        stops = [sum(self.task_sizes[: s + 1]) for s in range(len(self.task_sizes))]
        return [slice(stop - size, stop) for stop, size in zip(stops, self.task_sizes, strict=True)]

    def distillation_weight(self, columns: slice) -> float:
        """Equation 11 for a distillation over these classes."""
        alone = self.teacher == "none" and not self.fine_tuning
        lone = alone and self.convention.lone_previous_over_previous
        return loss_weight(columns.stop - columns.start, self.num_prev if lone else self.num_seen)

    def image_weights(self, logits: Tensor, labels: Tensor, columns: slice) -> Tensor | None:
        """Equation 10 for a loss over these classes; external images and those of other classes weigh 1."""
        if self.class_counts is None:
            return None
        table = logits.new_ones(self.num_seen + 1)  # the last entry is what label -1 finds
        table[columns] = count_weights(self.class_counts[columns]).to(logits)
        return table[labels]

    def scale(self, temperature: float) -> float:
        return temperature**2 if self.convention.scale_by_squared_temperature else 1.0


def model_terms(
    objective: ModelObjective, logits: Tensor, labels: Tensor, previous: Tensor | None, teacher: Tensor | None
) -> Terms:
    """The terms of M's loss on one batch (Equation 9), weighted; their sum is the loss.

    `previous` and `teacher` are logits of the references that are needed. A `previous` with all classes is a copy of
    M, which knows the current task too.
    """
    seen, current = slice(0, objective.num_seen), slice(objective.num_prev, objective.num_seen)
    labelled = labels != EXTERNAL
    terms = _global_terms(objective, logits, labels, labelled, previous, teacher)

    def distilled(columns: slice, reference: Tensor) -> Tensor:
        temperature = objective.temperature
        losses = distillation(logits[:, columns], soften(reference, temperature), temperature)
        mean = mean_over(losses, weights=objective.image_weights(logits, labels, columns))
        return mean * (objective.scale(temperature) * objective.distillation_weight(columns))

    if objective.previous == "global":  # Equation 3
        assert previous is not None
        terms["previous"] = distilled(slice(0, previous.shape[1]), previous)
    if objective.previous == "local":  # Equation 2
        assert previous is not None
        known = [task for task in objective.task_ranges() if task.stop <= previous.shape[1]]
        terms["previous"] = torch.stack([distilled(task, previous[:, task]) for task in known]).sum()
    if objective.teacher == "distilled":  # Equation 4
        assert teacher is not None
        terms["teacher"] = distilled(current, teacher)
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
) -> Terms:
    """The terms over all classes: cls on labelled images (Equation 1) and Q on external ones (Equation 8)."""
    cls = classification(logits, labels)
    weights = objective.image_weights(logits, labels, slice(0, objective.num_seen))
    if not objective.ensemble:
        return {"cls": mean_over(cls, labelled, weights)}
    assert previous is not None
    temperature = objective.ensemble_temperature
    p_prev = soften(previous, temperature)
    if teacher is None:  # Q spreads epsilon uniformly
        size = objective.task_sizes[-1]
        p_cur = p_prev.new_full((len(p_prev), size), 1 / size)
    else:
        p_cur = soften(teacher, temperature)
    q = distillation(logits, ensemble(p_prev, p_cur), temperature) * objective.scale(temperature)
    external = ~labelled
    if objective.convention.pool_global_terms:
        return {"cls": mean_over(cls * labelled, weights=weights), "ensemble": mean_over(q * external)}
    return {"cls": mean_over(cls, labelled, weights), "ensemble": mean_over(q, external)}


def teacher_terms(logits: Tensor, labels: Tensor, *, calibrate: bool, weights: Tensor | None = None) -> Terms:
    """C's loss on one batch: cls on its own task, and to `calibrate` it, cnf on all other images (Equation 12).

    Labels are numbered within the task, EXTERNAL for every other image.
    """
    own = labels != EXTERNAL
    terms = {"cls": mean_over(classification(logits, labels), own, weights)}
    if calibrate:
        terms["confidence"] = mean_over(confidence(logits), ~own)
    return terms


def task_labels(labels: Tensor, num_prev: int) -> Tensor:
    """Labels numbered within the current task; EXTERNAL for images of previous classes and external ones."""
    return torch.where(labels >= num_prev, labels - num_prev, EXTERNAL)
