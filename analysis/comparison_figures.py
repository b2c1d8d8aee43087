"""Figures that compare methods and settings over all their seeds."""

import re

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis.drawing import (
    COLOURS,
    MARKERS,
    OTHER_COLOURS,
    Picture,
    label_of,
    look_of,
    ordered,
    panels_of,
    seed_numbers,
    seeds_text,
    tidy,
    two_metrics,
    uneven,
    without_colour,
)
from analysis.published import BEST_OOD_RATIO, dataset_title
from analysis.results import Results
from gd_ray.methods import PAPERS_METHODS
from gd_ray.spec import EXTERNAL_FIELDS

_BANDS = 5
"""Methods up to which bands of spread can be told apart."""
_HEAD = 0.02
"""Of the range of all means: an arrow shorter than its own head would seem to point the wrong way."""
_DISTANCE = re.compile(r"-distance-(\d+)$")


def incremental(
    results: Results, trials: pd.DataFrame, dataset: str, task_size: int, convention: str
) -> Picture | None:
    """ACC and FGT against the number of trained classes."""
    methods = [
        name for name in ordered(trials["method"]) if name.partition("+")[0] in COLOURS or name not in PAPERS_METHODS
    ]
    rows = results.curves[results.curves["stage"] > 1].merge(trials[["trial_id", "method"]], on="trial_id")
    if not methods or rows["classes_seen"].nunique() < 2:
        return None
    trials = trials[trials["method"].isin(methods)]
    others = without_colour(methods)
    n = int(trials.groupby("method", observed=True)["seed"].nunique().max())
    with_bands = n > 1 and len(methods) <= _BANDS
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    panels = panels_of(figure, 2)
    for axes, (metric, label) in zip(panels, two_metrics(convention), strict=True):
        for method in methods:
            groups = rows[rows["method"] == method].groupby("classes_seen")[metric]
            mean, spread = 100 * groups.mean(), 100 * groups.std()
            look = look_of(method, others)
            axes.plot(mean.index, mean, label=label_of(trials, method), **look)  # type: ignore[arg-type]
            if with_bands and spread.notna().all():
                colour = str(look["color"])
                axes.fill_between(mean.index, mean - spread, mean + spread, color=colour, alpha=0.10, linewidth=0)
        if rows["classes_seen"].nunique() <= 10:
            axes.set_xticks(sorted(rows["classes_seen"].unique()))
        tidy(axes, "trained classes", label)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", frameon=False)
    figure.suptitle(f"{dataset_title(dataset)}, task size {task_size}")
    return Picture(
        f"incremental-{dataset}-{task_size}",
        f"As classes are added: {dataset_title(dataset)}, task size {task_size}",
        f"Average incremental accuracy (left, higher is better) and average forgetting (right, lower is better) over "
        f"the stages so far, against the number of trained classes; mean over {seeds_text(n)}{uneven(trials, 'line')}"
        f"{', bands of one standard deviation' if with_bands else ''}. Of the paper's methods, solid lines learn with "
        f"external data, dashed ones without. Look for lines that stay high on the left and low on the right to the "
        f"end: a method that only wins early has not stopped forgetting.",
        figure,
    )


def improvement(trials: pd.DataFrame, dataset: str, convention: str) -> Picture | None:
    """Arrows from each method without external data to the same with it."""
    pairs = [(name, f"{name}+ext") for name in ("lwf", "dr", "e2e", "gd")]
    found = set(trials["method"])
    ends = [method for method in ("oracle", "baseline") if method in found]
    pairs = [pair for pair in pairs if found.issuperset(pair)]
    shared = {methods: _on_shared_seeds(trials, methods) for methods in [*pairs, tuple(ends)]}
    pairs = [pair for pair in pairs if len(shared[pair])]
    if not pairs:
        return None
    columns = ["acc", f"fgt_{convention}"]
    means = pd.concat(
        100 * shared[key].groupby(["method", "task_size"], observed=True)[columns].mean()
        for key in [*pairs, tuple(ends)]
        if len(shared[key])
    )
    seeds = sorted({int(seed) for pair in pairs for seed in shared[pair]["seed"]})
    sizes = sorted(trials["task_size"].unique())
    figure = Figure(figsize=(9.6, 3.9), layout="constrained")
    panels = panels_of(figure, 2)
    for axes, (metric, label) in zip(panels, two_metrics(convention), strict=True):
        for k, (before, after) in enumerate(pairs):
            look = look_of(before, [])
            for place, size in enumerate(sizes):
                if (before, size) not in means.index or (after, size) not in means.index:
                    continue
                x = place + (k - (len(pairs) - 1) / 2) * 0.18
                start, end = means.loc[(before, size), metric], means.loc[(after, size), metric]
                if abs(end - start) > _HEAD * (means[metric].max() - means[metric].min()):
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
        for method in ends:
            if method in means.index.get_level_values(0):
                line = means.loc[method].reindex(sizes)[metric]
                look = look_of(method, [])
                axes.plot(range(len(sizes)), line, color=str(look["color"]), marker=str(look["marker"]), linestyle=":")
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set_xlim(-0.6, len(sizes) - 0.4)
        axes.margins(y=0.08)
        tidy(axes, "task size", label)
    names = [m for m in ends if m in means.index.get_level_values(0)] + [pair[0] for pair in pairs]
    handles = [Line2D([], [], color=COLOURS[m], marker=MARKERS[m], linestyle=":" if m in ends else "") for m in names]
    figure.legend(handles, [label_of(trials, m) for m in names], loc="outside right center", frameon=False)
    figure.suptitle(f"{dataset_title(dataset)}: what external data change")
    return Picture(
        f"improvement-{dataset}",
        f"What external data change: {dataset_title(dataset)}",
        "Each arrow goes from a method without external data (marker) to the same method with it (head), at every task "
        f"size, over the seeds that both have (of {seed_numbers(tuple(seeds))}); a marker without an arrow hardly "
        "changes. Look for long arrows: up in ACC and down in FGT. The paper finds short ones for LwF, DR and E2E and "
        "long ones for GD.",
        figure,
    )


