"""Accuracy matrices, and ACC and FGT of every trial after every stage, from counts of right test images."""

from functools import cache

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from gd_ray.metrics import average_forgetting, average_incremental_accuracy

METRICS = ("acc", "fgt_paper", "fgt_released")
"""ACC, and FGT under the paper's text and under the released program."""


def accuracy_matrix(stages: pd.DataFrame) -> NDArray[np.float64]:
    """Return accuracy[s, r] of one trial's rows: after stage s+1 on task r+1, NaN for tasks not yet learned."""
    size = int(stages["stage"].max())
    matrix = np.full((size, size), np.nan)
    matrix[stages["stage"] - 1, stages["task"] - 1] = stages["hits"] / stages["total"]
    return matrix


def curves(stages: pd.DataFrame) -> pd.DataFrame:
    """Return a row per trial and stage: accuracy over the classes seen, ACC and both FGT over the stages so far."""
    parts = [_curves(part, sizes) for sizes, part in by_task_sizes(stages)]
    columns = ["trial_id", "stage", "classes_seen", "accuracy", *METRICS]
    return pd.concat(parts, ignore_index=True) if parts else pd.DataFrame(columns=columns)


def by_task_sizes(stages: pd.DataFrame) -> list[tuple[tuple[int, ...], pd.DataFrame]]:
    """Return the rows of trials with the same tasks so far, by the sizes of those tasks."""
    newest = stages[stages["stage"] == stages.groupby("trial_id", observed=True)["stage"].transform("max")]
    of_trials = newest.sort_values("task").groupby("trial_id", observed=True)["classes_of_task"].agg(tuple)
    trials: dict[tuple[int, ...], list[str]] = {}
    for trial, sizes in of_trials.items():
        trials.setdefault(sizes, []).append(str(trial))
    return [(sizes, stages[stages["trial_id"].isin(ids)]) for sizes, ids in trials.items()]


def matrices(stages: pd.DataFrame, column: str) -> tuple[pd.Index, NDArray[np.float64]]:
    """Return trials with the same tasks, and shares[trial, s, r] of the test images; NaN where they are not stored."""
    codes, ids = pd.factorize(stages["trial_id"])
    tasks = int(stages["stage"].max())
    values = np.full((len(ids), tasks, tasks), np.nan)
    if column in stages:
        values[codes, stages["stage"] - 1, stages["task"] - 1] = stages[column].astype(float) / stages["total"]
    return ids, values


def _curves(stages: pd.DataFrame, sizes: tuple[int, ...]) -> pd.DataFrame:
    """Return the curves of trials with the same tasks."""
    ids, accuracy = matrices(stages, "hits")
    accuracy = np.nan_to_num(accuracy)
    flat = accuracy.reshape(len(ids), -1)
    classes = np.cumsum(sizes)
    over_seen = np.tril(np.tile(np.array(sizes), (len(sizes), 1))) / classes[:, None]
    frame = pd.DataFrame(
        {
            "trial_id": np.repeat(ids, len(sizes)),
            "stage": np.tile(np.arange(1, len(sizes) + 1), len(ids)),
            "classes_seen": np.tile(classes, len(ids)),
            "accuracy": (accuracy * over_seen).sum(axis=2).ravel(),
        }
    )
    for metric in METRICS:
        frame[metric] = (flat @ metric_weights(sizes, metric).reshape(len(sizes), -1).T).ravel()
    return frame


@cache
def metric_weights(sizes: tuple[int, ...], metric: str) -> NDArray[np.float64]:
    """Return weights[t, s, r] with metric = sum(weights[t] * accuracy) for a trial that ends at stage t+1.

    ACC and FGT are linear in the accuracy matrix, so their definitions in `gd_ray.metrics`, applied to each entry
    alone, give its weight; thousands of trials then take one product. NaN for a single stage.
    """
    stages = len(sizes)
    weights = np.zeros((stages, stages, stages))
    weights[0] = np.nan
    for t in range(2, stages + 1):
        for s, r in zip(*np.tril_indices(t), strict=True):
            entry = np.zeros((t, t))
            entry[s, r] = 1.0
            weights[t - 1, s, r] = (
                average_incremental_accuracy(entry, sizes[:t])
                if metric == "acc"
                else average_forgetting(entry, sizes[:t], metric.removeprefix("fgt_"))
            )
    return weights
