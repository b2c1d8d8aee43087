"""The paper's figures and some of our own, each with a caption that says what to look for.

Colours are those of Okabe and Ito, told apart by all kinds of colour vision; methods differ by marker too.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from numpy.typing import NDArray

from analysis.curves import accuracy_matrix
from analysis.published import DATASET_TITLES
from analysis.results import Results
from analysis.settings import EXTERNAL, Setting
from analysis.streams import FindStream
from gd_ray.methods import METHODS

_COLOURS = {
    "oracle": "#000000",
    "baseline": "#999999",
    "lwf": "#56B4E9",
    "dr": "#009E73",
    "e2e": "#E69F00",
    "gd": "#D55E00",
}
_MARKERS = {"oracle": "*", "baseline": "o", "lwf": "v", "dr": "s", "e2e": "^", "gd": "D"}
_OTHERS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_HEAT, _COUNTS = "cividis", "cividis"
_BANDS = 5
"""Methods up to which bands of spread can be told apart."""
_STYLE = {"linewidth": 1.6, "markersize": 5}
_DISTANCE = re.compile(r"-distance-(\d+)$")


@dataclass(frozen=True)
class Picture:
    """A figure with what a reader needs beside it."""

    name: str
    title: str
    caption: str
    """What it shows and what to look for."""
    figure: Figure
    vector: bool = True
    """Whether it is small as a vector drawing; pictures of pixels are not."""


def all_pictures(results: Results, setting: Setting, images: FindStream) -> list[Picture]:
    """Every figure that the trials of a setting can fill."""
    pictures: list[Picture | None] = []
    for dataset, trials in setting.trials.groupby("dataset", observed=True):
        name = str(dataset)
        pictures.append(improvement(trials, name, setting.convention))
        for size in sorted(trials["task_size"].unique()):
            pictures.append(
                incremental(results, trials[trials["task_size"] == size], name, int(size), setting.convention)
            )
        variants = setting.variants[setting.variants["dataset"] == dataset]
        pictures.append(by_ood_ratio(variants, name, setting.convention))
        pictures.append(by_distance(variants, name, setting.convention))
        pictures.append(paired_slopes(trials, name, setting.convention))
        pictures.append(accuracy_heat_maps(results, trials, name))
        pictures.append(confusion_matrices(results, trials, name))
        pictures.append(confidence_histograms(results, trials, name))
        pictures.append(contact_sheet(results, trials, name, images))
    return [picture for picture in pictures if picture is not None]


def _title(dataset: str) -> str:
    return DATASET_TITLES.get(dataset, dataset)


def ordered(methods: Iterable[str]) -> list[str]:
    """The paper's methods in its order, then the user's own by name."""
    found = set(methods)
    return [name for name in METHODS if name in found] + sorted(found - set(METHODS))


def _look(method: str, others: list[str]) -> dict[str, object]:
    base, _, external = method.partition("+")
    if base in _COLOURS:
        return {"color": _COLOURS[base], "marker": _MARKERS[base], "linestyle": "-" if external else "--", **_STYLE}
    index = others.index(method)
    return {"color": _OTHERS[index % len(_OTHERS)], "marker": "PXh<>dp"[index % 7], "linestyle": "-", **_STYLE}


def _others(methods: Iterable[str]) -> list[str]:
    return [method for method in methods if method.partition("+")[0] not in _COLOURS]


def _label(trials: pd.DataFrame, method: str) -> str:
    return _plain(str(trials.loc[trials["method"] == method, "method_title"].iloc[0]))


def _plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def _axes(figure: Figure, columns: int, rows: int = 1, *, sharex: bool = False, sharey: bool = False) -> list[Axes]:
    return list(figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False).ravel())


def _tidy(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def _two_metrics(convention: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("acc", "ACC (%)"), (f"fgt_{convention}", "FGT (%)")


def incremental(
    results: Results, trials: pd.DataFrame, dataset: str, task_size: int, convention: str
) -> Picture | None:
    """ACC and FGT against the number of trained classes."""
    methods = [name for name in ordered(trials["method"]) if name.partition("+")[0] in _COLOURS or name not in METHODS]
    rows = results.curves[results.curves["stage"] > 1].merge(trials[["trial_id", "method"]], on="trial_id")
    if not methods or rows["classes_seen"].nunique() < 2:
        return None
    others = _others(methods)
    n = int(trials.groupby("method", observed=True)["seed"].nunique().max())
    with_bands = n > 1 and len(methods) <= _BANDS
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    panels = _axes(figure, 2)
    for axes, (metric, label) in zip(panels, _two_metrics(convention), strict=True):
        for method in methods:
            groups = rows[rows["method"] == method].groupby("classes_seen")[metric]
            mean, spread = 100 * groups.mean(), 100 * groups.std()
            look = _look(method, others)
            axes.plot(mean.index, mean, label=_label(trials, method), **look)  # type: ignore[arg-type]
            if with_bands and spread.notna().all():
                colour = str(look["color"])
                axes.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.10, linewidth=0)
        _tidy(axes, "trained classes", label)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.suptitle(f"{_title(dataset)}, task size {task_size}")
    return Picture(
        f"incremental-{dataset}-{task_size}",
        f"As classes are added: {_title(dataset)}, task size {task_size}",
        f"Average incremental accuracy (left, higher is better) and average forgetting (right, lower is better) over "
        f"the stages so far, against the number of trained classes; mean over {_seeds(n)}"
        f"{', bands of one standard deviation' if with_bands else ''}. Solid lines learn with external data, dashed "
        f"ones without. Look for lines that stay high on the left and low on the right to the end: a method that only "
        f"wins early has not stopped forgetting.",
        figure,
    )


def _seeds(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


def improvement(trials: pd.DataFrame, dataset: str, convention: str) -> Picture | None:
    """Arrows from each method without external data to the same with it."""
    pairs = [(name, f"{name}+ext") for name in ("lwf", "dr", "e2e", "gd")]
    means = trials.groupby(["method", "task_size"], observed=True)[["acc", f"fgt_{convention}"]].mean() * 100
    pairs = [pair for pair in pairs if all(method in means.index.get_level_values(0) for method in pair)]
    sizes = sorted(trials["task_size"].unique())
    if not pairs:
        return None
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    panels = _axes(figure, 2)
    for axes, (metric, label) in zip(panels, _two_metrics(convention), strict=True):
        for k, (before, after) in enumerate(pairs):
            look = _look(before, [])
            for place, size in enumerate(sizes):
                if (before, size) not in means.index or (after, size) not in means.index:
                    continue
                x = place + (k - (len(pairs) - 1) / 2) * 0.18
                start, end = means.loc[(before, size), metric], means.loc[(after, size), metric]
                axes.annotate(
                    "",
                    (x, end),
                    (x, start),
                    arrowprops={
                        "arrowstyle": "-|>",
                        "color": look["color"],
                        "linewidth": 2,
                        "shrinkA": 0,
                        "shrinkB": 0,
                    },
                )
                axes.plot(x, start, marker=str(look["marker"]), color=str(look["color"]), markersize=6, zorder=3)
                axes.plot(x, end, alpha=0)  # arrows alone do not widen the axes
        for method in ("oracle", "baseline"):
            if method in means.index.get_level_values(0):
                line = means.loc[method].reindex(sizes)[metric]
                look = _look(method, [])
                axes.plot(range(len(sizes)), line, color=str(look["color"]), marker=str(look["marker"]), linestyle=":")
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set_xlim(-0.6, len(sizes) - 0.4)
        axes.margins(y=0.08)
        _tidy(axes, "task size", label)
    names = [m for m in ("oracle", "baseline") if m in means.index.get_level_values(0)] + [pair[0] for pair in pairs]
    handles = [
        Line2D([], [], color=_COLOURS[m], marker=_MARKERS[m], linestyle=":" if m in ("oracle", "baseline") else "")
        for m in names
    ]
    figure.legend(handles, [_label(trials, m) for m in names], loc="outside right center", frameon=False)
    figure.suptitle(f"{_title(dataset)}: what external data change")
    return Picture(
        f"improvement-{dataset}",
        f"What external data change: {_title(dataset)}",
        "Each arrow goes from a method without external data (marker) to the same method with it (head), at every task "
        "size. Look for long arrows: up in ACC and down in FGT. The paper finds short ones for LwF, DR and E2E and "
        "long ones for GD.",
        figure,
    )


def by_ood_ratio(trials: pd.DataFrame, dataset: str, convention: str) -> Picture | None:
    """ACC and FGT of GD+ext against the OOD ratio."""
    rows = trials[trials["method"] == "gd+ext"]
    return _sweep(
        rows,
        rows["ood_ratio"].astype(float),
        _main_others(rows, "ood_ratio"),
        dataset,
        convention,
        name="ood-ratio",
        axis="OOD ratio",
        title="Share of out-of-distribution images",
        look_for="The paper finds the best ACC above 0.5 (0.8 on CIFAR-100, 0.7 on ImageNet) and the best FGT lower "
        "(0.2 and 0.5): look for a maximum on the left and a minimum on the right that are not at the same place.",
    )


def by_distance(trials: pd.DataFrame, dataset: str, convention: str) -> Picture | None:
    """ACC and FGT of GD+ext against the hierarchical distance of the stream."""
    rows = trials[(trials["method"] == "gd+ext")]
    distance = rows["stream"].astype(str).str.extract(_DISTANCE, expand=False)
    rows = rows[distance.notna()]
    return _sweep(
        rows,
        distance.dropna().astype(float),
        _main_others(rows, "stream"),
        dataset,
        convention,
        name="distance",
        axis="hierarchical distance",
        title="How near the stream is to what is learned",
        look_for="Larger distances mean streams whose classes are less like those learned. Look for ACC falling and "
        "FGT rising with distance, and for even the farthest stream to help.",
    )


def _main_others(rows: pd.DataFrame, swept: str) -> "pd.Series[bool]":
    """Rows with the most common values of the fields that are not swept."""
    fields = ["task_size", *(name for name in EXTERNAL if name not in (swept, "stream" if swept == "stream" else ""))]
    if rows.empty:
        return pd.Series(True, rows.index)
    widest = rows.astype({swept: object}).groupby(fields, observed=True)[swept].nunique().idxmax()
    return (rows[fields] == list(widest if isinstance(widest, tuple) else (widest,))).all(axis=1)


def _sweep(
    rows: pd.DataFrame,
    x: "pd.Series[float]",
    keep: "pd.Series[bool]",
    dataset: str,
    convention: str,
    *,
    name: str,
    axis: str,
    title: str,
    look_for: str,
) -> Picture | None:
    rows, x = rows[keep], x[keep]
    if x.nunique() < 2:
        return None
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axes, (metric, label) in zip(_axes(figure, 2), _two_metrics(convention), strict=True):
        groups = (100 * rows[metric].astype(float)).groupby(x)
        mean, spread = groups.mean(), groups.std().fillna(0)
        axes.errorbar(mean.index, mean, yerr=spread, color=_COLOURS["gd"], marker="D", capsize=3, linewidth=1.6)
        best = int(mean.argmax() if metric == "acc" else mean.argmin())
        axes.plot(mean.index[best], mean.iloc[best], "o", markersize=14, fillstyle="none", color="#000000")
        axes.set_xticks(list(mean.index))
        _tidy(axes, axis, label)
    size, n = int(rows["task_size"].iloc[0]), int(rows["seed"].nunique())
    figure.suptitle(f"{_title(dataset)}, task size {size}, GD+ext")
    return Picture(
        f"{name}-{dataset}",
        f"{title}: {_title(dataset)}",
        f"ACC and FGT of GD+ext against the {axis} at task size {size}; mean and standard deviation over {_seeds(n)}, "
        f"the best mean circled. {look_for}",
        figure,
    )


def paired_slopes(trials: pd.DataFrame, dataset: str, convention: str) -> Picture | None:
    """One line per seed through the methods."""
    chosen = [m for m in ("oracle", "gd+ext", "gd", "e2e+ext", "e2e", "baseline") if m in set(trials["method"])]
    counts = trials[trials["method"].isin(chosen)].groupby("task_size", observed=True)["method"].nunique()
    if len(chosen) < 2 or counts.empty:
        return None
    best = counts.index[counts == counts.max()]
    size = 10 if 10 in best else int(best[0])
    rows = trials[(trials["task_size"] == size) & trials["method"].isin(chosen)]
    chosen = [method for method in chosen[::-1] if method in set(rows["method"])]
    figure = Figure(figsize=(9.0, 3.8), layout="constrained")
    panels = _axes(figure, 2)
    seeds = sorted(rows["seed"].unique())
    for axes, (metric, label) in zip(panels, _two_metrics(convention), strict=True):
        wide = 100 * rows.pivot_table(index="seed", columns="method", values=metric, observed=True).reindex(
            columns=chosen
        )
        for k, (seed, values) in enumerate(wide.iterrows()):
            colour = _OTHERS[k % len(_OTHERS)] if len(seeds) <= 7 else "#0072B2"
            axes.plot(range(len(chosen)), values, "o-", color=colour, alpha=0.8, label=f"seed {seed}", linewidth=1.3)
        whole = wide.dropna()
        if len(whole) > 1:
            axes.plot(range(len(chosen)), whole.mean(), color="#000000", linewidth=2.4, label="mean of whole lines")
        axes.set_xticks(range(len(chosen)), [_label(rows, method) for method in chosen], rotation=20)
        _tidy(axes, "", label)
    handles, labels = panels[0].get_legend_handles_labels()
    shown = slice(None) if len(seeds) <= 7 else slice(len(seeds) - 1, None)
    figure.legend(handles[shown], labels[shown], loc="outside right center", frameon=False)
    figure.suptitle(f"{_title(dataset)}, task size {size}: seed by seed")
    return Picture(
        f"paired-{dataset}",
        f"Seed by seed: {_title(dataset)}",
        "A line for each seed: its methods share class order and first model. Parallel lines mean that methods differ "
        "by much the same on every seed, even where seeds differ; crossing lines mean that the order of methods "
        "depends on the seed.",
        figure,
    )


_COMPARED = ("baseline", "e2e", "gd", "gd+ext")


def _main_size(trials: pd.DataFrame) -> int:
    """The task size shown where one is enough: 10 as in the paper's ablations, or the one with most trials."""
    counts = trials["task_size"].value_counts()
    return 10 if 10 in counts.index else int(counts.index[0])


