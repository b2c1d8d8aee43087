"""The table 'Other conventions': what others mean by accuracy and forgetting, calibration, and memory in images."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import measures
from analysis.aggregate import COMMON, Setting, ordered, summarize, task_text
from analysis.formats import Cell, Grid, mean_sd
from analysis.published import dataset_title
from analysis.results import Results
from gd_ray.counts import OUTCOMES

TITLES = {
    "with_first": "average with stage 1 ↑",
    "last": "last ↑",
    "old": "old, last stage ↑",
    "new": "new, last stage ↑",
    "head_hits": "ACC of the head ↑",
    "task_aware_hits": "task-aware ↑",
    "top5_hits": "top-5 ↑",
    "forgetting": "forgetting by maximum ↓",
    "backward": "backward transfer ↑",
    "intransigence": "intransigence ↓",
    "ece": "ECE ↓",
    "nll": "NLL ↓",
    "auroc": "AUROC ↑",
    "fpr95": "FPR95 ↓",
    "memory": "memory, images",
}
"""Columns of the table, and what summarizes a trial."""
_SUMS = ("head_hits", "task_aware_hits", "top5_hits", "nll")
_SIZES = ("labelled_size", "coreset_size", "recorded_model_in_images")
_STORED = ("stage", "task", "hits", "total", "classes_of_task", *_SUMS, *_SIZES)
NOTE = (
    "In %, except NLL (nats) and memory. Last, old and new are of the last model. Task-aware accuracy (the class among "
    "those of its task), top-5 accuracy, NLL and ECE (15 ranges) are averaged over stages 2 to the last, as ACC is. "
    "Forgetting by the best earlier accuracy and backward transfer are means over tasks. Intransigence is what a task "
    "just learned lacks to Oracle's accuracy on it, seed by seed. AUROC and FPR95 tell test images of classes seen "
    "from those of classes still to be learned by the head's confidence, averaged over stages 2 to the last but one. "
    "Memory is the images kept and the model's room at four bytes a parameter, in uncompressed images. A cell is empty "
    "where a seed lacks what it needs."
)


def trial_measures(results: Results, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the measures of finished trials as columns beside the trials; NaN where they are not stored."""
    ids = trials["trial_id"].astype(str).tolist()
    stages = results.rows("stages", ids, columns=_STORED)
    if stages.empty:
        return trials.assign(**dict.fromkeys(TITLES, np.nan))
    stages = stages.sort_values(["trial_id", "stage", "task"]).astype({"trial_id": str})
    last = stages[stages["stage"] == stages.groupby("trial_id")["stage"].transform("max")]
    sizes = last.groupby("trial_id")["classes_of_task"].agg(tuple)
    parts = [
        _of_equal_tasks(stages[stages["trial_id"].isin(part.index)], tasks) for tasks, part in sizes.groupby(sizes)
    ]
    frame = pd.concat(parts).join(_calibration(results.rows("confidences", ids)))
    memory = last.drop_duplicates("trial_id").set_index("trial_id")
    frame["model"] = memory.get("recorded_model_in_images", np.nan)
    replayed = set(trials.loc[trials["method_replay_all"].fillna(False).astype(bool), "trial_id"].astype(str))
    kept = memory["coreset_size"].where(~memory.index.isin(replayed), memory["labelled_size"])
    frame["memory"] = kept + frame["model"]
    frame = trials.assign(trial_id=ids).merge(frame, left_on="trial_id", right_index=True)
    return frame.drop(columns="learned").assign(intransigence=_intransigence(frame))


def _of_equal_tasks(stages: pd.DataFrame, sizes: tuple[int, ...]) -> pd.DataFrame:
    codes, ids = pd.factorize(stages["trial_id"])

    def matrices(column: str) -> NDArray[np.float64]:
        values = np.full((len(ids), len(sizes), len(sizes)), np.nan)
        if column in stages:
            values[codes, stages["stage"] - 1, stages["task"] - 1] = stages[column].astype(float) / stages["total"]
        return values

    accuracy = matrices("hits")
    seen = measures.seen_accuracy(accuracy, sizes)
    columns: dict[str, Any] = {
        "with_first": seen.mean(axis=1),
        "last": seen[:, -1],
        "old": measures.old_accuracy(accuracy, sizes),
        "new": accuracy[:, -1, -1],
        "forgetting": measures.forgetting_by_maximum(accuracy),
        "backward": measures.backward_transfer(accuracy),
        "learned": list(measures.just_learned(accuracy)),
    }
    later = np.tril(np.ones((len(sizes), len(sizes)), bool))
    for name in _SUMS:
        values = matrices(name)
        known = np.isfinite(values[:, later]).all(axis=1)
        columns[name] = np.where(known, measures.seen_accuracy(values, sizes)[:, 1:].mean(axis=1), np.nan)
    return pd.DataFrame(columns, index=ids)


