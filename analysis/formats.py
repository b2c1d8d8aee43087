"""Tables as text: Markdown, LaTeX, CSV and HTML, all from one grid of cells."""

import html
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.published import dataset_title
from analysis.tables import Table, metric_title

_LATEX = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "±": r"$\pm$",
    "−": r"$-$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "Δ": r"$\Delta$",
    "×": r"$\times$",
}


@dataclass(frozen=True)
class Cell:
    """What is shown, what it is sorted by, and whether it is the best."""

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


def grids(table: Table) -> list[Grid]:
    """The wide form: a row per method, the printed value and the difference from it beside each cell.

    One grid for each data set; where there are printed values, one for each task size too, to keep them readable.
    """
    frame = table.frame
    order = {"cifar100": 0, "imagenet32": 1}
    datasets = sorted(frame["dataset"].unique(), key=lambda name: (order.get(name, 2), name))
    found = []
    for dataset in datasets:
        part = frame[frame["dataset"] == dataset]
        sizes = sorted(part["task_size"].unique())
        groups = [[size] for size in sizes] if part["printed"].notna().any() else [sizes]
        found += [_grid(table, part[part["task_size"].isin(group)], dataset) for group in groups]
    return found


def _grid(table: Table, frame: pd.DataFrame, dataset: str) -> Grid:
    keys = sorted({(size, metric) for size, metric in zip(frame["task_size"], frame["metric"], strict=True)})
    cells = {(row.method, row.task_size, row.metric): row for row in frame.itertuples()}
    known = frame[frame["printed"].notna()]
    with_printed = set(zip(known["task_size"], known["metric"], strict=True))
    same_n, one_size = frame["n"].nunique() == 1, frame["task_size"].nunique() == 1
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
                row += _cells(cells.get((method, *key)), with_n=not same_n, with_printed=key in with_printed)
            rows.append(tuple(row))
    place = dataset_title(dataset) + (f", task size {keys[0][0]}" if one_size else "")
    n = f", n = {frame['n'].iloc[0]}" if same_n else ""
    return Grid(f"{table.layout.title} ({place}), in %, mean ± standard deviation{n}", tuple(header), tuple(rows))


def _cells(row: object | None, *, with_n: bool, with_printed: bool) -> list[Cell]:
    if row is None:
        return [Cell("")] * (3 if with_printed else 1)
    text = f"{row.mean:.1f}" + (f" ± {row.sd:.1f}" if pd.notna(row.sd) else "")  # type: ignore[attr-defined]
    text += f" (n = {row.n})" if with_n else ""  # type: ignore[attr-defined]
    text += " †" if row.collapsed else ""  # type: ignore[attr-defined]
    found = [Cell(text, float(row.mean), bool(row.best))]  # type: ignore[attr-defined]
    if with_printed:
        known = pd.notna(row.printed)  # type: ignore[attr-defined]
        found.append(Cell(f"{row.printed:.1f} ± {row.printed_sd:.1f}" if known else "", _number(row.printed)))  # type: ignore[attr-defined]
        found.append(Cell(signed(row.difference, 1) if known else "", _number(row.difference)))  # type: ignore[attr-defined]
    return found


def _number(value: float) -> float | None:
    return None if pd.isna(value) else float(value)


def signed(value: float, digits: int) -> str:
    """With its sign; the minus is a real one."""
    return f"{round(value, digits) + 0.0:+.{digits}f}".replace("-", "−")


def frame_grid(frame: pd.DataFrame, title: str, names: dict[str, str] | None = None) -> Grid:
    """Any frame, a row per row; numbers sort as numbers."""
    names = names or {name: str(name) for name in frame.columns}
    rows = [tuple(_plain(value) for value in row) for row in frame[list(names)].itertuples(index=False, name=None)]
    return Grid(title, tuple(names.values()), tuple(rows))


def _plain(value: object) -> Cell:
    if isinstance(value, Cell):
        return value
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return Cell("")
    if isinstance(value, bool):
        return Cell("yes" if value else "")
    if isinstance(value, int | float) or hasattr(value, "item"):
        number = float(value)  # type: ignore[arg-type]
        return Cell(f"{number:g}" if number == int(number) else f"{number:.3g}", number)
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
    """Text that Markdown shows as it is."""
    return re.sub(r"([\\`*_|<>\[\]#])", r"\\\1", text)


def to_latex(table: Grid) -> str:
    """A booktabs tabular with its caption."""
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex(table.title)}}}",
        rf"\begin{{tabular}}{{l{'r' * (len(table.header) - 1)}}}",
        r"\toprule",
        " & ".join(latex(name) for name in table.header) + r" \\",
        r"\midrule",
    ]
    for row in table.rows:
        if table.is_heading(row):
            lines.append(rf"\multicolumn{{{len(table.header)}}}{{l}}{{\emph{{{latex(row[0].text)}}}}} \\")
        else:
            lines.append(" & ".join(rf"\textbf{{{latex(c.text)}}}" if c.bold else latex(c.text) for c in row) + r" \\")
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]) + "\n"


def latex(text: str) -> str:
    """Text that LaTeX shows as it is."""
    return "".join(_LATEX.get(character, character) for character in text)


def to_csv(table: Table) -> str:
    """The long form: a line per cell, at full precision."""
    seeds = [" ".join(map(str, seeds)) for seeds in table.frame["seeds"]]
    frame = table.frame.assign(seeds=seeds, setting=table.setting.label)
    return str(frame.to_csv(index=False))


def to_html(table: Grid, *, sortable: bool = True) -> str:
    """A table element; headers are buttons that sort it, where a script of the page makes them work."""

    def header(k: int, name: str) -> str:
        inside = f'<button type="button">{html.escape(name)}</button>' if sortable else html.escape(name)
        return f'<th scope="col"{"" if k else " class=first"}>{inside}</th>'

    rows = "".join(_html_row(table, row) for row in table.rows)
    head = "".join(header(k, name) for k, name in enumerate(table.header))
    kind = ' class="sortable"' if sortable else ""
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{html.escape(table.title)}"><table{kind}>'
        f"<caption>{html.escape(table.title)}</caption><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def _html_row(table: Grid, row: Sequence[Cell]) -> str:
    if table.is_heading(tuple(row)):
        return (
            f'<tr class="block"><th colspan="{len(table.header)}" scope="colgroup">{html.escape(row[0].text)}</th></tr>'
        )
    first, *others = row
    cells = "".join(_html_cell(cell) for cell in others)
    value = f' data-value="{first.value!r}"' if first.value is not None else ""
    return f'<tr><th scope="row"{value}>{html.escape(first.text)}</th>{cells}</tr>'


def _html_cell(cell: Cell) -> str:
    value = f' data-value="{cell.value!r}"' if cell.value is not None else ""
    text = html.escape(cell.text)
    return f"<td{value}>{f'<strong>{text}</strong>' if cell.bold else text}</td>"
