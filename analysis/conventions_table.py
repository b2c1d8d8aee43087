"""Tables beside the paper's: accuracy and forgetting as others mean them, what methods record, accuracy and memory."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis import measures
from analysis.aggregate import Setting, by_coreset_size, ordered, place, summarize
from analysis.curves import by_task_sizes, matrices
from analysis.formats import Cell, Grid, frame_grid, mean_sd
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
    "teacher_ece": "ECE of C ↓",
    "teacher_auroc": "AUROC of C ↑",
    "memory": "memory, images",
}
"""Columns of the table, and what summarizes a trial."""
_SUMS = ("head_hits", "task_aware_hits", "top5_hits", "nll")
_SIZES = ("labelled_size", "coreset_size", "recorded_model_in_images")
_ROOM = ("recorded_parameters", "recorded_model_in_images")
"""Recorded values that 'memory' summarizes."""
_STORED = ("stage", "task", "hits", "total", "classes_of_task", *_SUMS, *_SIZES)
NOTE = (
    "In %, except NLL (nats) and memory. Last, old and new are of the last model. Task-aware accuracy (the class among "
    "those of its task), top-5 accuracy, NLL and ECE (15 ranges) are averaged over stages 2 to the last, as ACC is. "
    "Forgetting by the best earlier accuracy and backward transfer are means over tasks. Intransigence is what a task "
    "just learned lacks to Oracle's accuracy on it, seed by seed. AUROC and FPR95 measure how well the head's "
    "confidence separates test images of classes seen from those of classes still to be learned, averaged over stages "
    "2 to the last but one. ECE and AUROC of C are those of the teachers of stages 2 to the last, to which the classes "
    "of all other tasks are unseen. Memory is the images kept and the model's room at four bytes a parameter, in "
    "uncompressed images. A cell is empty where a seed lacks what it needs."
)
RECORDED_NOTE = (
    "Mean ± standard deviation over seeds, after each stage. Gamma is what WA multiplies the head's new rows by; bias "
    "scale and offset are what BiC multiplies the logits of new classes by and adds to them. Head norm and head bias "
    "are means over the head's rows of old and of new classes, after such a correction."
)


def trial_measures(results: Results, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the measures of finished trials as columns beside the trials; NaN where they are not stored."""
    ids = trials["trial_id"].astype(str).tolist()
    stages = results.rows("stages", ids, columns=_STORED)
    if stages.empty:
        return trials.assign(**dict.fromkeys(TITLES, np.nan))
    stages = stages.sort_values(["trial_id", "stage", "task"]).astype({"trial_id": str})
    parts = [_of_equal_tasks(part, sizes) for sizes, part in by_task_sizes(stages)]
    later = [("stage", ">", 1)]
    own, teachers = (results.rows(kind, ids, later) for kind in ("confidences", "teacher_confidences"))
    frame = pd.concat(parts).join(calibration(own)).join(calibration(teachers).add_prefix("teacher_"))
    memory = stages.drop_duplicates("trial_id", keep="last").set_index("trial_id")
    frame["model"] = memory.get("recorded_model_in_images", np.nan)
    replayed = set(trials.loc[trials["method_replay_all"].fillna(False).astype(bool), "trial_id"].astype(str))
    kept = memory["coreset_size"].where(~memory.index.isin(replayed), memory["labelled_size"])
    frame["memory"] = kept + frame["model"]
    frame = trials.assign(trial_id=ids).merge(frame, left_on="trial_id", right_index=True)
    return frame.drop(columns="learned").assign(intransigence=_intransigence(frame))


def _of_equal_tasks(stages: pd.DataFrame, sizes: tuple[int, ...]) -> pd.DataFrame:
    ids, accuracy = matrices(stages, "hits")
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
        _, values = matrices(stages, name)
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


