"""Algorithm 2: which stream images join the external set, as pure functions over what the previous model computes.

The one-by-one algorithm fills each class up to its quota and then replaces its least probable image by a strictly
more probable one. What it keeps is, for each class, the first `quota` images in the order (more probable, then
earlier). That description holds for any part of the stream, so parts can be selected apart and merged in any order
with the same result. A sampling rule is a ranking: which image competes for which class, and with which score.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gd_ray.conventions import Convention
from gd_ray.methods import Method
from gd_ray.plugins import Registry

FloatArray = NDArray[np.float32]
IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class TopK:
    """The best `quota` images of each class among those seen so far, ordered by class, then best first."""

    quota: int
    positions: IntArray
    classes: IntArray
    scores: FloatArray

    def __len__(self) -> int:
        return len(self.positions)


def select(positions: ArrayLike, classes: ArrayLike, scores: ArrayLike, *, quota: int) -> TopK:
    """Select from one part of the stream; of equal scores the earlier position wins."""
    position, label = np.asarray(positions, np.int64), np.asarray(classes, np.int64)
    score = np.asarray(scores)
    order = np.lexsort((position, -score, label))
    rank = np.arange(len(order)) - np.searchsorted(label[order], label[order])  # within its class
    kept = order[rank < quota]
    return TopK(quota, position[kept], label[kept], score[kept])


def merge(a: TopK, b: TopK) -> TopK:
    """Merge the selections of two parts of the stream: associative and commutative."""
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
) -> IntArray:
    """Return the positions that Algorithm 2 keeps for the previous classes, in ascending order."""
    quota = class_quota(num_prev, num_classes)
    return np.sort(select(positions, classes, confidences, quota=quota).positions)


@dataclass(frozen=True)
class Outputs:
    """What the previous model computes of some images, one row per image."""

    logits: FloatArray
    cosines: FloatArray | None = None
    """Of its features and the mean features of each class, previous ones before new ones, if a ranking needs them."""


Ranked = tuple[ArrayLike, ArrayLike, ArrayLike]
"""Rows of the images that compete, the class that each competes for, and its score: higher is better."""


@dataclass(frozen=True)
class Ranking:
    """A sampling rule. An image may compete for any number of classes."""

    rank: Callable[[Outputs], Ranked]
    score_kind: str
    """What the recorded score is, such as 'probability'."""
    record: Callable[[FloatArray], FloatArray] = lambda scores: scores
    """Turns scores into what is recorded."""
    needs_means: bool = False
    """Of each class, over the labelled images of the stage: the ranking gets `Outputs.cosines`."""


RANKINGS: Registry[Ranking] = Registry("ranking")


def _rank_argmax(outputs: Outputs) -> Ranked:
    """Let each image compete for its most probable class (the paper's Algorithm 2)."""
    logits = outputs.logits
    return np.arange(len(logits)), logits.argmax(axis=1), log_odds(logits)


def _rank_every_logit(outputs: Outputs) -> Ranked:
    """Let each image compete for every class by its raw logit (the released program)."""
    number, num_classes = outputs.logits.shape
    return np.repeat(np.arange(number), num_classes), np.tile(np.arange(num_classes), number), outputs.logits.ravel()


def _rank_uncertainty(outputs: Outputs) -> Ranked:
    """Rank all images together, the least confident first: by minus their confidence loss."""
    number = len(outputs.logits)
    return np.arange(number), np.zeros(number, np.int64), log_softmax(outputs.logits).mean(axis=1)


def _rank_nearest_mean(outputs: Outputs) -> Ranked:
    """Let each image compete for the previous class with the nearest mean, by its cosine."""
    cosines = _needed(outputs.cosines)[:, : outputs.logits.shape[1]]
    return np.arange(len(cosines)), cosines.argmax(axis=1), cosines.max(axis=1)


def _rank_nearest_mean_far(outputs: Outputs) -> Ranked:
    """Let each image compete as for its nearest mean, but by how much nearer that is than any new class's."""
    rows, classes, scores = _rank_nearest_mean(outputs)
    return rows, classes, scores - _needed(outputs.cosines)[:, outputs.logits.shape[1] :].max(axis=1)


def _needed(cosines: FloatArray | None) -> FloatArray:
    if cosines is None:
        raise ValueError("the ranking needs class means that were not given")
    return cosines


def log_odds(logits: FloatArray) -> FloatArray:
    """Return log p / (1 - p) of the most probable class.

    It ranks as p does, also among images of which a model is so sure that p itself is rounded to 1; up to odds of
    e^87, below which float32 has no numbers left for the other classes.
    """
    top = logits.argmax(axis=1)
    shifted = logits - logits.max(axis=1, keepdims=True)
    others = np.exp(shifted)
    others[np.arange(len(top)), top] = 0.0
    with np.errstate(divide="ignore"):  # of a single class one is infinitely sure
        result: FloatArray = -np.log(others.sum(axis=1))
    return result


def probability(odds: FloatArray) -> FloatArray:
    """Return p of its log odds, which are never below those of a uniform guess."""
    return np.asarray(1 / (1 + np.exp(-odds)), np.float32)


def log_softmax(logits: FloatArray) -> FloatArray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    result: FloatArray = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return result


RANKINGS["argmax"] = Ranking(_rank_argmax, "probability", probability)
RANKINGS["logit"] = Ranking(_rank_every_logit, "logit")
RANKINGS["uncertainty"] = Ranking(_rank_uncertainty, "log likelihood")
RANKINGS["nearest-mean"] = Ranking(_rank_nearest_mean, "cosine", needs_means=True)
RANKINGS["nearest-mean-far"] = Ranking(_rank_nearest_mean_far, "cosine difference", needs_means=True)

FIRST, ANYWHERE = "first", "anywhere"
"""Random OOD images: the first of the window, never scored; or drawn from all of it."""


@dataclass(frozen=True)
class SamplingPlan:
    """How many images of each kind a stage samples, and by which rankings."""

    num_prev: int
    num_ood: int
    num_classes: int
    quota: int
    """Images kept for one previous class."""
    previous: str
    """The ranking for previous classes."""
    ood: str
    """FIRST, ANYWHERE or a ranking."""
    refill: bool
    """Whether the next ones replace OOD images that were taken for a class."""

    @property
    def skipped(self) -> int:
        """Images at the start of the window that are never scored: Algorithm 2 has taken them as OOD."""
        return self.num_ood if self.ood == FIRST else 0

    @property
    def scores(self) -> bool:
        """Whether the plan needs any score."""
        return self.num_classes > 0 and (self.num_prev > 0 or (self.num_ood > 0 and self.ood in RANKINGS))

    @property
    def needs_means(self) -> bool:
        return any(RANKINGS[name].needs_means for name in (self.previous, self.ood) if name in RANKINGS)


def plan_sampling(
    method: Method, convention: Convention, *, size: int, ood_ratio: float, num_classes: int
) -> SamplingPlan:
    """Plan an external set of `size` images. Before the first stage ends there is nothing to predict with."""
    if not num_classes or method.previous_sampling == "none":
        ood_ratio = 1.0
    elif method.ood_sampling == "none":
        ood_ratio = 0.0
    num_ood = round(size * ood_ratio)
    num_prev = size - num_ood
    several = convention.image_may_win_several_classes
    previous = method.previous_sampling
    if previous in ("none", "prediction"):
        previous = "logit" if several else "argmax"
    ood = "uncertainty" if method.ood_sampling == "prediction" else method.ood_sampling
    if ood not in RANKINGS or not num_classes:
        ood = ANYWHERE if convention.ood_from_whole_window else FIRST
    quota = 0
    if num_classes:
        quota = num_prev // num_classes if several else class_quota(num_prev, num_classes)
    return SamplingPlan(num_prev, num_ood, num_classes, quota, previous, ood, refill=not several)


@dataclass(frozen=True)
class Candidates:
    """What one part of the stream offers: the best of each previous class, and the best OOD images if ranked."""

    previous: TopK
    ood: TopK


def candidates(plan: SamplingPlan, offsets: IntArray, outputs: Outputs) -> Candidates:
    """Select the candidates among images at these offsets of the window."""
    # Enough that those chosen for a class can be passed over.
    wanted = plan.num_ood + plan.quota * plan.num_classes
    ood = _best(plan.ood, offsets, outputs, wanted) if plan.ood in RANKINGS else _NOTHING
    return Candidates(_best(plan.previous, offsets, outputs, plan.quota), ood)


def _best(ranking: str, offsets: IntArray, outputs: Outputs, quota: int) -> TopK:
    rows, classes, scores = RANKINGS[ranking].rank(outputs)
    return select(offsets[np.asarray(rows)], classes, scores, quota=quota)


_NOTHING = select([], [], np.empty(0, np.float32), quota=0)


def merge_candidates(a: Candidates, b: Candidates) -> Candidates:
    return Candidates(merge(a.previous, b.previous), merge(a.ood, b.ood))


@dataclass(frozen=True)
class Sample:
    """The external set of a stage, one entry per image, without its pixels; previous-class images come first."""

    positions: IntArray
    """Positions in the stream (offsets of the window, as `finish` returns them)."""
    is_ood: NDArray[np.bool_]
    classes: IntArray
    """The class that an image was sampled for; -1 for OOD."""
    scores: FloatArray
    """What it was ranked by; NaN if it was not scored."""
    previous_kind: str = "none"
    """What the scores of previous-class images are."""
    ood_kind: str = "none"

    def __len__(self) -> int:
        return len(self.positions)

    @property
    def score_kind(self) -> NDArray[np.str_]:
        """What each score is."""
        return np.where(self.is_ood, self.ood_kind, self.previous_kind)


NO_SAMPLE = Sample(np.empty(0, np.int64), np.empty(0, bool), np.empty(0, np.int64), np.empty(0, np.float32))
"""Of a stage that learns from no external image."""


def finish(plan: SamplingPlan, merged: Candidates | None, window_length: int, rng: np.random.Generator) -> Sample:
    """Choose the external set from the merged candidates of the whole window; None if nothing was scored."""
    previous = merged.previous if merged is not None else _NOTHING
    # An image may win for several classes under one convention; it is taken once, for the first of them.
    prev_offsets, where = np.unique(previous.positions, return_index=True)
    ranking, ood_kind = RANKINGS[plan.previous], "none"
    if merged is not None and plan.ood in RANKINGS:
        free = ~np.isin(merged.ood.positions, prev_offsets)
        if not plan.refill:
            free &= np.arange(len(merged.ood)) < plan.num_ood
        ood, ood_kind = merged.ood.positions[free][: plan.num_ood], RANKINGS[plan.ood].score_kind
        ood_scores = RANKINGS[plan.ood].record(merged.ood.scores[free][: plan.num_ood])
    else:
        ood = np.arange(plan.num_ood)
        if plan.ood == ANYWHERE:
            drawn = np.sort(rng.choice(window_length, plan.num_ood, replace=False))
            ood = drawn[~np.isin(drawn, prev_offsets)]
        ood_scores = np.full(len(ood), np.nan, np.float32)
    return Sample(
        positions=np.concatenate([prev_offsets, ood]),
        is_ood=np.arange(len(prev_offsets) + len(ood)) >= len(prev_offsets),
        classes=np.concatenate([previous.classes[where], np.full(len(ood), -1)]),
        scores=np.concatenate([ranking.record(previous.scores[where]), ood_scores]).astype(np.float32),
        previous_kind=ranking.score_kind,
        ood_kind=ood_kind,
    )
