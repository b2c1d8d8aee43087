"""Tables as text: Markdown, LaTeX and CSV, all from one grid of cells."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from analysis.aggregate import task_text
from analysis.published import TRIALS, dataset_title
from analysis.tables import Table, metric_title

_NAMED = {"\\": "backslash", "~": "asciitilde", "^": "asciicircum", "<": "less", ">": "greater", "|": "bar"}
_SYMBOLS = {"±": r"\pm", "−": "-", "↑": r"\uparrow", "↓": r"\downarrow", "Δ": r"\Delta", "×": r"\times"}
_LATEX = str.maketrans(
    {character: rf"\{character}" for character in "&%$#_{}"}
    | {character: rf"\text{name}{{}}" for character, name in _NAMED.items()}
    | {character: f"${name}$" for character, name in _SYMBOLS.items()}
)


@dataclass(frozen=True)
class Cell:
    """The text of a cell, the number it is sorted by, and whether it is the best."""

    text: str
    value: float | None = None
    bold: bool = False


@dataclass(frozen=True)
class Grid:
    """A header and rows; a row of one cell is a heading over the rows below it."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def is_heading(self, row: tuple[Cell, ...]) -> bool:
        return len(row) == 1 and len(self.header) > 1

    @cached_property
    def text_columns(self) -> frozenset[int]:
        """Columns that have no number."""
        columns = zip(*(row for row in self.rows if not self.is_heading(row)), strict=True)
        return frozenset(k for k, cells in enumerate(columns) if all(cell.value is None for cell in cells))


def grids(table: Table) -> list[Grid]:
    """Return the wide form: a row per method, the printed value and the difference from it beside each cell.

    One grid for each data set; with printed values, one for each task size too, to keep them readable.
    """
    frame, order = table.frame, list(TRIALS)
    datasets = sorted(frame["dataset"].unique(), key=lambda name: (order.index(name) if name in order else 9, name))
    parts = []
    for dataset in datasets:
        part = frame[frame["dataset"] == dataset]
        sizes = sorted(part["task_size"].unique())
        groups = [[size] for size in sizes] if part["printed"].notna().any() else [sizes]
        parts += [_grid(table, part[part["task_size"].isin(group)], dataset) for group in groups]
    return parts


def _grid(table: Table, frame: pd.DataFrame, dataset: str) -> Grid:
    keys = sorted(set(zip(frame["task_size"], frame["metric"], strict=True)))
    cells = {(row.method, row.task_size, row.metric): row for row in frame.itertuples()}
    known = frame[frame["printed"].notna()]
    with_printed = set(zip(known["task_size"], known["metric"], strict=True))
    usual_n, one_size = int(frame["n"].mode()[0]), frame["task_size"].nunique() == 1
    header = ["method"]
    for size, metric in keys:
        name = metric_title(metric, table.setting.convention)
        name = name if one_size else f"task size {size}: {name}"
        header += [name, "paper", "Δ"] if (size, metric) in with_printed else [name]
    rows: list[tuple[Cell, ...]] = []
    for block in dict.fromkeys(frame["block"]):
        if block:
            rows.append((Cell(block),))
        part = frame[frame["block"] == block]
        for method, title in part[["method", "title"]].drop_duplicates().itertuples(index=False):
            row = [Cell(title)]
            for key in keys:
                row += _cells(cells.get((method, *key)), usual_n=usual_n, with_printed=key in with_printed)
            rows.append(tuple(row))
    place = dataset_title(dataset) + (f", {task_text(table.setting.trials, keys[0][0])}" if one_size else "")
    n = f", n = {usual_n}{'' if (frame['n'] == usual_n).all() else ' where no other is given'}"
    return Grid(f"{table.layout.title} ({place}), mean ± standard deviation in %{n}", tuple(header), tuple(rows))