def calibration(rows: pd.DataFrame) -> pd.DataFrame:
    """Return ECE, AUROC and FPR95 of each trial, averaged over the stages that have the images for it."""
    of_trials = {}
    if len(rows):
        for trial, part in rows.groupby("trial_id", observed=True):
            counts, sums = histograms(part)
            right, wrong, unseen = np.moveaxis(counts, 1, 0)
            seen = right + wrong
            of_trials[str(trial)] = {
                "ece": _mean(measures.calibration_error(right, wrong, sums[:, :2].sum(axis=1))),
                "auroc": _mean(measures.auroc(seen, unseen)),  # after the last stage there is no unseen class
                "fpr95": _mean(map(measures.fpr95, seen, unseen)),
            }
    return pd.DataFrame.from_dict(of_trials, orient="index", columns=["ece", "auroc", "fpr95"])


def _mean(values: Iterable[float]) -> float:
    known = [value for value in values if np.isfinite(value)]
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
    for _, trials in frame.groupby(["dataset", "task_size"], observed=True):
        shown = {name: title for name, title in TITLES.items() if trials[name].notna().any()}
        cells = summarize(trials, ["method"], shown)
        grids.append(_grid(f"Other conventions ({place(trials)})", trials, cells, "metric", shown))
    return grids


def recorded_grids(results: Results, setting: Setting) -> list[Grid]:
    """Return what methods record of their stages, for each data set and task size: a row for each value and method."""
    trials = setting.trials.astype({"trial_id": str})
    stages = results.rows("stages", trials["trial_id"].tolist())
    names = sorted({*map(str, stages.filter(like="recorded_").dropna(axis=1, how="all"))} - {*_ROOM})
    if not names:
        return []
    stages = stages.drop_duplicates(["trial_id", "stage"]).astype({"trial_id": str})
    rows = stages[["trial_id", "stage", *names]].merge(trials, on="trial_id")
    grids = []
    for _, part in rows.groupby(["dataset", "task_size"], observed=True):
        values = part.melt(["method", "stage"], names).dropna().groupby(["variable", "method", "stage"], observed=True)
        means = values["value"].agg(["mean", "std"])
        texts = [Cell(mean_sd(mean, sd, ".2f"), mean) for mean, sd in means.to_numpy().tolist()]
        cells = pd.Series(texts, means.index).unstack("stage")
        titles = dict(zip(part["method"], part["method_title"], strict=True))
        keys = [(name, method) for name in names for method in ordered(titles) if (name, method) in cells.index]
        shown = cells.loc[keys].rename(columns="stage {}".format)
        shown.insert(0, "method", [titles[method] for _, method in keys])
        shown.insert(1, "value", [name.removeprefix("recorded_").replace("_", " ") for name, _ in keys])
        grids.append(frame_grid(shown, f"Recorded by the methods ({place(part)})"))
    return grids


def memory_grids(results: Results, settings: list[Setting]) -> list[Grid]:
    """Return ACC against memory, where settings differ in nothing but the size of the coreset."""
    grids = []
    for part in by_coreset_size(settings):
        model = trial_measures(results, part)["model"].max()
        more = "" if pd.isna(model) else f" + {model:,.0f}"
        columns = {size: f"{size:,}{more}" for size in sorted(part["coreset_size"].unique())}
        cells = summarize(part, ["method", "coreset_size"], ["acc"])
        counted = "images of the coreset" + (" + the model in images" if more else "")
        title = f"ACC against memory ({place(part)}), in %: {counted}"
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


def convention_parts(results: Results, settings: list[Setting]) -> list[dict[str, Any]]:
    """Return the parts of the report: a heading, notes and grids each."""
    parts = []
    for setting in settings:
        first = setting is settings[0]
        recorded = recorded_grids(results, setting)
        parts += [
            report_part(f"Other conventions{setting.suffix}", other_conventions(results, setting), [NOTE] * first),
            report_part(f"Recorded by the methods{setting.suffix}", recorded, [RECORDED_NOTE] * first, folded=True),
        ]
    parts.append(report_part("Accuracy against memory", memory_grids(results, settings)))
    return [part for part in parts if part["grids"]]


def report_part(heading: str, grids: list[Grid], notes: Sequence[str] = (), *, folded: bool = False) -> dict[str, Any]:
    """Return a part of the report's results."""
    return {"heading": heading, "grids": grids, "notes": notes, "folded": folded}
