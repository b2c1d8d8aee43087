"""Figures that look into single trials: accuracy by task, confusions, and what Algorithm 2 sampled."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.curves import accuracy_matrix
from analysis.drawing import Picture, label_of, ordered, panels_of, plain, tidy, uneven
from analysis.published import dataset_title
from analysis.results import Results
from analysis.settings import uses_external
from analysis.streams import FindStream

_COLOUR_MAP = "cividis"
_COMPARED = ("baseline", "e2e", "gd", "gd+ext")


def _main_size(trials: pd.DataFrame) -> int:
    """The task size shown where one is enough: 10 as in the paper's ablations, or the one with most trials."""
    counts = trials["task_size"].value_counts()
    return 10 if 10 in counts.index else int(counts.index[0])


def _compared(trials: pd.DataFrame) -> tuple[int, pd.DataFrame, list[str]]:
    """The main task size, its trials, and the few methods that stand side by side."""
    size = _main_size(trials)
    rows = trials[trials["task_size"] == size]
    return size, rows, [m for m in _COMPARED if m in set(rows["method"])] or ordered(rows["method"])[:4]


def accuracy_heat_maps(results: Results, trials: pd.DataFrame, dataset: str) -> Picture | None:
    """Mean accuracy after each stage on each task."""
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
    image = None
    for axes, method in zip(panels, methods, strict=True):
        matrix = 100 * np.mean([accuracy_matrix(by_trial[trial]) for trial in ids[method]], axis=0)
        stages = len(matrix)
        extent = (0.5, stages + 0.5, stages + 0.5, 0.5)
        image = axes.imshow(matrix, vmin=0, vmax=100, cmap=_COLOUR_MAP, extent=extent, interpolation="nearest")
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
    if image is not None:
        figure.colorbar(image, ax=panels, label="accuracy (%)", shrink=0.8)
    return Picture(
        f"accuracy-{dataset}",
        f"Accuracy on each task after each stage: {dataset_title(dataset)}, task size {size}",
        "Row s is the model after stage s, column r the test images of task r; mean over seeds"
        f"{uneven(rows[rows['method'].isin(methods)], 'panel')}. The diagonal is a task "
        "just learned. Look down a column to see it being forgotten, and for a last row that is even: a bright last "
        "column and dark others mean a model biased to its newest task.",
        figure,
    )


def confusion_matrices(results: Results, trials: pd.DataFrame, dataset: str) -> Picture | None:
    """What the last model of one seed takes for what, classes in the order learned."""
    size, rows, methods = _compared(trials)
    seed = _shared_seed(rows, methods)
    rows = rows[(rows["seed"] == seed)].drop_duplicates("method").set_index("method")
    methods = [method for method in methods if method in rows.index]
    figure = Figure(figsize=(2.9 * len(methods) + 0.8, 3.3), layout="constrained")
    panels = panels_of(figure, len(methods), sharey=True)
    image = None
    for axes, method in zip(panels, methods, strict=True):
        counts = results.rows("confusions", [str(rows.loc[method, "trial_id"])])
        if counts.empty:
            return None
        matrix, borders = confusion_matrix(counts)
        image = axes.imshow(100 * matrix, vmin=0, vmax=100, cmap=_COLOUR_MAP, interpolation="nearest")
        for border in borders[:-1]:
            axes.axhline(border - 0.5, color="white", linewidth=0.4, alpha=0.6)
            axes.axvline(border - 0.5, color="white", linewidth=0.4, alpha=0.6)
        axes.set_title(plain(str(rows.loc[method, "method_title"])))
        axes.set_xlabel("predicted class")
        axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    panels[0].set_ylabel("true class, in the order learned")
    if image is not None:
        figure.colorbar(image, ax=panels, label="of the true class (%)", shrink=0.8)
    return Picture(
        f"confusion-{dataset}",
        f"Confusion matrix of the last stage: {dataset_title(dataset)}, task size {size}, seed {seed}",
        "A row for each true class and a column for each predicted one, tasks in the order learned, lines between "
        "tasks. A bright diagonal is what one wants; a bright band on the right means that images of old tasks are "
        "taken for classes of the newest one.",
        figure,
        vector=False,
    )


def _shared_seed(rows: pd.DataFrame, methods: list[str]) -> int:
    """The first of the seeds that the most of these methods have."""
    counts = rows[rows["method"].isin(methods)].groupby("seed")["method"].nunique()
    return int(counts.index[int(counts.argmax())])


def confusion_matrix(counts: pd.DataFrame) -> tuple[NDArray[np.float64], list[int]]:
    """Shares of each true class at the last stage, classes in the order learned, and where the tasks end."""
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
    """The trial whose samples are shown: GD+ext if it is there, the first seed."""
    rows = trials[(trials["task_size"] == _main_size(trials)) & uses_external(trials)]
    if rows.empty:
        return None
    preferred = rows[rows["method"] == "gd+ext"]
    return (preferred if len(preferred) else rows).sort_values("seed").iloc[0]


