"""Counts of a model on test images, from its class scores and logits: the least that every metric can be had from.

Confidence is the largest probability of the head's softmax. It is counted in fixed bins of its log odds, which tell
apart what rounds to 1; the limits of the bins that calibration is usually measured in are limits here as well.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

TOP = 5
"""Classes that a prediction may name for `top5_hits`."""
CALIBRATION_BINS = 15
"""Equal ranges of confidence for the expected calibration error."""
OUTCOMES = ("right", "wrong", "unseen")
"""Images of classes seen that the head gets right or wrong, and images of classes that are still to be learned."""
_LIMITS = np.arange(1, CALIBRATION_BINS) / CALIBRATION_BINS
CALIBRATION_EDGES = np.log(_LIMITS / (1 - _LIMITS))
"""Log odds between those ranges."""
EDGES = np.union1d(np.arange(-140, 601) / 20, CALIBRATION_EDGES)
"""Log odds between bins: bin k has those from EDGES[k - 1] to below EDGES[k]."""


@dataclass(frozen=True)
class Counts:
    """What is known of a model after a stage; tuples have a number for each task."""

    confusion: IntArray
    """confusion[k, j]: test images of class k that the model takes for class j."""
    head_confusion: IntArray | None
    """The same of its head, where the model does not predict by it."""
    task_aware_hits: tuple[int, ...]
    """Images that are right among the classes of their own task."""
    top5_hits: tuple[int, ...]
    """Images whose class is among the five with the highest scores."""
    nll: tuple[float, ...]
    """Sums of the negative log likelihood of the true class under the head's softmax."""
    confidences: FloatArray
    """Rows of (index into OUTCOMES, bin, count, sum of confidences), without zero counts."""


def count(
    scores: NDArray[np.float32],
    logits: NDArray[np.float32] | None,
    unseen: NDArray[np.float32],
    labels: IntArray,
    task_sizes: tuple[int, ...],
) -> Counts:
    """Count scores[image, class] of images of classes seen, and the head's logits of these and of `unseen` images.

    Without `logits` the scores are the head's.
    """
    head = scores if logits is None else logits
    log_odds = np.concatenate([confidence_log_odds(head), confidence_log_odds(unseen)])
    outcomes = np.concatenate([head.argmax(axis=1) != labels, np.full(len(unseen), OUTCOMES.index("unseen"))])
    task_of = np.repeat(np.arange(len(task_sizes)), task_sizes)
    tasks = task_of[labels]
    own_task = np.where(tasks[:, None] == task_of, scores, -np.inf)

    def per_task(values: NDArray[Any]) -> NDArray[Any]:
        return np.bincount(tasks, values, minlength=len(task_sizes))

    return Counts(
        confusion=confusion_counts(scores, labels),
        head_confusion=None if logits is None else confusion_counts(logits, labels),
        task_aware_hits=tuple(per_task(ranks(own_task, labels) == 0).astype(int).tolist()),
        top5_hits=tuple(per_task(ranks(scores, labels) < TOP).astype(int).tolist()),
        nll=tuple(per_task(negative_log_likelihoods(head, labels)).tolist()),
        confidences=confidence_histogram(log_odds, outcomes),
    )


def confusion_counts(scores: NDArray[np.floating], labels: IntArray) -> IntArray:
    """Return counts[k, j]: images of class k whose score is highest for class j."""
    seen = scores.shape[1]
    return np.bincount(labels * seen + scores.argmax(axis=1), minlength=seen * seen).reshape(seen, seen)


def ranks(scores: NDArray[np.floating], labels: IntArray) -> IntArray:
    """Return how many classes are before the true one; of equal scores the first class is, as for argmax."""
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    ahead = (scores > own) | ((scores == own) & (np.arange(scores.shape[1]) < labels[:, None]))
    result: IntArray = ahead.sum(axis=1)
    return result


def negative_log_likelihoods(logits: NDArray[np.floating], labels: IntArray) -> FloatArray:
    values = logits.astype(np.float64)
    return _log_sum_exp(values) - np.take_along_axis(values, labels[:, None], axis=1)[:, 0]


def confidence_log_odds(logits: NDArray[np.floating]) -> FloatArray:
    """Return log(p / (1 - p)) of the largest probability p: its logit against all others."""
    values = logits.astype(np.float64)
    top = values.argmax(axis=1)[:, None]
    largest = np.take_along_axis(values, top, axis=1)[:, 0]
    np.put_along_axis(values, top, -np.inf, axis=1)
    return largest - _log_sum_exp(values)


def confidence_histogram(log_odds: FloatArray, outcomes: NDArray[np.integer]) -> FloatArray:
    """Return rows of (outcome, bin, count, sum of confidences), without zero counts."""
    bins = np.searchsorted(EDGES, log_odds, side="right")
    keys, places, counts = np.unique(outcomes * (len(EDGES) + 1) + bins, return_inverse=True, return_counts=True)
    sums = np.bincount(places, 1 / (1 + np.exp(-log_odds)), minlength=len(keys))
    return np.stack([*np.divmod(keys, len(EDGES) + 1), counts, sums], axis=1).astype(np.float64)


def _log_sum_exp(values: FloatArray) -> FloatArray:
    largest = values.max(axis=1, initial=-1e300)  # of a first task of one class there are no others
    with np.errstate(divide="ignore"):
        result: FloatArray = largest + np.log(np.exp(values - largest[:, None]).sum(axis=1))
    return result
