"""Figures of single trials: accuracy by task, confusions, and the images that Algorithm 2 sampled."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.aggregate import ordered, task_text, uses_external
from analysis.curves import accuracy_matrix
from analysis.figures.style import ReportFigure, label_of, panels_of, plain, seed_mismatch_note, style_axes
from analysis.published import dataset_title
from analysis.results import Results
from analysis.streams import FindStream

_COLOUR_MAP = "cividis"
_COMPARED = ("baseline", "e2e", "gd", "gd+ext")


def main_size(trials: pd.DataFrame) -> int:
    """Return the task size to show: 10 as in the paper's ablations, or the one with most trials."""
    counts = trials["task_size"].value_counts()
    return 10 if 10 in counts.index else int(counts.index[0])


def _compared(trials: pd.DataFrame) -> tuple[int, pd.DataFrame, list[str]]:
    """Return the main task size, its trials, and the few methods shown side by side."""
    size = main_size(trials)
    rows = trials[trials["task_size"] == size]
    return size, rows, [m for m in _COMPARED if m in set(rows["method"])] or ordered(rows["method"])[:4]


def accuracy_heat_maps(results: Results, trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw the mean accuracy after each stage on each task."""
    size, rows, methods = _compared(trials)
    shown = results.stages[results.stages["trial_id"].isin(rows.loc[rows["method"].isin(methods), "trial_id"])]
    by_trial = dict(list(shown.groupby("trial_id", observed=True)))
    rows = rows[rows["trial_id"].isin(list(by_trial))]  # stages that cannot be read are left out
    ids = {method: list(rows.loc[rows["method"] == method, "trial_id"]) for method in methods}
    methods = [method for method in methods if ids[method]]
    if not methods:
        return None
    figure = Figure(figsize=(2.6 * len(methods) + 1.2, 3.2), layout="constrained")
    panels = panels_of(figure, len(methods), sharey=True)
    for axes, method in zip(panels, methods, strict=True):
        matrix = 100 * np.mean([accuracy_matrix(by_trial[trial]) for trial in ids[method]], axis=0)
        stages = len(matrix)
        extent = (0.5, stages + 0.5, stages + 0.5, 0.5)
        axes.imshow(matrix, vmin=0, vmax=100, cmap=_COLOUR_MAP, extent=extent, interpolation="nearest")
        if stages <= 10:
            for s, r in np.argwhere(np.isfinite(matrix)).tolist():
                colour = "black" if matrix[s, r] > 55 else "white"
                axes.text(r + 1, s + 1, f"{matrix[s, r]:.0f}", ha="center", va="center", color=colour, fontsize=7)
        axes.set_title(label_of(rows, method))
        axes.set_xlabel("task")
        step = max(1, stages // 5)
        axes.set_xticks(range(1, stages + 1, step))
        axes.set_yticks(range(1, stages + 1, step))
    panels[0].set_ylabel("after stage")
    figure.colorbar(panels[0].images[0], ax=panels, label="accuracy (%)", shrink=0.8)
    return ReportFigure(
        f"accuracy-{dataset}",
        f"Accuracy on each task after each stage: {dataset_title(dataset)}, {task_text(rows, size)}",
        "Row s is the model after stage s, column r the test images of task r; mean over seeds"
        f"{seed_mismatch_note(rows[rows['method'].isin(methods)], 'panel')}. The diagonal is a task just learned. "
        "Forgetting darkens a column from top to bottom. Look for an even last row: a bright last column and dark "
        "others mean a model biased to its newest task.",
        figure,
    )


def confusion_matrices(results: Results, trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw the confusions of the last model of one seed, classes in the order learned."""
    size, rows, methods = _compared(trials)
    seed = _shared_seed(rows, methods)
    rows = rows[(rows["seed"] == seed)].drop_duplicates("method").set_index("method")
    methods = [method for method in methods if method in rows.index]
    figure = Figure(figsize=(2.9 * len(methods) + 0.8, 3.3), layout="constrained")
    panels = panels_of(figure, len(methods), sharey=True)
    for axes, method in zip(panels, methods, strict=True):
        counts = results.rows("confusions", [str(rows.loc[method, "trial_id"])])
        if counts.empty:
            return None
        matrix, borders = confusion_matrix(counts)
        axes.imshow(100 * matrix, vmin=0, vmax=100, cmap=_COLOUR_MAP, interpolation="nearest")
        for border in borders[:-1]:
            axes.axhline(border - 0.5, color="white", linewidth=0.4, alpha=0.6)
            axes.axvline(border - 0.5, color="white", linewidth=0.4, alpha=0.6)
        axes.set_title(plain(str(rows.loc[method, "method_title"])))
        axes.set_xlabel("predicted class")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("true class, in the order learned")
    figure.colorbar(panels[0].images[0], ax=panels, label="of the true class (%)", shrink=0.8)
    return ReportFigure(
        f"confusion-{dataset}",
        f"Confusion matrix of the last stage: {dataset_title(dataset)}, {task_text(rows, size)}, seed {seed}",
        "A row for each true class and a column for each predicted one, tasks in the order learned, lines between "
        "tasks. Look for a bright diagonal; a bright band on the right means that images of old tasks are predicted "
        "as classes of the newest one.",
        figure,
        vector=False,
    )


def _shared_seed(rows: pd.DataFrame, methods: list[str]) -> int:
    """Return the first of the seeds that most of these methods have."""
    counts = rows[rows["method"].isin(methods)].groupby("seed")["method"].nunique()
    return int(counts.index[int(counts.argmax())])


def confusion_matrix(counts: pd.DataFrame) -> tuple[NDArray[np.float64], list[int]]:
    """Return the shares of each true class at the last stage, classes in the order learned, and the ends of tasks."""
    first = counts.groupby("true_class")["stage"].min()
    order = sorted(first.index, key=lambda label: (first[label], label))
    place = {label: k for k, label in enumerate(order)}
    last = counts[counts["stage"] == counts["stage"].max()]
    matrix = np.zeros((len(order), len(order)))
    matrix[last["true_class"].map(place), last["predicted_class"].map(place)] = last["count"]
    totals = matrix.sum(axis=1, keepdims=True)
    borders = np.cumsum(first.value_counts().sort_index()).tolist()
    return np.divide(matrix, totals, out=np.zeros_like(matrix), where=totals > 0), borders


def _sampling_trial(trials: pd.DataFrame) -> pd.Series | None:
    """Return the trial whose samples are shown: the first seed, of GD+ext if possible."""
    rows = trials[(trials["task_size"] == main_size(trials)) & uses_external(trials)]
    if rows.empty:
        return None
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
    stages = sorted(samples["stage"].unique())
    stages = [stages[k] for k in np.unique(np.linspace(0, len(stages) - 1, min(5, len(stages))).astype(int))]
    values = samples["score"].astype(float)
    kind = str(samples["score_kind"].mode().iloc[0])
    bins = np.linspace(0, 1, 26) if kind == "probability" else np.linspace(values.min(), values.max(), 26)
    figure = Figure(figsize=(2.1 * len(stages) + 0.8, 2.6), layout="constrained")
    panels = panels_of(figure, len(stages), sharey=True, sharex=True)
    for axes, stage in zip(panels, stages, strict=True):
        axes.hist(values[samples["stage"] == stage], bins=list(bins), color="#0072B2")
        axes.set_title(f"stage {stage}", fontsize=10)
        style_axes(axes, f"score ({kind})", "")
    panels[0].set_ylabel("images")
    title, seed = plain(str(trial["method_title"])), trial["seed"]
    figure.suptitle(f"{title}, seed {seed}: images sampled for previous classes")
    return ReportFigure(
        f"scores-{dataset}",
        f"Scores of the sampled images: {dataset_title(dataset)}",
        f"Scores ({kind}) that the previous model gave the stream images kept for previous classes "
        f"({trial['method_title']}, task size {trial['task_size']}, seed {seed}). The left end is the lowest score "
        f"that was needed: the farther to the right, the more the stream had to offer. All scores at the upper end at "
        f"every stage mean a model that is certain of everything and cannot choose.",
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
    classes = sorted(best["class"].unique())[:20]
    rows = {_class_name(results, dataset, label): best[best["class"] == label].head(10) for label in classes}
    width = max([5, *(len(part) for part in rows.values())])
    rows["random"] = last[last["source"] == "ood"].head(width)
    rows = {name: part for name, part in rows.items() if len(part)}
    if not rows:
        return None
    wanted = np.unique(np.concatenate([part["position"].to_numpy() for part in rows.values()]))
    images = stream.read(wanted)
    side, pixels = images.shape[1], dict(zip(wanted.tolist(), images, strict=True))
    halves = 2 if len(rows) > 8 else 1
    height = -(-len(rows) // halves)
    figure = Figure(figsize=((0.48 * width + 1.0) * halves, 0.47 * height + 0.3), layout="constrained")
    panels = panels_of(figure, halves, height)
    for axes in panels:
        axes.set_axis_off()
    for k, (name, part) in enumerate(rows.items()):
        axes = panels[(k % height) * halves + k // height]
        strip = np.full((side + 2, (side + 2) * width, 3), 255, np.uint8)
        for column, position in enumerate(part["position"]):
            left = (side + 2) * column + 1
            strip[1 : side + 1, left : left + side] = pixels[int(position)]
        axes.imshow(strip, interpolation="nearest")
        axes.text(-side / 5, side / 2 + 1, plain(name), ha="right", va="center", fontsize=9)
    stage, title = int(last["stage"].iloc[0]), trial["method_title"]
    return ReportFigure(
        f"samples-{dataset}",
        f"What Algorithm 2 sampled: {dataset_title(dataset)}, stage {stage}",
        f"For each previous class the stream images with the highest scores ({title}, task size {trial['task_size']}, "
        f"seed {trial['seed']}), and some of the images taken at random. Look for what the images of a row share with "
        f"its class. Few of them, or none, are of the class itself, because a stream is best prepared without the "
        f"classes to be learned.",
        figure,
        vector=False,
    )


def _class_name(results: Results, dataset: str, label: int) -> str:
    names = results.class_names.get(dataset, ())
    return names[label] if 0 <= label < len(names) else f"class {label}"
