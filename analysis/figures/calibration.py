"""Figures of the head's confidence: how far it can be trusted, and what it makes of classes still to be learned."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.aggregate import ordered, task_text
from analysis.conventions_table import histograms
from analysis.figures.single_trial import main_size
from analysis.figures.style import (
    ReportFigure,
    label_of,
    line_style,
    panels_of,
    seed_mismatch_note,
    seeds_text,
    style_axes,
    without_colour,
)
from analysis.measures import reliability
from analysis.published import dataset_title
from analysis.results import Results
from gd_ray.paper import METHODS as PAPERS_METHODS

_COMPARED = ("oracle", "baseline", "gd", "gd+ext")
"""The paper's methods that are shown beside those that it does not have."""
_MOST = 8
_LEAST = 0.01
"""Share of the images that a range of confidence needs to be drawn: of a few, accuracy is chance."""
_COLUMNS = 4
Histograms = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


def calibration_figures(results: Results, trials: pd.DataFrame, dataset: str) -> list[ReportFigure]:
    """Draw both figures of one task size, where the confidences of a stage are stored."""
    size = main_size(trials)
    rows = trials[trials["task_size"] == size]
    names = ordered(rows["method"])
    chosen = [m for m in names if m in _COMPARED or m not in PAPERS_METHODS][:_MOST] or names[:_MOST]
    rows = rows[rows["method"].isin(chosen)].astype({"trial_id": str})
    stored = results.rows("confidences", rows["trial_id"].tolist())
    if stored.empty:
        return []
    stored = stored.astype({"trial_id": str})
    rows = rows[rows["trial_id"].isin(stored["trial_id"])]
    ids = rows.groupby("method", observed=True)["trial_id"].agg(list)
    pooled = {m: histograms(stored[stored["trial_id"].isin(ids[m])]) for m in chosen if m in ids.index}
    place = f"{dataset_title(dataset)}, {task_text(rows, size)}"
    figures = [_reliability(pooled, rows, dataset, place), _seen_and_unseen(pooled, rows, dataset, place)]
    return [figure for figure in figures if figure is not None]


def _reliability(pooled: Histograms, rows: pd.DataFrame, dataset: str, place: str) -> ReportFigure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    (axes,) = panels_of(figure, 1)
    axes.plot([0, 100], [0, 100], color="#999999", linewidth=1, linestyle=":", label="calibrated")
    others = without_colour(pooled)
    for method, (counts, sums) in pooled.items():
        (right, wrong), confidence = counts[-1, :2], sums[-1, :2].sum(axis=0)
        images, accuracy, mean = reliability(right, wrong, confidence)
        shown = images >= _LEAST * images.sum()
        label = label_of(rows, method)
        axes.plot(100 * mean[shown], 100 * accuracy[shown], label=label, **line_style(method, others))  # type: ignore[arg-type]
    style_axes(axes, "mean confidence (%)", "accuracy (%)")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right center", frameon=False)
    n = int(rows.groupby("method", observed=True)["seed"].nunique().max())
    return ReportFigure(
        f"reliability-{dataset}",
        f"How far confidence can be trusted: {place}",
        f"Accuracy of the head against its mean confidence after the last stage, in 15 equal ranges of confidence "
        f"(those with less than 1% of the images are left out); over all test images of {seeds_text(n)}"
        f"{seed_mismatch_note(rows, 'line')}. On the dotted line confidence is "
        f"as high as accuracy; below it the head is too sure.",
        figure,
    )


def _seen_and_unseen(pooled: Histograms, rows: pd.DataFrame, dataset: str, place: str) -> ReportFigure | None:
    groups = {"seen": slice(0, 2), "still to be learned": slice(2, 3)}
    if not any(counts[:, 2].any() for counts, _ in pooled.values()):
        return None
    columns = min(_COLUMNS, len(pooled))
    lines = -(-len(pooled) // columns)
    figure = Figure(figsize=(2.3 * columns + 0.8, 2.3 * lines + 0.6), layout="constrained")
    panels = panels_of(figure, columns, lines, sharex=True, sharey=True)
    for axes in panels[len(pooled) :]:
        axes.set_visible(False)
    for axes, (method, (counts, sums)) in zip(panels, pooled.items(), strict=False):
        for (name, part), style, colour in zip(groups.items(), ("o-", "s--"), ("#0072B2", "#D55E00"), strict=True):
            images = counts[:, part].sum(axis=(1, 2))
            stages = np.flatnonzero(images)
            mean = 100 * sums[stages, part].sum(axis=(1, 2)) / images[stages]
            axes.plot(stages + 1, mean, style, label=name, color=colour, markersize=4)
        axes.set_title(label_of(rows, method), fontsize=10)
        style_axes(axes, "after stage", "")
        axes.set_ylim(0, 102)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    for axes in panels[::columns]:
        axes.set_ylabel("mean confidence (%)")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    n = int(rows.groupby("method", observed=True)["seed"].nunique().max())
    return ReportFigure(
        f"confidence-{dataset}",
        f"Confidence on classes seen and on classes still to be learned: {place}",
        f"Mean confidence of the head on test images of the classes seen and of those that later stages learn, after "
        f"each stage; over all test images of {seeds_text(n)}{seed_mismatch_note(rows, 'panel')}. Where lines meet, "
        f"mean confidence does not tell what a model has learned from what it has not; the table 'Other conventions' "
        f"has AUROC.",
        figure,
    )
