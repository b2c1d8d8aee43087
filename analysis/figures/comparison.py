"""Figures that compare methods and settings over all their seeds."""

import re
from typing import NamedTuple

import pandas as pd
from matplotlib.lines import Line2D

from analysis.aggregate import ordered, task_text
from analysis.figures.style import (
    COLOURS,
    MARKERS,
    OTHER_COLOURS,
    ReportFigure,
    label_of,
    line_style,
    metric_panels,
    seed_mismatch_note,
    seed_numbers,
    seeds_text,
    style_axes,
    without_colour,
)
from analysis.published import BEST_OOD_RATIO, dataset_title
from analysis.results import Results
from gd_ray.paper import METHODS as PAPERS_METHODS
from gd_ray.spec import EXTERNAL_FIELDS

_BANDS = 5
"""Up to this many methods have bands of spread; more would cover each other."""
_ARROW_HEAD = 0.02
"""Least length of an arrow, of the range of all means: a shorter one would seem to point the wrong way."""
_DISTANCE = re.compile(r"-distance-(\d+)$")


class _Sweep(NamedTuple):
    """A field that is varied, and the texts of its figure."""

    field: str
    name: str
    axis: str
    title: str
    look_for: str


_OOD_RATIO = _Sweep(
    *("ood_ratio", "ood-ratio", "OOD ratio", "Share of out-of-distribution images"),
    "The paper finds the best ACC at {} on CIFAR-100 and {} on ImageNet, and the best FGT at {} and {}: look for a "
    "maximum on the left and a minimum on the right at different ratios.".format(*BEST_OOD_RATIO.values()),
)
_DISTANCES = _Sweep(
    *("stream", "distance", "hierarchical distance", "How near the stream is to the learned classes"),
    "Larger distances mean streams whose classes are less like those learned. Look for ACC falling and FGT rising "
    "with distance, and for even the farthest stream to help.",
)


def incremental(
    results: Results, trials: pd.DataFrame, dataset: str, task_size: int, convention: str
) -> ReportFigure | None:
    """Draw ACC and FGT against the number of trained classes."""
    methods = [
        name for name in ordered(trials["method"]) if name.partition("+")[0] in COLOURS or name not in PAPERS_METHODS
    ]
    rows = results.curves[results.curves["stage"] > 1].merge(trials[["trial_id"]], on="trial_id")
    if not methods or rows["classes_seen"].nunique() < 2:
        return None
    trials = trials[trials["method"].isin(methods)]
    others = without_colour(methods)
    n = int(trials.groupby("method", observed=True)["seed"].nunique().max())
    with_bands = n > 1 and len(methods) <= _BANDS
    figure, panels = metric_panels(convention, (9.6, 3.9))
    for axes, metric, label in panels:
        for method in methods:
            groups = rows[rows["method"] == method].groupby("classes_seen")[metric]
            mean, spread = 100 * groups.mean(), 100 * groups.std()
            style = line_style(method, others)
            axes.plot(mean.index, mean, label=label_of(trials, method), **style)  # type: ignore[arg-type]
            if with_bands and spread.notna().all():
                colour = str(style["color"])
                axes.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.10, linewidth=0)
        if rows["classes_seen"].nunique() <= 10:
            axes.set_xticks(sorted(rows["classes_seen"].unique()))
        style_axes(axes, "trained classes", label)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    place = f"{dataset_title(dataset)}, {task_text(trials, task_size)}"
    figure.suptitle(place)
    return ReportFigure(
        f"incremental-{dataset}-{task_size}",
        f"As classes are added: {place}",
        f"Average incremental accuracy (left, higher is better) and average forgetting (right, lower is better) over "
        f"the stages so far, against the number of trained classes; mean over {seeds_text(n)}"
        f"{seed_mismatch_note(trials, 'line')}{', bands of one standard deviation' if with_bands else ''}. Of the "
        f"paper's methods, solid lines learn with external data, dashed ones without. Look for lines that stay high on "
        f"the left and low on the right to the end: a method that only wins early has not stopped forgetting.",
        figure,
    )