def _on_shared_seeds(trials: pd.DataFrame, methods: tuple[str, ...]) -> pd.DataFrame:
    """These methods at each task size that has them all, on the seeds that all of them have there."""
    kept = []
    for _, group in trials[trials["method"].isin(methods)].groupby("task_size", observed=True):
        counts = group.groupby("seed")["method"].nunique()
        kept.append(group[group["seed"].isin(counts.index[counts == len(methods)])])
    return pd.concat(kept) if kept else trials.iloc[:0]


def by_ood_ratio(trials: pd.DataFrame, dataset: str, convention: str) -> Picture | None:
    """ACC and FGT of GD+ext against the OOD ratio."""
    cifar, imagenet = (
        [BEST_OOD_RATIO[name, metric] for metric in ("acc", "fgt")] for name in ("cifar100", "imagenet32")
    )
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
        look_for=f"The paper finds the best ACC at {cifar[0]} on CIFAR-100 and {imagenet[0]} on ImageNet, and the best "
        f"FGT at {cifar[1]} and {imagenet[1]}: look for a maximum on the left and a minimum on the right that are not "
        f"at the same place.",
    )


def by_distance(trials: pd.DataFrame, dataset: str, convention: str) -> Picture | None:
    """ACC and FGT of GD+ext against the hierarchical distance of the stream."""
    rows = trials[trials["method"] == "gd+ext"]
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
    """Rows with those values of the other fields for which the swept one takes the most values."""
    fields = ["task_size", *(name for name in EXTERNAL_FIELDS if name != swept)]
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
    figure = Figure(figsize=(9.0, 3.6), layout="constrained")
    for axes, (metric, label) in zip(panels_of(figure, 2), two_metrics(convention), strict=True):
        groups = (100 * rows[metric].astype(float)).groupby(x)
        mean, spread = groups.mean(), groups.std().fillna(0)
        axes.errorbar(mean.index, mean, yerr=spread, color=COLOURS["gd"], marker="D", capsize=3, linewidth=1.6)
        best = int(mean.argmax() if metric == "acc" else mean.argmin())
        axes.plot(mean.index[best], mean.iloc[best], "o", markersize=14, fillstyle="none", color="#000000")
        axes.set_xticks(list(mean.index))
        tidy(axes, axis, label)
    size, n = int(rows["task_size"].iloc[0]), int(rows["seed"].nunique())
    figure.suptitle(f"{dataset_title(dataset)}, task size {size}, GD+ext")
    return Picture(
        f"{name}-{dataset}",
        f"{title}: {dataset_title(dataset)}",
        f"ACC and FGT of GD+ext against the {axis} at task size {size}; mean and standard deviation over "
        f"{seeds_text(n)}, the best mean circled. {look_for}",
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
    panels = panels_of(figure, 2)
    seeds = sorted(rows["seed"].unique())
    for axes, (metric, label) in zip(panels, two_metrics(convention), strict=True):
        wide = 100 * rows.pivot_table(index="seed", columns="method", values=metric, observed=True).reindex(
            columns=chosen
        )
        for k, (seed, values) in enumerate(wide.iterrows()):
            colour = OTHER_COLOURS[k % len(OTHER_COLOURS)] if len(seeds) <= 7 else "#0072B2"
            name = f"seed {seed}" if len(seeds) <= 7 else "each seed"
            axes.plot(range(len(chosen)), values, "o-", color=colour, alpha=0.8, label=name, linewidth=1.3)
        whole = wide.dropna()
        if len(whole) > 1:
            axes.plot(range(len(chosen)), whole.mean(), color="#000000", linewidth=2.4, label="mean of whole lines")
        axes.set_xticks(range(len(chosen)), [label_of(rows, method) for method in chosen], rotation=20)
        tidy(axes, "", label)
    handles, labels = panels[0].get_legend_handles_labels()
    shown = slice(None) if len(seeds) <= 7 else slice(len(seeds) - 1, None)
    figure.legend(handles[shown], labels[shown], loc="outside right center", frameon=False)
    figure.suptitle(f"{dataset_title(dataset)}, task size {size}: seed by seed")
    return Picture(
        f"paired-{dataset}",
        f"Seed by seed: {dataset_title(dataset)}",
        "A line for each seed: its methods share the class order, and the first model with those that use external "
        "data as they do. Parallel lines mean that methods differ by much the same on every seed, even where seeds "
        "differ; crossing lines mean that the order of methods depends on the seed.",
        figure,
    )