def accuracy_heat_maps(results: Results, trials: pd.DataFrame, dataset: str) -> Picture | None:
    """Mean accuracy after each stage on each task."""
    size = _main_size(trials)
    rows = trials[trials["task_size"] == size]
    methods = [m for m in _COMPARED if m in set(rows["method"])] or ordered(rows["method"])[:4]
    figure = Figure(figsize=(2.6 * len(methods) + 1.2, 3.2), layout="constrained")
    panels = _axes(figure, len(methods), sharey=True)
    ids = {method: list(rows.loc[rows["method"] == method, "trial_id"]) for method in methods}
    shown = results.stages[results.stages["trial_id"].isin([trial for part in ids.values() for trial in part])]
    by_trial = dict(list(shown.groupby("trial_id", observed=True)))
    image = None
    for axes, method in zip(panels, methods, strict=True):
        matrix = 100 * np.mean([accuracy_matrix(by_trial[trial]) for trial in ids[method]], axis=0)
        stages = len(matrix)
        extent = (0.5, stages + 0.5, stages + 0.5, 0.5)
        image = axes.imshow(matrix, vmin=0, vmax=100, cmap=_HEAT, extent=extent, interpolation="nearest")
        if stages <= 10:
            for s, r in np.argwhere(np.isfinite(matrix)).tolist():
                colour = "black" if matrix[s, r] > 55 else "white"
                axes.text(r + 1, s + 1, f"{matrix[s, r]:.0f}", ha="center", va="center", color=colour, fontsize=7)
        axes.set_title(_label(rows, method))
        axes.set_xlabel("task")
        step = max(1, stages // 5)
        axes.set_xticks(range(1, stages + 1, step))
        axes.set_yticks(range(1, stages + 1, step))
    panels[0].set_ylabel("after stage")
    if image is not None:
        figure.colorbar(image, ax=panels, label="accuracy (%)", shrink=0.8)
    return Picture(
        f"accuracy-{dataset}",
        f"Accuracy on each task after each stage: {_title(dataset)}, task size {size}",
        "Row s is the model after stage s, column r the test images of task r; mean over seeds. The diagonal is a task "
        "just learned. Look down a column to see it being forgotten, and for a last row that is even: a bright last "
        "column and dark others mean a model biased to its newest task.",
        figure,
    )


def confusion_matrices(results: Results, trials: pd.DataFrame, dataset: str) -> Picture | None:
    """What the last model of one seed takes for what, classes in the order learned."""
    size = _main_size(trials)
    rows = trials[trials["task_size"] == size]
    methods = [m for m in _COMPARED if m in set(rows["method"])] or ordered(rows["method"])[:4]
    seed = _shared_seed(rows, methods)
    rows = rows[(rows["seed"] == seed)].drop_duplicates("method").set_index("method")
    methods = [method for method in methods if method in rows.index]
    figure = Figure(figsize=(2.9 * len(methods) + 0.8, 3.3), layout="constrained")
    panels = _axes(figure, len(methods), sharey=True)
    image = None
    for axes, method in zip(panels, methods, strict=True):
        counts = results.rows("confusions", [str(rows.loc[method, "trial_id"])])
        if counts.empty:
            return None
        matrix, borders = confusion_matrix(counts)
        image = axes.imshow(100 * matrix, vmin=0, vmax=100, cmap=_COUNTS, interpolation="nearest")
        for border in borders[:-1]:
            axes.axhline(border - 0.5, color="white", linewidth=0.4, alpha=0.6)
            axes.axvline(border - 0.5, color="white", linewidth=0.4, alpha=0.6)
        axes.set_title(_plain(str(rows.loc[method, "method_title"])))
        axes.set_xlabel("predicted class")
    panels[0].set_ylabel("true class, in the order learned")
    if image is not None:
        figure.colorbar(image, ax=panels, label="of the true class (%)", shrink=0.8)
    return Picture(
        f"confusion-{dataset}",
        f"Confusion matrix of the last stage: {_title(dataset)}, task size {size}, seed {seed}",
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
    rows = trials[(trials["task_size"] == _main_size(trials)) & trials["method_external"].fillna(False).astype(bool)]
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
    panels = _axes(figure, len(stages), sharey=True, sharex=True)
    for axes, stage in zip(panels, stages, strict=True):
        axes.hist(values[samples["stage"] == stage], bins=list(bins), color="#0072B2")
        axes.set_title(f"stage {stage}", fontsize=10)
        _tidy(axes, "confidence" if probability else "logit", "")
    panels[0].set_ylabel("images")
    title, seed = _plain(str(trial["method_title"])), trial["seed"]
    figure.suptitle(f"{title}, seed {seed}: images sampled for previous classes")
    return Picture(
        f"confidence-{dataset}",
        f"Confidence of the sampled images: {_title(dataset)}",
        f"How sure the previous model was of the stream images that Algorithm 2 kept for previous classes "
        f"({trial['method_title']}, task size {trial['task_size']}, seed {seed}). More classes must share the model's "
        f"probability at later stages, so that the mass moves left; a pile at 1 at every stage means a model that is "
        f"sure of everything and cannot choose.",
        figure,
    )


def contact_sheet(results: Results, trials: pd.DataFrame, dataset: str, images: FindStream) -> Picture | None:
    """The most confident images that Algorithm 2 sampled for each class at the last stage."""
    trial = _sampling_trial(trials)
    stream = images(str(trial["stream"])) if trial is not None else None
    if trial is None or stream is None:
        return None
    samples = results.rows("samples", [str(trial["trial_id"])])
    if samples.empty:
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
    panels = _axes(figure, halves, height)
    for axes in panels:
        axes.set_axis_off()
    for k, (name, part) in enumerate(rows.items()):
        axes = panels[(k % height) * halves + k // height]
        strip = np.full((34, 34 * width, 3), 255, np.uint8)
        for column, position in enumerate(part["position"]):
            strip[1:33, 34 * column + 1 : 34 * column + 33] = pixels[int(position)]
        axes.imshow(strip, interpolation="nearest")
        axes.text(-6, 17, _plain(name), ha="right", va="center", fontsize=9)
    stage, title = int(last["stage"].iloc[0]), trial["method_title"]
    return Picture(
        f"samples-{dataset}",
        f"What Algorithm 2 sampled: {_title(dataset)}, stage {stage}",
        f"For each previous class the stream images that the previous model was most sure of ({title}, task size "
        f"{trial['task_size']}, seed {trial['seed']}), and some of the images taken at random. Look whether the images "
        f"of a row share something with its class: none of them is of that class, for the stream leaves those out.",
        figure,
        vector=False,
    )


def _class_name(results: Results, dataset: str, label: int) -> str:
    names = results.class_names.get(dataset, ())
    return names[label] if 0 <= label < len(names) else f"class {label}"