def _cells(row: Any, *, usual_n: int, with_printed: bool) -> list[Cell]:
    if row is None:
        return [Cell("")] * (3 if with_printed else 1)
    text = mean_sd(row.mean, row.sd) + (f" (n = {row.n})" if row.n != usual_n else "") + (" †" if row.collapsed else "")
    cells = [Cell(text, float(row.mean), bool(row.best))]
    if with_printed and pd.isna(row.printed):
        cells += [Cell("")] * 2
    elif with_printed:
        cells += [Cell(mean_sd(row.printed, row.printed_sd), float(row.printed)), number_cell(row.difference, "+.1f")]
    return cells


def number(value: float, form: str = ".1f") -> str:
    """Format a number with a typographic minus; what rounds to zero has no sign."""
    text = f"{value:{form}}".replace("-", "−")
    return text if re.search("[1-9]", text) else text.replace("−", "+" if "+" in form else "")


def mean_sd(mean: float, sd: float, form: str = ".1f") -> str:
    """Format a mean and its standard deviation, which a single value does not have."""
    return number(mean, form) if pd.isna(sd) else f"{number(mean, form)} ± {sd:{form}}"


def number_cell(value: float, form: str = ".1f") -> Cell:
    return Cell(number(value, form), float(value))


def interval(low: float, high: float, form: str = "+.1f") -> str:
    return "" if pd.isna(low) else f"{number(low, form)} to {number(high, form)}"


def frame_grid(frame: pd.DataFrame, title: str, names: dict[str, str] | None = None) -> Grid:
    """Return any frame as a grid; numbers sort as numbers."""
    names = names or {name: str(name) for name in frame.columns}
    rows = [tuple(_plain(value) for value in row) for row in frame[list(names)].itertuples(index=False, name=None)]
    return Grid(title, tuple(names.values()), tuple(rows))


def _plain(value: Any) -> Cell:
    if isinstance(value, Cell):
        return value
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return Cell("")
    if isinstance(value, bool):
        return Cell("yes" if value else "")
    if isinstance(value, int | float) or hasattr(value, "item"):
        return number_cell(value, "g" if value == int(value) else ".3g")
    return Cell(str(value))


def to_markdown(table: Grid) -> str:
    lines = [f"**{markdown(table.title)}**", ""]
    lines.append(_piped(markdown(name) for name in table.header))
    lines.append(_piped([":---", *["---:"] * (len(table.header) - 1)]))
    for row in table.rows:
        if table.is_heading(row):
            lines.append(_piped([f"*{markdown(row[0].text)}*", *[""] * (len(table.header) - 1)]))
        else:
            lines.append(_piped(f"**{markdown(c.text)}**" if c.bold else markdown(c.text) for c in row))
    return "\n".join(lines) + "\n"


def _piped(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def markdown(text: str) -> str:
    """Escape text for Markdown."""
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", text)


def to_latex(table: Grid) -> str:
    """Return a booktabs tabular with its caption."""
    columns = len(table.header)
    lines = [
        "\\begin{table}\n\\centering",
        rf"\caption{{{latex(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (columns - 1)}}}",
        "\\toprule\n" + " & ".join(latex(name) for name in table.header) + " \\\\\n\\midrule",
    ]
    for row in table.rows:
        if table.is_heading(row):
            lines.append(rf"\multicolumn{{{columns}}}{{l}}{{\emph{{{latex(row[0].text)}}}}} \\")
        else:
            lines.append(" & ".join(rf"\textbf{{{latex(c.text)}}}" if c.bold else latex(c.text) for c in row) + r" \\")
    return "\n".join([*lines, "\\bottomrule\n\\end{tabular}\n\\end{table}\n"])


def latex(text: str) -> str:
    """Escape text for LaTeX."""
    return text.translate(_LATEX)


def to_csv(table: Table) -> str:
    """Return the long form: a line per cell, at full precision."""
    seeds = [" ".join(map(str, seeds)) for seeds in table.frame["seeds"]]
    frame = table.frame.assign(seeds=seeds, setting=table.setting.label)
    return str(frame.to_csv(index=False))
