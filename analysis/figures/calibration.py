"""Figures of the head's confidence: how far it can be trusted, and what it makes of classes still to be learned."""

from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from analysis.aggregate import ordered, place
from analysis.conventions_table import histograms
from analysis.figures import style
from analysis.figures.style import ReportFigure, label_of, line_style
from analysis.measures import reliability
from analysis.results import Results

_LEAST = 0.01
"""Share of the images that a range of confidence needs to be drawn: of a few, accuracy is chance."""
_COLUMNS = 4
Histograms = dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]


def calibration_figures(results: Results, trials: pd.DataFrame, dataset: str) -> list[ReportFigure]:
    """Draw both figures of one task size, where the confidences of a stage are stored."""
    rows = style.shown_trials(trials).astype({"trial_id": str})
    stored = results.rows("confidences", rows["trial_id"].tolist())
    if stored.empty:
        return []
    stored = stored.astype({"trial_id": str})
    rows = rows[rows["trial_id"].isin(stored["trial_id"])]
    ids = rows.groupby("method", observed=True)["trial_id"].agg(list)
    pooled = {m: histograms(stored[stored["trial_id"].isin(ids[m])]) for m in ordered(rows["method"])}
    figures = [_reliability(pooled, rows, dataset), _seen_and_unseen(pooled, rows, dataset)]
    note = style.left_out(trials, list(pooled), "rows('confidences')")
    return [replace(figure, caption=figure.caption + note) for figure in figures if figure is not None]


def _reliability(pooled: Histograms, rows: pd.DataFrame, dataset: str) -> ReportFigure:
    figure = Figure(figsize=(6.4, 4.2), layout="constrained")
    (axes,) = style.panels_of(figure, 1, 1)
    axes.plot([0, 100], [0, 100], color="#000000", linewidth=1.2, linestyle=":", label="calibrated")
    for method, (counts, sums) in pooled.items():
        (right, wrong), confidence = counts[-1, :2], sums[-1, :2].sum(axis=0)
        images, accuracy, mean = reliability(right, wrong, confidence)
        shown = images >= _LEAST * images.sum()
        look = line_style(rows, method) | {"label": label_of(rows, method)}
        axes.plot(100 * mean[shown], 100 * accuracy[shown], **look)
    style.style_axes(axes, "mean confidence (%)", "accuracy (%)")
    style.show_legend(figure, axes)
    return ReportFigure(
        f"reliability-{dataset}",
        f"How far confidence can be trusted: {place(rows)}",
        f"Accuracy of the head against its mean confidence after the last stage, in 15 equal ranges of confidence "
        f"(those with less than 1% of the images are left out); over all test images of "
        f"{style.seeds_text(rows, 'line')}. On the dotted line confidence is "
        f"as high as accuracy; below it the head is too sure.",
        figure,
    )


def _seen_and_unseen(pooled: Histograms, rows: pd.DataFrame, dataset: str) -> ReportFigure | None:
    groups = {"seen": slice(0, 2), "still to be learned": slice(2, 3)}
    if not any(counts[:, 2].any() for counts, _ in pooled.values()):
        return None
    columns = min(_COLUMNS, len(pooled))
    lines = -(-len(pooled) // columns)
    figure = Figure(figsize=(2.3 * columns + 0.8, 2.3 * lines + 0.6), layout="constrained")
    panels = style.panels_of(figure, lines, columns)
    for axes in panels[len(pooled) :]:
        axes.remove()
    for axes, (method, (counts, sums)) in zip(panels, pooled.items(), strict=False):
        for (name, part), line, colour in zip(groups.items(), ("o-", "s--"), ("#0072B2", "#D55E00"), strict=True):
            images = counts[:, part].sum(axis=(1, 2))
            stages = np.flatnonzero(images)
            mean = 100 * sums[stages, part].sum(axis=(1, 2)) / images[stages]
            axes.plot(stages + 1, mean, line, label=name, color=colour, markersize=4)
        axes.set_title(label_of(rows, method), fontsize=10)
        style.style_axes(axes, "after stage", "confidence (%)")
        axes.set_ylim(0, 102)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, frameon=False)
    return ReportFigure(
        f"confidence-{dataset}",
        f"Confidence on classes seen and on classes still to be learned: {place(rows)}",
        f"Mean confidence of the head on test images of the classes seen and of those that later stages learn, after "
        f"each stage; over all test images of {style.seeds_text(rows, 'panel')}. Where lines meet, "
        f"mean confidence does not separate what a model has learned from what it has not; the table 'Other "
        f"conventions' has AUROC.",
        figure,
    )