def improvement(trials: pd.DataFrame, dataset: str, convention: str) -> ReportFigure | None:
    """Draw arrows from each method without external data to the same with it."""
    present = set(trials["method"])
    ends = tuple(method for method in ("oracle", "baseline") if method in present)
    pairs = [pair for name in ("lwf", "dr", "e2e", "gd") if present.issuperset(pair := (name, f"{name}+ext"))]
    shared = {methods: _on_shared_seeds(trials, methods) for methods in [*pairs, ends]}
    pairs = [pair for pair in pairs if len(shared[pair])]
    if not pairs:
        return None
    columns = ["acc", f"fgt_{convention}"]
    means = pd.concat(
        100 * shared[key].groupby(["method", "task_size"], observed=True)[columns].mean()
        for key in [*pairs, ends]
        if len(shared[key])
    )
    ends = tuple(method for method in ends if method in means.index.get_level_values(0))
    seeds = sorted({int(seed) for pair in pairs for seed in shared[pair]["seed"]})
    sizes = sorted(trials["task_size"].unique())
    figure, panels = metric_panels(convention, (9.6, 3.9))
    for axes, metric, label in panels:
        least = _ARROW_HEAD * (means[metric].max() - means[metric].min())
        for k, (before, after) in enumerate(pairs):
            colour = COLOURS[before]
            arrow = {"arrowstyle": "-|>", "color": colour, "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
            for place, size in enumerate(sizes):
                if (before, size) not in means.index or (after, size) not in means.index:
                    continue
                x = place + (k - (len(pairs) - 1) / 2) * 0.18
                start, end = means.loc[(before, size), metric], means.loc[(after, size), metric]
                if abs(end - start) > least:
                    axes.annotate("", (x, end), (x, start), arrowprops=arrow)
                axes.plot(x, start, marker=MARKERS[before], color=colour, markersize=6, zorder=3)
                axes.plot(x, end, alpha=0)  # arrows alone do not widen the axes
        for method in ends:
            line = means.loc[method].reindex(sizes)[metric]
            axes.plot(range(len(sizes)), line, color=COLOURS[method], marker=MARKERS[method], linestyle=":")
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set_xlim(-0.6, len(sizes) - 0.4)
        axes.margins(y=0.08)
        style_axes(axes, "task size", label)
    names = [*ends, *(before for before, _ in pairs)]
    handles = [Line2D([], [], color=COLOURS[m], marker=MARKERS[m], linestyle=":" if m in ends else "") for m in names]
    figure.legend(handles, [label_of(trials, m) for m in names], loc="outside right center", frameon=False)
    figure.suptitle(f"{dataset_title(dataset)}: what external data change")
    return ReportFigure(
        f"improvement-{dataset}",
        f"What external data change: {dataset_title(dataset)}",
        "Each arrow points from a method without external data (marker) to the same method with it (head), at every "
        f"task size, over the seeds that both have (of {seed_numbers(seeds)}); a marker without an arrow hardly "
        "changes. Look for long arrows: up in ACC and down in FGT. The paper finds short ones for LwF, DR and E2E and "
        "long ones for GD.",
        figure,
    )


def _on_shared_seeds(trials: pd.DataFrame, methods: tuple[str, ...]) -> pd.DataFrame:
    """Return these methods at each task size that has them all, on the seeds that all of them have there."""
    kept = []
    for _, group in trials[trials["method"].isin(methods)].groupby("task_size", observed=True):
        counts = group.groupby("seed")["method"].nunique()
        kept.append(group[group["seed"].isin(counts.index[counts == len(methods)])])
    return pd.concat(kept) if kept else trials.iloc[:0]


def by_ood_ratio(trials: pd.DataFrame, dataset: str, convention: str) -> ReportFigure | None:
    """Draw ACC and FGT of GD+ext against the OOD ratio."""
    rows = trials[trials["method"] == "gd+ext"]
    return _sweep(rows, rows["ood_ratio"].astype(float), _OOD_RATIO, dataset, convention)


def by_distance(trials: pd.DataFrame, dataset: str, convention: str) -> ReportFigure | None:
    """Draw ACC and FGT of GD+ext against the hierarchical distance of the stream."""
    rows = trials[trials["method"] == "gd+ext"]
    distance = rows["stream"].astype(str).str.extract(_DISTANCE, expand=False).dropna()
    return _sweep(rows.loc[distance.index], distance.astype(float), _DISTANCES, dataset, convention)


def _main_others(rows: pd.DataFrame, swept: str) -> "pd.Series[bool]":
    """Return the rows with those values of the other fields for which the swept one takes the most values."""
    fields = ["task_size", *(name for name in EXTERNAL_FIELDS if name != swept)]
    if rows.empty:
        return pd.Series(True, rows.index)
    widest = rows.astype({swept: object}).groupby(fields, observed=True)[swept].nunique().idxmax()
    return (rows[fields] == list(widest if isinstance(widest, tuple) else (widest,))).all(axis=1)


def _sweep(
    rows: pd.DataFrame, x: "pd.Series[float]", sweep: _Sweep, dataset: str, convention: str
) -> ReportFigure | None:
    keep = _main_others(rows, sweep.field)
    rows, x = rows[keep], x[keep]
    # Seeds differ by more than points of a sweep do: only seeds that all points have may be averaged.
    while x.nunique() > 1:
        points = x.groupby(rows["seed"]).nunique()
        if (points == x.nunique()).any():
            break
        fewest = rows["seed"].groupby(x).nunique().idxmin()
        rows, x = rows[x != fewest], x[x != fewest]
    if x.nunique() < 2:
        return None
    shared = rows["seed"].isin(points.index[points == x.nunique()])
    rows, x = rows[shared], x[shared]
    figure, panels = metric_panels(convention, (9.0, 3.6))
    for axes, metric, label in panels:
        groups = (100 * rows[metric].astype(float)).groupby(x)
        mean, spread = groups.mean(), groups.std().fillna(0)
        axes.errorbar(mean.index, mean, yerr=spread, color=COLOURS["gd"], marker="D", capsize=3, linewidth=1.6)
        best = int(mean.argmax() if metric == "acc" else mean.argmin())
        axes.plot(mean.index[best], mean.iloc[best], "o", markersize=14, fillstyle="none", color="#000000")
        axes.set_xticks(list(mean.index))
        style_axes(axes, sweep.axis, label)
    size, n = int(rows["task_size"].iloc[0]), int(rows["seed"].nunique())
    figure.suptitle(f"{dataset_title(dataset)}, task size {size}, GD+ext")
    return ReportFigure(
        f"{sweep.name}-{dataset}",
        f"{sweep.title}: {dataset_title(dataset)}",
        f"ACC and FGT of GD+ext against the {sweep.axis} at task size {size}; mean and standard deviation over "
        f"{seeds_text(n)}, the best mean circled. {sweep.look_for}",
        figure,
    )


def paired_slopes(trials: pd.DataFrame, dataset: str, convention: str) -> ReportFigure | None:
    """Draw one line per seed through the methods."""
    chosen = [m for m in ("baseline", "e2e", "e2e+ext", "gd", "gd+ext", "oracle") if m in set(trials["method"])]
    counts = trials[trials["method"].isin(chosen)].groupby("task_size", observed=True)["method"].nunique()
    if len(chosen) < 2 or counts.empty:
        return None
    best = counts.index[counts == counts.max()]
    size = 10 if 10 in best else int(best[0])
    rows = trials[(trials["task_size"] == size) & trials["method"].isin(chosen)]
    chosen = [method for method in chosen if method in set(rows["method"])]
    few = rows["seed"].nunique() <= len(OTHER_COLOURS)
    figure, panels = metric_panels(convention, (9.0, 3.8))
    for axes, metric, label in panels:
        wide = 100 * rows.pivot_table(index="seed", columns="method", values=metric, observed=True).reindex(
            columns=chosen
        )
        for k, (seed, values) in enumerate(wide.iterrows()):
            name = f"seed {seed}" if few else "each seed" if k == 0 else "_"  # matplotlib leaves names with _ out
            axes.plot(
                values.to_numpy(), "o-", color=OTHER_COLOURS[k if few else 0], alpha=0.8, label=name, linewidth=1.3
            )
        whole = wide.dropna()
        if len(whole) > 1:
            axes.plot(whole.mean().to_numpy(), color="#000000", linewidth=2.4, label="mean of whole lines")
        axes.set_xticks(range(len(chosen)), [label_of(rows, method) for method in chosen], rotation=20)
        style_axes(axes, "", label)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside right center", frameon=False)
    figure.suptitle(f"{dataset_title(dataset)}, task size {size}: seed by seed")
    return ReportFigure(
        f"paired-{dataset}",
        f"Seed by seed: {dataset_title(dataset)}",
        "A line for each seed: its methods share the class order, and those that use external data alike share the "
        "first model. Parallel lines mean that methods differ by much the same on every seed, even where seeds differ; "
        "crossing lines mean that the order of methods depends on the seed.",
        figure,
    )
