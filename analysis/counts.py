"""The stages of finished trials, worked out from the counts that each trial's own row holds."""

import numpy as np
import pandas as pd
from numpy.typing import NDArray

COUNTS = ("hits", "totals")
"""Columns of a trial: test images that are right, and all, of every (stage, task), stage by stage."""


def stages_from_counts(counts: pd.DataFrame) -> pd.DataFrame:
    """A row per (trial, stage, task) of trials given as rows of trial_id, experiment, task_size, hits and totals."""
    rows = counts["hits"].map(len).to_numpy(np.int64)
    # Stage s has s tasks: n stages have n (n + 1) / 2 rows.
    pairs = {number: _stages_and_tasks(int(np.sqrt(2 * number))) for number in np.unique(rows).tolist()}
    stage, task = (np.concatenate([pairs[number][part] for number in rows.tolist()]) for part in (0, 1))
    owner = np.repeat(np.arange(len(counts)), rows)
    size = counts["task_size"].to_numpy(np.int32)[owner]
    return pd.DataFrame(
        {
            **{name: pd.Categorical(counts[name].astype(str)).take(owner) for name in ("trial_id", "experiment")},
            "stage": stage,
            "task": task,
            "hits": np.concatenate(counts["hits"].to_numpy()).astype(np.int64),
            "total": np.concatenate(counts["totals"].to_numpy()).astype(np.int64),
            "classes_of_task": size,
            "classes_seen": size * stage,
        }
    )


def _stages_and_tasks(stages: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    numbers = np.arange(1, stages + 1, dtype=np.int32)
    return np.repeat(numbers, numbers), np.concatenate([numbers[:stage] for stage in numbers])


def concatenated(first: pd.DataFrame, second: pd.DataFrame) -> pd.DataFrame:
    """The rows of both; text stays categories."""
    if first.empty or second.empty:
        return second if first.empty else first
    text = [name for name in first if isinstance(first[name].dtype, pd.CategoricalDtype)]
    whole = pd.concat([first.drop(columns=text), second.drop(columns=text)], ignore_index=True)
    for name in reversed(text):
        column = pd.api.types.union_categoricals([first[name], second[name]], sort_categories=True)
        whole.insert(0, name, pd.Series(column))
    return whole
