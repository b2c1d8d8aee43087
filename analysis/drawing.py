"""What the figures share: colours and markers of methods, labels and axes.

Colours are those of Okabe and Ito, told apart by all kinds of colour vision; methods differ by marker too.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from gd_ray.methods import METHODS, PAPERS_METHODS

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
_STYLE = {"linewidth": 1.6, "markersize": 5}


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


def ordered(methods: Iterable[str]) -> list[str]:
    """The paper's methods in its order, then the user's own by name."""
    found = set(methods)
    return [name for name in METHODS if name in found] + sorted(found - set(METHODS))


def look_of(method: str, others: list[str]) -> dict[str, object]:
    base, _, external = method.partition("+")
    if method not in others:
        return {"color": COLOURS[base], "marker": MARKERS[base], "linestyle": "-" if external else "--", **_STYLE}
    index = others.index(method)
    return {
        "color": OTHER_COLOURS[index % len(OTHER_COLOURS)],
        "marker": "vh^<>dp"[index % 7],
        "linestyle": "-",
        **_STYLE,
    }


def without_colour(methods: Iterable[str]) -> list[str]:
    return [method for method in methods if method not in PAPERS_METHODS or method.partition("+")[0] not in COLOURS]


def label_of(trials: pd.DataFrame, method: str) -> str:
    return plain(str(trials.loc[trials["method"] == method, "method_title"].iloc[0]))


def plain(text: str) -> str:
    """Text that matplotlib does not take for mathematics."""
    return text.replace("$", r"\$")


def panels_of(figure: Figure, columns: int, rows: int = 1, *, sharex: bool = False, sharey: bool = False) -> list[Axes]:
    return list(figure.subplots(rows, columns, sharex=sharex, sharey=sharey, squeeze=False).ravel())


def tidy(axes: Axes, x: str, y: str) -> None:
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    axes.grid(alpha=0.25, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def two_metrics(convention: str) -> tuple[tuple[str, str], tuple[str, str]]:
    return ("acc", "ACC (%)"), (f"fgt_{convention}", "FGT (%)")


def seeds_text(n: int) -> str:
    return "one seed" if n == 1 else f"{n} seeds"


def uneven(trials: pd.DataFrame, what: str) -> str:
    """Seeds differ by more than methods do, so that means over different seeds must not be compared."""
    seeds = trials.groupby("method", observed=True)["seed"].apply(lambda values: tuple(sorted(values)))
    fewer = seeds[seeds != max(seeds, key=len)]
    if fewer.empty:
        return ""
    names = ", ".join(f"{label_of(trials, str(m))} only {seed_numbers(found)}" for m, found in fewer.items())
    return f" where they are there (not for all: {names}; compare no {what} with those)"


def seed_numbers(seeds: tuple[int, ...]) -> str:
    return f"{'seed' if len(seeds) == 1 else 'seeds'} {', '.join(map(str, seeds))}"
