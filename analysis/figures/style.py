"""What the figures share: colours and markers of methods, labels, axes and rendering.

Colours of Table 1 are those of Okabe and Ito, others Tol's muted ones, which all kinds of colour vision distinguish;
methods differ by marker too.
"""

import io
import re
import zlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

from analysis.aggregate import at_main_size, ordered, uses_external
from gd_ray.methods import METHODS
from gd_ray.paper import METHODS as PAPERS_METHODS

_LOOKS = {
    **{"oracle": ("#000000", "*"), "baseline": ("#999999", "o"), "lwf": ("#56B4E9", "P"), "dr": ("#009E73", "s")},
    **{"e2e": ("#E69F00", "X"), "gd": ("#D55E00", "D")},
}
OTHER_COLOURS = ("#332288", "#CC6677", "#117733", "#AA4499", "#88CCEE", "#999933", "#882255", "#44AA99", "#DDCC77")
_OTHER_MARKERS = "vh^<>dp"
_FIRST = ("oracle", "baseline", "gd", "gd+ext")
_ROOM = 12
"""Methods that a figure has room for."""
_DPI = 130
ON_DARK = {"#332288": "#8f80e6", "#117733": "#3aa864", "#882255": "#cc5f92"}
"""Colours too dark for a dark page, and those that it has in their place."""
_LIGHTER = "".join(
    f'[style*="{kind}: {dark}"] {{ {kind}: {light} !important }}\n'
    for dark, light in ON_DARK.items()
    for kind in ("fill", "stroke")
)
_DARK = f"""<style>@media (prefers-color-scheme: dark) {{
svg {{ fill: #e6e9ed }} [style*="fill: #ffffff"] {{ fill: none !important }}
[style*="stroke: #000000"] {{ stroke: #e6e9ed !important }}
{_LIGHTER}}}</style>""".encode()
"""Makes a drawing fit a dark page: matplotlib leaves the fill of black text out, and names that of other things."""


@dataclass(frozen=True)
class ReportFigure:
    """A figure with its title and a caption of what it shows and what to look for."""

    name: str
    title: str
    caption: str
    figure: Figure


def render(figure: Figure) -> dict[str, bytes]:
    """Return a figure as 'svg' and 'png', the same bytes every time."""
    figure.dpi = _DPI
    if figure.get_layout_engine() is not None:
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # laid out once, not for each format
    png = io.BytesIO()
    FigureCanvasAgg(figure).print_png(png)  # type: ignore[no-untyped-call]
    return {"svg": _svg(figure), "png": png.getvalue()}


def _svg(figure: Figure) -> bytes:
    target = io.BytesIO()
    with matplotlib.rc_context({"svg.hashsalt": "gd_ray"}):
        FigureCanvasSVG(figure).print_svg(target, metadata={"Date": None})  # type: ignore[no-untyped-call]
    return target.getvalue()


def panels(figure: Figure) -> list[tuple[float, bytes]]:
    """Return the width and the SVG of each panel and legend of a rendered figure, for a page to arrange."""
    figure.dpi = 72  # the unit of SVG
    parts = [*figure.axes, *figure.legends]
    renderer = FigureCanvasAgg(figure).get_renderer()  # type: ignore[no-untyped-call]
    boxes = [part.get_tightbbox(renderer) for part in parts]
    for text in figure.texts:
        text.set_visible(False)
    images = []
    for part, box in zip(parts, boxes, strict=True):
        for other in parts:
            other.set_visible(other is part)
        left, bottom, width, height = (box or figure.bbox).padded(4).bounds
        view = f"{left:.1f} {figure.bbox.height - bottom - height:.1f} {width:.1f} {height:.1f}"
        size = f'width="{width:.1f}pt" height="{height:.1f}pt" viewBox="{view}"'
        image = re.sub(rb'width="[\d.]+pt" height="[\d.]+pt" viewBox="[^"]*"', size.encode(), _svg(figure), count=1)
        images.append((width, image.replace(b"</svg>", _DARK + b"</svg>")))
    return images


