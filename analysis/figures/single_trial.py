"""Figures of single trials: accuracy by task, confusions, and the images that were sampled from a stream."""

from collections.abc import Sequence
from textwrap import fill

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.aggregate import at_main_size, ordered, place, uses_external
from analysis.curves import matrices
from analysis.figures import style
from analysis.figures.style import ReportFigure, label_of, plain
from analysis.published import dataset_title
from analysis.results import Results
from analysis.streams import FindStream
from gd_ray.naming import counted

_COLUMNS = 4
_ROWS_OF_IMAGES, _IMAGES = 20, 10
_HISTOGRAMS = 5


def _heat_maps(matrices: Sequence[tuple[str, NDArray[np.float64]]], x: str, y: str, label: str) -> Figure:
    """Draw shares as colours, a panel for each title. Fixed places: a layout of many panels would take seconds."""
    columns = min(_COLUMNS, len(matrices))
    width, height = 2.6 * columns, 2.9 * -(-len(matrices) // columns) + 0.7
    figure = Figure(figsize=(width, height))
    for k, (title, matrix) in enumerate(matrices):
        left, top = 2.6 * (k % columns) + 0.6, height - 2.9 * (k // columns)
        axes = figure.add_axes((left / width, (top - 2.4) / height, 1.9 / width, 1.9 / height))
        extent = (0.5, len(matrix) + 0.5, len(matrix) + 0.5, 0.5)
        image = axes.imshow(100 * matrix, vmin=0, vmax=100, cmap="cividis", extent=extent, interpolation="none")
        axes.set(title=fill(title, 22), xlabel=x, ylabel=y)
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(5, integer=True))
    scale = figure.add_axes((0.6 / width, 0.5 / height, min(3.2, width - 0.7) / width, 0.15 / height))
    figure.colorbar(image, scale, orientation="horizontal", label=label)
    return figure


def accuracy_heat_maps(results: Results, trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw the mean accuracy after each stage on each task."""
    rows = style.shown_trials(trials)
    stages = results.stages[results.stages["trial_id"].isin(rows["trial_id"])]
    rows = rows[rows["trial_id"].isin(stages["trial_id"])]  # stages that cannot be read are left out
    methods = ordered(rows["method"])
    if not methods:
        return None
    ids, accuracy = matrices(stages, "hits")
    of_method = {method: ids.isin(rows.loc[rows["method"] == method, "trial_id"]) for method in methods}
    means = [(label_of(rows, method), accuracy[own].mean(axis=0)) for method, own in of_method.items()]
    figure = _heat_maps(means, "task", "after stage", "accuracy (%)")
    for axes, (_, matrix) in zip(figure.axes, means, strict=False):  # the last axes are the scale
        for s, r in np.argwhere(np.isfinite(matrix)).tolist() if len(matrix) <= 10 else ():
            colour = "#010101" if matrix[s, r] > 0.55 else "#fefefe"  # not pure, which dark pages invert
            axes.text(r + 1, s + 1, f"{100 * matrix[s, r]:.0f}", ha="center", va="center", color=colour, fontsize=8)
    return ReportFigure(
        f"accuracy-{dataset}",
        f"Accuracy on each task after each stage: {place(rows)}",
        f"Row s is the model after stage s, column r the test images of task r; mean over "
        f"{style.seeds_text(rows, 'panel')}. The diagonal is a task just learned; a column that darkens from top to "
        "bottom is a task that is forgotten. Look for an even last row: one that is bright only at its right end is a "
        "model biased to its newest task."
        f"{style.left_out(trials, methods, 'accuracy_matrix(TRIAL)')}",
        figure,
    )


def confusion_matrices(results: Results, trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw the confusions of the last model of one seed, classes in the order learned."""
    rows = style.shown_trials(trials)
    seed = rows.groupby("seed")["method"].nunique().idxmax()
    rows = rows[rows["seed"] == seed].drop_duplicates("method")
    counts = results.rows("confusions", rows["trial_id"].astype(str).tolist())
    trial_of = dict(zip(rows["method"], rows["trial_id"], strict=True))
    by_trial = {trial: counts[counts["trial_id"] == trial] for trial in counts["trial_id"].unique()}
    methods = [method for method in ordered(rows["method"]) if trial_of[method] in by_trial]
    if not methods:
        return None
    matrices = [(label_of(rows, m), *confusion_matrix(by_trial[trial_of[m]])) for m in methods]
    shown = [(title, matrix) for title, matrix, _ in matrices]
    figure = _heat_maps(shown, "predicted class", "true class", "of the true class (%)")
    for axes, (_, _, borders) in zip(figure.axes, matrices, strict=False):
        for border in borders[:-1]:
            axes.axhline(border + 0.5, color="white", linewidth=0.4, alpha=0.6)
            axes.axvline(border + 0.5, color="white", linewidth=0.4, alpha=0.6)
    return ReportFigure(
        f"confusion-{dataset}",
        f"Confusion matrix of the last stage: {place(rows)}, seed {seed}",
        "A row for each true class and a column for each predicted one, numbered in the order learned, lines between "
        "tasks. Look for a bright diagonal; a bright band on the right means that images of old tasks are predicted "
        f"as classes of the newest one.{style.left_out(trials, methods, 'confusions')}",
        figure,
    )


def confusion_matrix(counts: pd.DataFrame) -> tuple[NDArray[np.float64], list[int]]:
    """Return the shares of each true class at the last stage, classes in the order learned, and the ends of tasks."""
    first = counts.groupby("true_class")["stage"].min()
    order = sorted(first.index, key=lambda label: (first[label], label))
    index = {label: k for k, label in enumerate(order)}
    last = counts[counts["stage"] == counts["stage"].max()]
    matrix = np.zeros((len(order), len(order)))
    matrix[last["true_class"].map(index), last["predicted_class"].map(index)] = last["count"]
    totals = matrix.sum(axis=1, keepdims=True)
    borders = np.cumsum(first.value_counts().sort_index()).tolist()
    return np.divide(matrix, totals, out=np.zeros_like(matrix), where=totals > 0), borders


def _sampling_trial(trials: pd.DataFrame) -> pd.Series | None:
    """Return the trial whose samples are shown: the first seed, of GD+ext if possible."""
    rows = trials[uses_external(trials)]
    if rows.empty:
        return None
    rows = at_main_size(rows)
    preferred = rows[rows["method"] == "gd+ext"]
    return (preferred if len(preferred) else rows).sort_values("seed").iloc[0]


def score_histograms(results: Results, trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw the scores by which sampled images were ranked, stage by stage."""
    trial = _sampling_trial(trials)
    if trial is None:
        return None
    samples = results.rows("samples", [str(trial["trial_id"])], [("source", "=", "previous")])
    if samples.empty or not samples["score"].notna().any():
        return None
    every = sorted(samples["stage"].unique())
    stages = [every[k] for k in np.unique(np.linspace(0, len(every) - 1, min(_HISTOGRAMS, len(every))).astype(int))]
    values = samples["score"].astype(float)
    kind = str(samples["score_kind"].mode().iloc[0])
    bins = np.linspace(0, 1, 26) if kind == "probability" else np.linspace(values.min(), values.max(), 26)
    figure = Figure(figsize=(2.3 * len(stages), 2.6), layout="constrained")
    panels = style.panels_of(figure, 1, len(stages))
    for axes, stage in zip(panels, stages, strict=True):
        axes.hist(values[samples["stage"] == stage], bins=list(bins), color="#0072B2")
        axes.set_title(f"stage {stage}", fontsize=10)
        style.style_axes(axes, f"score ({kind})", "images")
    title, seed = plain(str(trial["method_title"])), trial["seed"]
    figure.suptitle(f"{title}, seed {seed}: images sampled for previous classes")
    return ReportFigure(
        f"scores-{dataset}",
        f"Scores of the sampled images: {dataset_title(dataset)}",
        f"Scores ({kind}) that the previous model gave the stream images kept for previous classes, at "
        f"{len(stages)} of {counted(len(every), 'stage')} ({trial['method_title']}, task size {trial['task_size']}, "
        f"seed {seed}). The first bar of a panel has the lowest score kept. Look for scores that spread out: where all "
        f"are at the upper end, the model is as sure of one image as of the other, and its scores do not choose.",
        figure,
    )


def contact_sheet(results: Results, trials: pd.DataFrame, dataset: str, find_stream: FindStream) -> ReportFigure | None:
    """Show the images with the highest scores that were sampled for each class at the last stage."""
    trial = _sampling_trial(trials)
    samples = results.rows("samples", [str(trial["trial_id"])]) if trial is not None else pd.DataFrame()
    if trial is None or samples.empty:
        return None
    stream = find_stream(str(trial["stream"]), int(samples["position"].max()) + 1)
    if stream is None:
        return None
    last = samples[samples["stage"] == samples["stage"].max()]
    best = last[last["source"] == "previous"].sort_values("score", ascending=False, kind="stable")
    classes = sorted(best["class"].unique())
    shown = classes[:_ROWS_OF_IMAGES]
    rows = {_class_name(results, dataset, label): best[best["class"] == label].head(_IMAGES) for label in shown}
    rows["OOD"] = last[last["source"] == "ood"].head(_IMAGES)
    rows = {name: part for name, part in rows.items() if len(part)}
    if not rows:
        return None
    wanted = np.unique(np.concatenate([part["position"].to_numpy() for part in rows.values()]))
    images = stream.read(wanted)
    side, pixels = images.shape[1], dict(zip(wanted.tolist(), images, strict=True))
    figure = Figure(figsize=(0.48 * _IMAGES + 1.2, 0.47 * len(rows) + 0.3), layout="constrained")
    for axes, (name, part) in zip(style.panels_of(figure, len(rows), 1), rows.items(), strict=True):
        axes.set_axis_off()
        strip = np.zeros((side + 2, (side + 2) * _IMAGES, 4), np.uint8)  # transparent but for the images
        for column, position in enumerate(part["position"]):
            left = (side + 2) * column + 1
            strip[1 : side + 1, left : left + side] = np.dstack([pixels[int(position)], np.full((side, side), 255)])
        axes.imshow(strip, interpolation="none")
        axes.text(-side / 5, side / 2 + 1, plain(name), ha="right", va="center", fontsize=9)
    stage, title = int(last["stage"].iloc[0]), trial["method_title"]
    return ReportFigure(
        f"samples-{dataset}",
        f"Images sampled from the stream: {dataset_title(dataset)}, stage {stage}",
        f"Images of {trial['stream']} with the highest scores among those sampled for {len(shown)} of "
        f"{len(classes)} previous classes, and some of those sampled as out of distribution ({title}, task "
        f"size {trial['task_size']}, seed {trial['seed']}). Look for what the images of a row share with its class.",
        figure,
    )


def _class_name(results: Results, dataset: str, label: int) -> str:
    names = results.class_names.get(dataset, ())
    return names[label] if 0 <= label < len(names) else f"class {label}"
