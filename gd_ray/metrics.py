"""From the accuracy matrix to ACC and FGT. Row s is the model of stage s+1, column r the task r+1."""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gd_ray.conventions import convention_named


def _checked(accuracy: ArrayLike, task_sizes: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    matrix, sizes = np.asarray(accuracy, float), np.asarray(task_sizes, float)
    stages = len(sizes)
    if matrix.shape != (stages, stages):
        raise ValueError(f"accuracy has shape {matrix.shape}, but there are {stages} task sizes")
    return matrix, sizes


def average_incremental_accuracy(accuracy: ArrayLike, task_sizes: ArrayLike) -> float:
    """Return ACC: the accuracy over all classes seen so far, averaged over stages 2..t."""
    matrix, sizes = _checked(accuracy, task_sizes)
    if len(sizes) < 2:
        return float("nan")  # there is no second stage to average over
    stages = range(2, len(sizes) + 1)
    return float(np.mean([matrix[s - 1, :s] @ sizes[:s] / sizes[:s].sum() for s in stages]))


def average_forgetting(accuracy: ArrayLike, task_sizes: ArrayLike, convention: str = "paper") -> float:
    """Return FGT: how far the accuracy on each task fell since it was learned, weighted by task size.

    'paper' averages over stages 2..t with weights relative to the classes seen at that stage; 'released'
    averages over all t stages (the first counts 0) with weights relative to all classes.
    """
    over_all = convention_named(convention).forgetting_over_all_classes
    matrix, sizes = _checked(accuracy, task_sizes)
    if len(sizes) < 2:
        return float("nan")
    learned = np.diag(matrix)
    stages = range(2, len(sizes) + 1)
    falls = [sizes[: s - 1] @ (learned[: s - 1] - matrix[s - 1, : s - 1]) for s in stages]
    if over_all:
        return float(np.sum(falls) / sizes.sum() / len(sizes))
    return float(np.mean([fall / sizes[:s].sum() for s, fall in zip(stages, falls, strict=True)]))