def line_style(trials: pd.DataFrame, method: str) -> dict[str, Any]:
    """Return the line of a method: solid if it learns with external data."""
    external = uses_external(trials[trials["method"] == method]).any()
    colour, marker = _look(method)
    line = "-" if external else "--"
    return {"linewidth": 1.6, "markersize": 5, "linestyle": line, "color": colour, "marker": marker}


def _look(method: str) -> tuple[str, str]:
    """Return the colour and marker of a method, the same in every figure, with and without external data."""
    family = method.partition("+")[0]
    if method in PAPERS_METHODS and family in _LOOKS:
        return _LOOKS[family]
    families = dict.fromkeys(name.partition("+")[0] for name in METHODS)
    others = [name for name in families if name not in _LOOKS]
    k = others.index(family) if family in others else zlib.crc32(method.encode())
    return OTHER_COLOURS[k % len(OTHER_COLOURS)], _OTHER_MARKERS[k % len(_OTHER_MARKERS)]


def shown_methods(trials: pd.DataFrame) -> list[str]:
    """Return as many methods as a figure has room for: unknown ones before those that come with the project."""
    methods = ordered(trials["method"])
    first = sorted(methods, key=lambda method: (method not in _FIRST, method in METHODS))[:_ROOM]
    return [method for method in methods if method in first]


def shown_trials(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the main task size, of as many methods as a figure has room for."""
    rows = at_main_size(trials)
    return rows[rows["method"].isin(shown_methods(rows))]


def left_out(trials: pd.DataFrame, shown: Collection[str], where: str) -> str:
    """Return a sentence for a caption that names the methods which a figure does not show."""
    names = [label_of(trials, method) for method in ordered(trials["method"]) if method not in shown]
    return f" Not shown: {', '.join(names)} (see analysis.load(RESULTS).{where})." if names else ""


def label_of(trials: pd.DataFrame, method: str) -> str:
    return plain(str(trials.loc[trials["method"] == method, "method_title"].iloc[0]))


def plain(text: str) -> str:
    """Escape text that matplotlib would read as mathematics."""
    return text.replace("$", r"\$")


def panels_of(figure: Figure, rows: int, columns: int) -> list[Axes]:
    return list(figure.subplots(rows, columns, squeeze=False).ravel())


def metric_panels(trials: pd.DataFrame, size: tuple[float, float]) -> tuple[Figure, list[tuple[Axes, str, str]]]:
    """Return a figure with a panel for ACC and one for FGT by the trials' convention: (axes, column, label) of each."""
    figure = Figure(figsize=size, layout="constrained")
    left, right = panels_of(figure, 1, 2)
    return figure, [(left, "acc", "ACC (%)"), (right, f"fgt_{trials['convention'].iloc[0]}", "FGT (%)")]


def style_axes(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def show_legend(figure: Figure, axes: Axes) -> None:
    """Name the lines beside the panels, if there are several."""
    handles, labels = axes.get_legend_handles_labels()
    if len(labels) > 1:
        figure.legend(handles, labels, loc="outside right center", frameon=False)


def seeds_text(trials: pd.DataFrame, what: str) -> str:
    """Return the number of seeds of a mean, and which means are over others: seeds differ by more than methods."""
    seeds = trials.groupby("method", observed=True)["seed"].apply(lambda values: tuple(sorted(set(values))))
    usual = max(seeds, key=lambda own: ((seeds == own).sum(), len(own)))
    names = [f"{label_of(trials, str(m))} {seed_numbers(own)}" for m, own in seeds.items() if own != usual]
    note = f" (unequal seeds: {', '.join(names)}; do not compare these {what}s)" if names else ""
    return f"{'one seed' if len(usual) == 1 else f'{len(usual)} seeds'}{note}"


def seed_numbers(seeds: Sequence[int]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
