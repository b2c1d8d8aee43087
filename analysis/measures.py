"""Accuracy, forgetting and calibration as other programs define them, as pure functions of arrays.

An accuracy matrix has a row for each stage s and a column for each task r, NaN for tasks not yet learned; there may be
many, in leading axes. A histogram has the counts of confidence in the bins of `gd_ray.counts`, in its last axis.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gd_ray.counts import CALIBRATION_BINS, CALIBRATION_EDGES, EDGES

Array = NDArray[np.float64]
BINS = len(EDGES) + 1
_RANGE_OF_BIN = np.searchsorted(CALIBRATION_EDGES, [-np.inf, *EDGES], side="right")
_IN_RANGE = (_RANGE_OF_BIN[:, None] == np.arange(CALIBRATION_BINS)).astype(float)


def seen_accuracy(accuracy: Array, task_sizes: ArrayLike) -> Array:
    """Return the accuracy over all classes seen, after each stage."""
    sizes = np.asarray(task_sizes, float)
    return np.asarray(np.nansum(accuracy * sizes, axis=-1) / np.cumsum(sizes))


def old_accuracy(accuracy: Array, task_sizes: ArrayLike) -> Array:
    """Return the last model's accuracy over the classes of all tasks but the last."""
    sizes = np.asarray(task_sizes, float)[:-1]
    return np.asarray((accuracy[..., -1, :-1] * sizes).sum(axis=-1) / sizes.sum())


def forgetting_by_maximum(accuracy: Array) -> Array:
    """Return how far each task but the last is below its best accuracy at an earlier stage, averaged over tasks."""
    best = np.nanmax(accuracy[..., :-1, :-1], axis=-2)
    return np.asarray((best - accuracy[..., -1, :-1]).mean(axis=-1))


def backward_transfer(accuracy: Array) -> Array:
    """Return how far each task but the last is above its accuracy when it was learned, averaged over tasks."""
    return np.asarray((accuracy[..., -1, :-1] - just_learned(accuracy)[..., :-1]).mean(axis=-1))


def just_learned(accuracy: Array) -> Array:
    """Return the accuracy on each task just after it was learned."""
    return np.diagonal(accuracy, axis1=-2, axis2=-1)


def intransigence(learned: Array, oracle: Array) -> Array:
    """Return how far tasks just learned are below Oracle's, averaged over stages 2 to the last."""
    return np.asarray((oracle - learned)[..., 1:].mean(axis=-1))


def reliability(right: Array, wrong: Array, confidence: Array) -> tuple[Array, Array, Array]:
    """Return images, accuracy and mean confidence in equal ranges of confidence; NaN where there is no image.

    `confidence` sums the confidence of all these images in each bin.
    """
    images = (right + wrong) @ _IN_RANGE
    with np.errstate(invalid="ignore"):
        return images, right @ _IN_RANGE / images, confidence @ _IN_RANGE / images


def calibration_error(right: Array, wrong: Array, confidence: Array) -> Array:
    """Return ECE: the distance of accuracy and mean confidence in each range, averaged over images."""
    images, accuracy, mean = reliability(right, wrong, confidence)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.nansum(images * np.abs(accuracy - mean), axis=-1) / images.sum(axis=-1))


def auroc(seen: Array, unseen: Array) -> Array:
    """Return how often an image of a class seen is more confident than one of an unseen class; in one bin, half."""
    above = seen.sum(axis=-1, keepdims=True) - np.cumsum(seen, axis=-1)
    with np.errstate(invalid="ignore"):
        won = (unseen * (above + seen / 2)).sum(axis=-1)
        return np.asarray(won / (seen.sum(axis=-1) * unseen.sum(axis=-1)))


def fpr95(seen: Array, unseen: Array) -> float:
    """Return the share of unseen classes' images above the confidence that 95% of the images of classes seen have."""
    if not (seen.sum() and unseen.sum()):
        return float("nan")
    accepted, wrongly = (np.cumsum([0, *counts[::-1]]) / counts.sum() for counts in (seen, unseen))
    return float(np.interp(0.95, accepted, wrongly))
