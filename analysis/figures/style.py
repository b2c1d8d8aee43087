"""What the figures share: colours and markers of methods, labels, axes and rendering.

Colours are those of Okabe and Ito, which all kinds of colour vision distinguish; methods differ by marker too.
"""

import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gd_ray.paper import METHODS as PAPERS_METHODS

COLOURS = {
    "oracle": "#000000",
    "baseline": "#999999",
    "lwf": "#56B4E9",
    "dr": "#009E73",
    "e2e": "#E69F00",
    "gd": "#D55E00",
}
MARKERS = {"oracle": "*", "baseline": "o", "lwf": "P", "dr": "s", "e2e": "X", "gd": "D"}
OTHER_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999999")
_DPI = 130


@dataclass(frozen=True)
class ReportFigure:
    """A figure with its title and caption."""

    name: str
    title: str
    caption: str
    """What it shows and what to look for."""
    figure: Figure
    vector: bool = True
    """Whether it is small as a vector drawing; images are not."""


def render(figure: Figure) -> dict[str, bytes]:
    """Return a figure as 'svg' and 'png', the same bytes every time."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")  # laid out once, not for each format
    images = {}
    for kind, metadata in (("svg", {"Date": None}), ("png", None)):
        target = io.BytesIO()
        with matplotlib.rc_context({"svg.hashsalt": "gd_ray"}):
            figure.savefig(target, format=kind, dpi=_DPI, metadata=metadata)
        images[kind] = target.getvalue()
    return images


def line_style(method: str, others: list[str]) -> dict[str, object]:
    """Return the line of a method; `others` are those without a colour of their own."""
    base, _, external = method.partition("+")
    style: dict[str, object] = {"linewidth": 1.6, "markersize": 5}
    if method not in others:
        return style | {"color": COLOURS[base], "marker": MARKERS[base], "linestyle": "-" if external else "--"}
    k = others.index(method)
    return style | {"color": OTHER_COLOURS[k % len(OTHER_COLOURS)], "marker": "vh^<>dp"[k % 7], "linestyle": "-"}


def without_colour(methods: Iterable[str]) -> list[str]:
    return [method for method in methods if method not in PAPERS_METHODS or method.partition("+")[0] not in COLOURS]


def label_of(trials: pd.DataFrame, method: str) -> str:
    return plain(str(trials.loc[trials["method"] == method, "method_title"].iloc[0]))


def plain(text: str) -> str:
    """Escape text that matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def panels_of(figure: Figure, columns: int, rows: int = 1, *, sharex: bool = False, sharey: bool = False) -> list[Axes]:
    return list(figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False).ravel())


def metric_panels(convention: str, size: tuple[float, float]) -> tuple[Figure, list[tuple[Axes, str, str]]]:
    """Return a figure with a panel for ACC and one for FGT: (axes, column, label) of each."""
    figure = Figure(figsize=size, layout="constrained")
    left, right = panels_of(figure, 2)
    return figure, [(left, "acc", "ACC (%)"), (right, f"fgt_{convention}", "FGT (%)")]


def style_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def seeds_text(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


def seed_mismatch_note(trials: pd.DataFrame, what: str) -> str:
    """Return a note for a caption: means over different seeds must not be compared, for seeds differ by more."""
    seeds = trials.groupby("method", observed=True)["seed"].apply(lambda values: tuple(sorted(values)))
    fewer = seeds[seeds != max(seeds, key=len)]
    if fewer.empty:
        return ""
    names = ", ".join(f"{label_of(trials, str(m))} only {seed_numbers(own)}" for m, own in fewer.items())
    return f" (unequal seeds: {names}; do not compare these {what}s)"


def seed_numbers(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
