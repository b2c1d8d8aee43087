"""Figures that compare methods and settings over all their seeds."""

import re
from dataclasses import replace

import pandas as pd

from analysis.aggregate import Setting, at_main_size, by_coreset_size, ordered, place, task_text, uses_external
from analysis.conventions_table import trial_measures
from analysis.figures import style
from analysis.figures.style import ReportFigure, label_of, line_style
from analysis.published import BEST_OOD_RATIO, dataset_title
from analysis.results import Results
from gd_ray.spec import EXTERNAL_FIELDS

_BANDS = 5
"""Up to this many methods have bands of spread; more would cover each other."""
_ARROW_HEAD = 0.02
"""Least length of an arrow, of the range of all means: a shorter one would seem to point the wrong way."""
_DISTANCE = re.compile(r"-distance-(\d+)$")


def incremental(results: Results, trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw ACC and FGT against the number of trained classes."""
    methods = style.shown_methods(trials)
    shown = trials[trials["method"].isin(methods)]
    rows = results.curves[results.curves["stage"] > 1].merge(shown[["trial_id"]], on="trial_id")
    if rows["classes_seen"].nunique() < 2:
        return None
    with_bands = shown["seed"].nunique() > 1 and len(methods) <= _BANDS
    figure, panels = style.metric_panels(trials, (9.6, 3.9))
    for axes, metric, label in panels:
        for method in methods:
            groups = rows[rows["method"] == method].groupby("classes_seen")[metric]
            mean, spread = 100 * groups.mean(), 100 * groups.std()
            look = line_style(shown, method)
            axes.plot(mean.index, mean, label=label_of(shown, method), **look)
            if with_bands and spread.notna().all():
                band = {"color": look["color"], "alpha": 0.10, "linewidth": 0}
                axes.fill_between(mean.index, mean - spread, mean + spread, **band)
        if rows["classes_seen"].nunique() <= 10:
            axes.set_xticks(sorted(rows["classes_seen"].unique()))
        style.style_axes(axes, "trained classes", label)
    style.show_legend(figure, panels[0][0])
    figure.suptitle(place(trials))
    return ReportFigure(
        f"incremental-{dataset}-{trials['task_size'].iloc[0]}",
        f"As classes are added: {place(trials)}",
        f"ACC (higher is better) and FGT (lower is better) over the stages so far, against the number of trained "
        f"classes; mean over {style.seeds_text(shown, 'line')}"
        f"{', bands of one standard deviation' if with_bands else ''}. Solid lines learn with external data, dashed "
        f"ones without. Look for lines that stay high in ACC and low in FGT to the end."
        f"{style.left_out(trials, methods, 'curves')}",
        figure,
    )


def improvement(trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw arrows from each method without external data to the same with it, on the seeds that both have."""
    metrics = ["acc", f"fgt_{trials['convention'].iloc[0]}"]
    wide = 100 * trials.pivot_table(index=["task_size", "seed"], columns="method", values=metrics, observed=True)
    present = ordered(trials["method"])
    ends = tuple(name for name in ("oracle", "baseline") if name in present)
    groups = [(name, f"{name}+ext") for name in present if f"{name}+ext" in present] + ([ends] if ends else [])
    shared = {methods: wide.loc[:, pd.IndexSlice[:, list(methods)]].dropna() for methods in groups}
    means = {methods: values.groupby("task_size").mean() for methods, values in shared.items() if len(values)}
    pairs = [methods for methods in means if methods != ends]
    if not pairs:
        return None
    sizes = sorted(trials["task_size"].unique())
    width = min(0.18, 0.8 / len(pairs))
    figure, panels = style.metric_panels(trials, (9.6, 3.9))
    for axes, metric, label in panels:
        values = pd.concat([group[metric].stack() for group in means.values()])
        least = _ARROW_HEAD * (values.max() - values.min())
        for method in ends if ends in means else ():
            line = means[ends][metric].reindex(sizes)[method]
            dots = ":" if len(sizes) > 1 else ""
            look = line_style(trials, method) | {"linestyle": dots, "label": label_of(trials, method)}
            axes.plot(range(len(sizes)), line, **look)
        for k, pair in enumerate(pairs):
            look = line_style(trials, pair[0]) | {"linestyle": "", "label": label_of(trials, pair[0])}
            arrow = {"arrowstyle": "-|>", "color": look["color"], "linewidth": 2, "shrinkA": 0, "shrinkB": 0}
            ends_of = means[pair][metric][list(pair)].set_axis(["start", "end"], axis=1)
            x = [sizes.index(size) + (k - (len(pairs) - 1) / 2) * width for size in ends_of.index]
            axes.plot(x, ends_of["start"], **look, zorder=3)
            axes.plot(x, ends_of["end"], linestyle="")  # arrows alone do not widen the axes
            for at, (start, end) in zip(x, ends_of.to_numpy(), strict=True):
                if abs(end - start) > least:
                    axes.annotate("", (at, end), (at, start), arrowprops=arrow)
        axes.set_xticks(range(len(sizes)), [str(size) for size in sizes])
        axes.set_xlim(-0.6, len(sizes) - 0.4)
        axes.margins(y=0.08)
        style.style_axes(axes, "task size", label)
    style.show_legend(figure, panels[0][0])
    figure.suptitle(f"{dataset_title(dataset)}: what external data change")
    seeds = sorted({int(seed) for pair in pairs for seed in shared[pair].index.get_level_values("seed")})
    names = " and ".join(label_of(trials, method) for method in ends)
    bounds = f" {names}{', dotted,' if len(sizes) > 1 else ''} for comparison." if ends in means else ""
    return ReportFigure(
        f"improvement-{dataset}",
        f"What external data change: {dataset_title(dataset)}",
        "Each arrow points from a method without external data (marker) to the same method with it (head), mean over "
        f"the seeds that both have (of {style.seed_numbers(seeds)}); a pair without an arrow changes by less than "
        f"{_ARROW_HEAD:.0%} of the range of the means.{bounds} "
        "Look for long arrows, up in ACC and down in FGT. The paper finds short ones for LwF, DR and E2E and long ones "
        "for GD.",
        figure,
    )


def by_ood_ratio(trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw ACC and FGT against the OOD ratio."""
    rows = trials[uses_external(trials)]
    best = "best ACC at {} on CIFAR-100 and {} on ImageNet, and the best FGT at {} and {}"
    return _sweep(
        rows.assign(x=rows["ood_ratio"].astype(float)),
        field="ood_ratio",
        name=f"ood-ratio-{dataset}",
        axis="OOD ratio",
        title="Share of out-of-distribution images",
        look_for=f"The paper finds the {best.format(*BEST_OOD_RATIO.values())}.",
    )


def by_distance(trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw ACC and FGT against the hierarchical distance of the stream."""
    rows = trials[uses_external(trials)]
    distance = rows["stream"].astype(str).str.extract(_DISTANCE, expand=False).astype(float)
    return _sweep(
        rows.assign(x=distance).dropna(subset="x"),
        field="stream",
        name=f"distance-{dataset}",
        axis="hierarchical distance",
        title="How near the stream is to the learned classes",
        look_for="At larger distances the classes of the stream are less like those learned. Look for ACC falling and "
        "FGT rising.",
    )


def by_memory(results: Results, settings: list[Setting]) -> list[ReportFigure]:
    """Draw ACC and FGT against the images and models that are kept, where the size of the coreset varies."""
    return [figure for part in by_coreset_size(settings) if (figure := _memory_sweep(results, part)) is not None]


def _memory_sweep(results: Results, trials: pd.DataFrame) -> ReportFigure | None:
    rows = trial_measures(results, trials)
    known = rows["memory"].notna().all()
    counted = "the images kept and the model's room in uncompressed images" if known else "the size of the coreset"
    numbers = sorted(trials["setting"].unique())
    figure = _sweep(
        rows.assign(x=rows["memory" if known else "coreset_size"].astype(float).round()),
        field="coreset_size",
        name=f"settings{'-'.join(map(str, numbers))}-memory-{trials['dataset'].iloc[0]}",
        axis="memory in images",
        title="Accuracy against memory",
        look_for=f"Memory is {counted}. Look for methods that are as good with less of it.",
    )
    if figure is None:
        return None
    for axes in figure.figure.axes:
        ticks = axes.get_xticks()
        axes.set_xscale("log")
        axes.set_xticks(ticks, [f"{tick:,.0f}" for tick in ticks])
        axes.minorticks_off()
    return replace(figure, caption=f"Settings {', '.join(map(str, numbers))}: {figure.caption}")


def _main_others(rows: pd.DataFrame, swept: str) -> pd.DataFrame:
    """Return the rows with those values of the other fields for which the swept one takes the most values."""
    fields = ["task_size", *(name for name in EXTERNAL_FIELDS if name != swept)]
    if rows.empty:
        return rows
    values = rows.groupby(["method", *fields], observed=True)["x"].nunique().reset_index()
    return rows.merge(values.loc[[values["x"].idxmax()], fields], on=fields)


def _on_shared_seeds(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the points of one method on seeds that all of them have, because seeds differ by more than points do."""
    while rows["x"].nunique() > 1:
        points = rows.groupby("seed")["x"].nunique()
        if (whole := points.index[points == rows["x"].nunique()]).size:
            return rows[rows["seed"].isin(whole)]
        rows = rows[rows["x"] != rows.groupby("x")["seed"].nunique().idxmin()]
    return rows.iloc[:0]


def _sweep(rows: pd.DataFrame, *, field: str, name: str, axis: str, title: str, look_for: str) -> ReportFigure | None:
    """Draw ACC and FGT against the column x, which follows from the values of a field."""
    rows = _main_others(rows, field)
    parts = {name: _on_shared_seeds(rows[rows["method"] == name]) for name in ordered(rows["method"])}
    parts = {name: part for name, part in parts.items() if len(part)}
    if not parts:
        return None
    shown, rows = pd.concat(parts.values()), rows[rows["method"].isin(list(parts))]
    figure, panels = style.metric_panels(shown, (9.0, 3.6))
    for axes, metric, label in panels:
        for method, part in parts.items():
            groups = (100 * part[metric].astype(float)).groupby(part["x"])
            mean, spread = groups.mean(), groups.std().fillna(0)
            look = line_style(shown, method) | {"label": label_of(shown, method)}
            axes.errorbar(mean.index, mean, yerr=spread, capsize=3, **look)
            best = int(mean.argmax() if metric == "acc" else mean.argmin())
            axes.plot(mean.index[best], mean.iloc[best], "o", markersize=14, fillstyle="none", color="#000000")
        axes.set_xticks(sorted(shown["x"].unique()))
        style.style_axes(axes, axis, label)
    style.show_legend(figure, panels[0][0])
    names = ", ".join(label_of(shown, method) for method in parts)
    tasks = task_text(shown, shown["task_size"].iloc[0])
    figure.suptitle(f"{place(shown)}, {names}")
    lost = ", ".join(f"{value:g}" for value in sorted({*rows["x"]} - {*shown["x"]}))
    without = f" Without {lost}: no seed in common." if lost else ""
    return ReportFigure(
        name,
        f"{title}: {dataset_title(shown['dataset'].iloc[0])}",
        f"ACC and FGT of {names} against the {axis} at {tasks}; mean and standard deviation over "
        f"{style.seeds_text(shown, 'line')}, the best mean circled.{without} "
        f"{look_for}",
        figure,
    )


def paired_slopes(trials: pd.DataFrame, dataset: str) -> ReportFigure | None:
    """Draw one line per seed through the methods."""
    rows = at_main_size(trials)
    methods = ordered(rows["method"])
    if len(methods) < 2 or rows["seed"].nunique() < 2:
        return None
    few = rows["seed"].nunique() <= len(style.OTHER_COLOURS)
    figure, panels = style.metric_panels(trials, (9.6, 1.6 + 0.22 * len(methods)))
    for axes, metric, label in panels:
        wide = 100 * rows.pivot_table(index="seed", columns="method", values=metric, observed=True)[methods]
        places = range(len(methods))
        for k, (seed, values) in enumerate(wide.iterrows()):
            name = f"seed {seed}" if few else "each seed" if k == 0 else "_"  # matplotlib leaves names with _ out
            colour = style.OTHER_COLOURS[k if few else 0]
            axes.plot(values, places, "o-", color=colour, alpha=0.8, label=name, linewidth=1.3, markersize=4)
        whole = wide.dropna()
        if len(whole) > 1:
            axes.plot(whole.mean(), places, color="#000000", linewidth=2.4, label="mean")
        axes.set_yticks(places, [label_of(rows, method) for method in methods])
        axes.invert_yaxis()
        style.style_axes(axes, label, "")
    style.show_legend(figure, panels[0][0])
    figure.suptitle(f"{place(rows)}: seed by seed")
    mean = "; the thick line is the mean of the seeds that have every method" if len(whole) > 1 else ""
    return ReportFigure(
        f"paired-{dataset}",
        f"Seed by seed: {place(rows)}",
        f"A line for each seed through its methods, which share the order of classes{mean}. Parallel lines mean that "
        "methods differ by much the same on every seed, crossing ones that the order of methods depends on the seed."
        f"{style.left_out(trials, methods, 'trials')}",
        figure,
    )