def histograms(rows: pd.DataFrame) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return counts[stage, outcome, bin] of one trial or several together, and their sums of confidence."""
    shape = (int(rows["stage"].max()), len(OUTCOMES), measures.BINS)
    place = (rows["stage"] - 1, rows["outcome"].astype(str).map(OUTCOMES.index), rows["bin"])
    counts, sums = np.zeros(shape), np.zeros(shape)
    np.add.at(counts, place, rows["count"])
    np.add.at(sums, place, rows["confidence"])
    return counts, sums


def _calibration(rows: pd.DataFrame) -> pd.DataFrame:
    found = {}
    if len(rows):
        for trial, part in rows.groupby("trial_id", observed=True):
            counts, sums = histograms(part)
            right, wrong, unseen = np.moveaxis(counts[1:], 1, 0)
            seen = right + wrong
            inner = range(len(seen) - 1)  # after the last stage there is no unseen class
            found[str(trial)] = {
                "ece": _mean(measures.calibration_error(right, wrong, sums[1:, :2].sum(axis=1))),
                "auroc": _mean([float(measures.auroc(seen[s], unseen[s])) for s in inner]),
                "fpr95": _mean([measures.fpr95(seen[s], unseen[s]) for s in inner]),
            }
    return pd.DataFrame.from_dict(found, orient="index", columns=["ece", "auroc", "fpr95"])


def _mean(values: Iterable[float]) -> float:
    known = list(values)
    return float(np.mean(known)) if known else np.nan


def _intransigence(frame: pd.DataFrame) -> list[float]:
    keys = list(zip(frame["dataset"], frame["task_size"], frame["seed"], strict=True))
    oracle = {key: row for key, row, m in zip(keys, frame["learned"], frame["method"], strict=True) if m == "oracle"}
    pairs = [(oracle.get(key), own) for key, own in zip(keys, frame["learned"], strict=True)]
    return [np.nan if best is None else float(measures.intransigence(own, best)) for best, own in pairs]


def other_conventions(results: Results, setting: Setting) -> list[Grid]:
    """Return a grid for each data set and task size of a setting; columns that no trial has are left out."""
    frame = trial_measures(results, setting.trials)
    grids = []
    for (dataset, size), trials in frame.groupby(["dataset", "task_size"], observed=True):
        shown = {name: title for name, title in TITLES.items() if trials[name].notna().any()}
        cells = summarize(trials, ["method"], shown)
        place = f"{dataset_title(str(dataset))}, {task_text(trials, int(str(size)))}"
        grids.append(_grid(f"Other conventions ({place})", trials, cells, "metric", shown))
    return grids


def memory_grids(results: Results, found: list[Setting]) -> list[Grid]:
    """Return ACC against memory, where settings differ in nothing but the size of the coreset."""
    trials = pd.concat([setting.trials for setting in found]) if found else pd.DataFrame({"coreset_size": []})
    same = [*(name for name in COMMON if name != "coreset_size"), "dataset", "task_size"]
    grids = []
    for _, part in trials.groupby(same, observed=True, dropna=False) if trials["coreset_size"].nunique() > 1 else ():
        if part["coreset_size"].nunique() > 1:
            model = trial_measures(results, part)["model"].max()
            more = "" if pd.isna(model) else f" + {model:,.0f}"
            columns = {size: f"{size:,}{more}" for size in sorted(part["coreset_size"].unique())}
            cells = summarize(part, ["method", "coreset_size"], ["acc"])
            place = f"{dataset_title(str(part['dataset'].iloc[0]))}, {task_text(part, int(part['task_size'].iloc[0]))}"
            title = (
                f"ACC against memory ({place}), in %: images of the coreset{' + the model in images' if more else ''}"
            )
            grids.append(_grid(title, part, cells, "coreset_size", columns))
    return grids


def _grid(title: str, trials: pd.DataFrame, cells: pd.DataFrame, column: str, columns: dict[Any, str]) -> Grid:
    """Return a row for each method, a column for each value of one column of the cells."""
    known = {(row["method"], row[column]): row for row in cells.to_dict("records")}
    titles = dict(zip(trials["method"], trials["method_title"], strict=True))
    rows = tuple(
        (Cell(str(titles[method])), *(_cell(known.get((method, name))) for name in columns))
        for method in ordered(trials["method"])
    )
    return Grid(title, ("method", *columns.values()), rows)


def _cell(row: dict[Any, Any] | None) -> Cell:
    if row is None or pd.isna(row["mean"]):
        return Cell("")
    if row["metric"] in ("memory", "nll"):  # no percentages
        value = row["mean"] / 100
        return Cell(f"{value:,.0f}" if row["metric"] == "memory" else f"{value:.2f}", value)
    return Cell(mean_sd(row["mean"], row["sd"]), float(row["mean"]))


def convention_parts(results: Results, found: list[Setting]) -> list[dict[str, Any]]:
    """Return the parts of the report: a heading, notes and grids each."""
    parts = []
    for k, setting in enumerate(found, start=1):
        heading = "Other conventions" + (f", setting {k}" if len(found) > 1 else "")
        parts.append(
            {"heading": heading, "notes": [NOTE] if k == 1 else [], "grids": other_conventions(results, setting)}
        )
    if grids := memory_grids(results, found):
        parts.append({"heading": "Accuracy against memory", "notes": [], "grids": grids})
    return parts