def confidence_histograms(results: Results, trials: pd.DataFrame, dataset: str) -> Picture | None:
    """What the sampled images were ranked by, stage by stage."""
    trial = _sampling_trial(trials)
    if trial is None:
        return None
    samples = results.rows("samples", [str(trial["trial_id"])], [("source", "=", "previous")])
    if samples.empty or not samples["confidence"].notna().any():
        return None
    stages = sorted(samples["stage"].unique())
    stages = [stages[k] for k in np.unique(np.linspace(0, len(stages) - 1, min(5, len(stages))).astype(int))]
    values = samples["confidence"].astype(float)
    probability = bool(values.between(0, 1).all())
    bins = np.linspace(0, 1, 26) if probability else np.linspace(values.min(), values.max(), 26)
    figure = Figure(figsize=(2.1 * len(stages) + 0.8, 2.6), layout="constrained")
    panels = panels_of(figure, len(stages), sharey=True, sharex=True)
    for axes, stage in zip(panels, stages, strict=True):
        axes.hist(values[samples["stage"] == stage], bins=list(bins), color="#0072B2")
        axes.set_title(f"stage {stage}", fontsize=10)
        tidy(axes, "confidence" if probability else "logit", "")
    panels[0].set_ylabel("images")
    title, seed = plain(str(trial["method_title"])), trial["seed"]
    figure.suptitle(f"{title}, seed {seed}: images sampled for previous classes")
    return Picture(
        f"confidence-{dataset}",
        f"Confidence of the sampled images: {dataset_title(dataset)}",
        f"How sure the previous model was of the stream images that Algorithm 2 kept for previous classes "
        f"({trial['method_title']}, task size {trial['task_size']}, seed {seed}). Where the bars end on the left is "
        f"the least sure image that was still needed: the farther to the right, the more the stream had to offer. A "
        f"pile at 1 at every stage means a model that is sure of everything and cannot choose.",
        figure,
    )


def contact_sheet(results: Results, trials: pd.DataFrame, dataset: str, images: FindStream) -> Picture | None:
    """The most confident images that Algorithm 2 sampled for each class at the last stage."""
    trial = _sampling_trial(trials)
    samples = results.rows("samples", [str(trial["trial_id"])]) if trial is not None else pd.DataFrame()
    if trial is None or samples.empty:
        return None
    stream = images(str(trial["stream"]), int(samples["position"].max()) + 1)
    if stream is None:
        return None
    last = samples[samples["stage"] == samples["stage"].max()]
    best = last[last["source"] == "previous"].sort_values("confidence", ascending=False, kind="stable")
    classes = sorted(best["class"].unique())[:20]
    rows = {_class_name(results, dataset, label): best[best["class"] == label].head(10) for label in classes}
    width = max([5, *(len(part) for part in rows.values())])
    rows["random"] = last[last["source"] == "ood"].head(width)
    rows = {name: part for name, part in rows.items() if len(part)}
    if not rows:
        return None
    wanted = np.unique(np.concatenate([part["position"].to_numpy() for part in rows.values()]))
    pixels = dict(zip(wanted.tolist(), stream.read(wanted), strict=True))
    halves = 2 if len(rows) > 8 else 1
    height = -(-len(rows) // halves)
    figure = Figure(figsize=((0.48 * width + 1.0) * halves, 0.47 * height + 0.3), layout="constrained")
    panels = panels_of(figure, halves, height)
    for axes in panels:
        axes.set_axis_off()
    for k, (name, part) in enumerate(rows.items()):
        axes = panels[(k % height) * halves + k // height]
        strip = np.full((34, 34 * width, 3), 255, np.uint8)
        for column, position in enumerate(part["position"]):
            strip[1:33, 34 * column + 1 : 34 * column + 33] = pixels[int(position)]
        axes.imshow(strip, interpolation="nearest")
        axes.text(-6, 17, plain(name), ha="right", va="center", fontsize=9)
    stage, title = int(last["stage"].iloc[0]), trial["method_title"]
    return Picture(
        f"samples-{dataset}",
        f"What Algorithm 2 sampled: {dataset_title(dataset)}, stage {stage}",
        f"For each previous class the stream images that the previous model was most sure of ({title}, task size "
        f"{trial['task_size']}, seed {trial['seed']}), and some of the images taken at random. Look whether the images "
        f"of a row share something with its class. Few of them, or none, are of the class itself: a stream is best "
        f"prepared without the classes to be learned.",
        figure,
        vector=False,
    )


def _class_name(results: Results, dataset: str, label: int) -> str:
    names = results.class_names.get(dataset, ())
    return names[label] if 0 <= label < len(names) else f"class {label}"
