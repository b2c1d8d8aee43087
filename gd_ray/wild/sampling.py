"""Algorithm 2: which stream images join the external set, as pure functions over scores.

The one-by-one algorithm fills each class up to its quota and then replaces its least probable image by a strictly
more probable one. What it keeps is, for each class, the first `quota` images in the order (more probable, then
earlier). That description holds for any part of the stream, so parts can be selected apart and merged in any order
with the same result.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gd_ray.conventions import Convention
from gd_ray.methods import Method


@dataclass(frozen=True)
class Selection:
    """The best `quota` images of each class among those seen so far, ordered by class, then best first."""

    quota: int
    positions: NDArray[np.int64]
    classes: NDArray[np.int64]
    scores: NDArray[np.float32]
    """What they are ranked by."""

    def __len__(self) -> int:
        return len(self.positions)


def select(positions: ArrayLike, classes: ArrayLike, scores: ArrayLike, *, quota: int) -> Selection:
    """The selection from one part of the stream. Positions say which image came first."""
    position, label = np.asarray(positions, np.int64), np.asarray(classes, np.int64)
    score = np.asarray(scores)
    order = np.lexsort((position, -score, label))
    sorted_labels = label[order]
    new_class = np.r_[True, sorted_labels[1:] != sorted_labels[:-1]] if len(order) else np.empty(0, bool)
    first = np.maximum.accumulate(np.where(new_class, np.arange(len(order)), 0))
    kept = order[np.arange(len(order)) - first < quota]
    return Selection(quota, position[kept], label[kept], score[kept])


def merge(a: Selection, b: Selection) -> Selection:
    """The selection from two parts of the stream: associative and commutative."""
    if a.quota != b.quota:
        raise ValueError(f"selections with quotas {a.quota} and {b.quota} do not merge")
    return select(
        np.concatenate([a.positions, b.positions]),
        np.concatenate([a.classes, b.classes]),
        np.concatenate([a.scores, b.scores]),
        quota=a.quota,
    )


def class_quota(num_prev: int, num_classes: int) -> int:
    """Images of one class that Algorithm 2 keeps: it adds while N(k) < N_prev / |T_{1:t-1}|, so it rounds up."""
    return -(-num_prev // num_classes)


def sample(
    positions: ArrayLike, classes: ArrayLike, confidences: ArrayLike, *, num_prev: int, num_classes: int
) -> NDArray[np.int64]:
    """The positions that Algorithm 2 keeps for the previous classes, in ascending order."""
    quota = class_quota(num_prev, num_classes)
    return np.sort(select(positions, classes, confidences, quota=quota).positions)


@dataclass(frozen=True)
class SamplingPlan:
    """How many images of each kind a stage samples, and by which rule."""

    num_prev: int
    num_ood: int
    num_classes: int
    several_classes: bool
    ood: Literal["first", "window", "prediction"]

    @property
    def quota(self) -> int:
        """Images kept for one previous class."""
        if not self.num_classes:
            return 0
        if self.several_classes:
            return self.num_prev // self.num_classes
        return class_quota(self.num_prev, self.num_classes)

    @property
    def skipped(self) -> int:
        """Images at the start of the window that are never scored: Algorithm 2 has taken them as OOD."""
        return self.num_ood if self.ood == "first" else 0

    @property
    def scores(self) -> bool:
        """Whether the plan needs any score."""
        return self.num_classes > 0 and (self.num_prev > 0 or (self.num_ood > 0 and self.ood == "prediction"))


def plan_sampling(
    method: Method, convention: Convention, *, size: int, ood_ratio: float, num_classes: int
) -> SamplingPlan:
    """The plan for an external set of `size` images. Before the first stage ends there is nothing to predict with."""
    if not num_classes or method.previous_sampling == "none":
        ood_ratio = 1.0
    elif method.ood_sampling == "none":
        ood_ratio = 0.0
    num_ood = round(size * ood_ratio)
    by_prediction = method.ood_sampling == "prediction" and num_classes > 0
    return SamplingPlan(
        num_prev=size - num_ood,
        num_ood=num_ood,
        num_classes=num_classes,
        several_classes=convention.image_may_win_several_classes,
        ood="prediction" if by_prediction else "window" if convention.ood_from_whole_window else "first",
    )


@dataclass(frozen=True)
class Candidates:
    """What one part of the stream offers: the best of each previous class, and the least confident images."""

    previous: Selection
    least_confident: Selection


def candidates(plan: SamplingPlan, offsets: NDArray[np.int64], logits: NDArray[np.float32]) -> Candidates:
    """The candidates among images at these offsets of the window, from the previous model's logits."""
    if plan.several_classes:
        number, num_classes = logits.shape
        previous = select(
            np.repeat(offsets, num_classes), np.tile(np.arange(num_classes), number), logits.ravel(), quota=plan.quota
        )
    else:
        previous = select(offsets, logits.argmax(axis=1), log_odds(logits), quota=plan.quota)
    # Enough that those chosen for a class can be passed over.
    wanted = plan.num_ood + plan.quota * plan.num_classes if plan.ood == "prediction" else 0
    uniform = log_softmax(logits).mean(axis=1)  # minus the confidence loss
    return Candidates(previous, select(offsets, np.zeros(len(offsets), np.int64), uniform, quota=wanted))


def merge_candidates(a: Candidates, b: Candidates) -> Candidates:
    return Candidates(merge(a.previous, b.previous), merge(a.least_confident, b.least_confident))


@dataclass(frozen=True)
class Sample:
    """What a stage takes from its window; offsets are unique, previous-class images first."""

    offsets: NDArray[np.int64]
    is_ood: NDArray[np.bool_]
    classes: NDArray[np.int64]
    """The previous class an image was taken for; -1 for OOD."""
    confidences: NDArray[np.float32]
    """By which it was taken: the probability of its class, or what else the convention ranks by; NaN if unscored."""

    def __len__(self) -> int:
        return len(self.offsets)


def finish(plan: SamplingPlan, found: Candidates | None, window_length: int, generator: np.random.Generator) -> Sample:
    """The external set, from the merged candidates of the whole window."""
    previous = found.previous if found is not None else select([], [], np.empty(0, np.float32), quota=plan.quota)
    # An image may stand for several classes under one convention; it is taken once, for the first of them.
    prev_offsets, where = np.unique(previous.positions, return_index=True)
    if plan.ood == "first":
        ood, score = np.arange(plan.num_ood), None
    elif plan.ood == "window":
        drawn = np.sort(generator.choice(window_length, plan.num_ood, replace=False))
        ood, score = drawn[~np.isin(drawn, prev_offsets)], None
    else:
        assert found is not None
        least = found.least_confident
        rest = ~np.isin(least.positions, prev_offsets)
        if plan.several_classes:  # that convention does not refill the places of images taken for a class
            rest &= np.arange(len(least)) < plan.num_ood
        ood, score = least.positions[rest][: plan.num_ood], least.scores[rest][: plan.num_ood]
    chosen_by = previous.scores[where]
    unscored = np.full(len(ood), np.nan, np.float32)
    return Sample(
        offsets=np.concatenate([prev_offsets, ood]),
        is_ood=np.arange(len(prev_offsets) + len(ood)) >= len(prev_offsets),
        classes=np.concatenate([previous.classes[where], np.full(len(ood), -1)]),
        confidences=np.concatenate(
            [
                chosen_by if plan.several_classes else probability(chosen_by),
                unscored if score is None else score,
            ]
        ),
    )


def log_odds(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """log p / (1 - p) of the most probable class.

    It ranks as p does, also among images of which a model is so sure that p itself is rounded to 1; up to odds of
    e^87, below which float32 has no numbers left for the other classes.
    """
    top = logits.argmax(axis=1)
    shifted = logits - logits.max(axis=1, keepdims=True)
    others = np.exp(shifted)
    others[np.arange(len(top)), top] = 0.0
    with np.errstate(divide="ignore"):  # of a single class one is infinitely sure
        result: NDArray[np.float32] = -np.log(others.sum(axis=1))
    return result


def probability(odds: NDArray[np.float32]) -> NDArray[np.float32]:
    """p of its log odds, which are never below those of a uniform guess."""
    return np.asarray(1 / (1 + np.exp(-odds)), np.float32)


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result
