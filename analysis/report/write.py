"""Write the report with its tables and figures, once or repeatedly while an experiment runs."""

import base64
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from analysis import aggregate
from analysis.aggregate import Setting
from analysis.figures import all_figures
from analysis.figures.comparison import by_memory
from analysis.figures.style import ReportFigure, panels, render
from analysis.formats import grids, markdown, to_csv, to_latex, to_markdown
from analysis.report.sections import render_page
from analysis.results import Results, load
from analysis.streams import FindStream, stream_finder
from analysis.tables import Table, all_tables
from gd_ray.errors import Unreachable, UserError
from gd_ray.storage import write_atomic

Step = Callable[[float, str], None]
"""Takes the share done and the name of the next step."""


def write_report(
    address: str,
    out: str | None = None,
    *,
    streams: Mapping[str, str] | None = None,
    refresh: int | None = None,
    on_step: Step = lambda *_: None,
) -> tuple[Path, Results]:
    """Write the report, and its tables and figures as files beside it; return its path and the results it shows."""
    target = _target(address, out)
    on_step(0.0, "reading results")
    results = load(address)
    on_step(0.3, "tables")
    settings = aggregate.settings(results)
    tables = all_tables(settings)
    _write_files(_beside(target, "tables"), _table_files(tables))
    on_step(0.4, "figures")
    figures = _figures(results, settings, stream_finder(results, streams or {}))
    shown: list[dict[str, Any]] = []
    files: dict[str, bytes] = {}
    for k, figure in enumerate(figures):
        on_step(0.5 + 0.4 * k / len(figures), figure.name)
        files |= {f"{figure.name}.{kind}": content for kind, content in render(figure.figure).items()}
        drawn = [(width, base64.b64encode(image).decode()) for width, image in panels(figure.figure)]
        shown.append({"name": figure.name, "title": figure.title, "caption": figure.caption, "panels": drawn})
    _write_files(_beside(target, "figures"), files)
    on_step(0.9, "page")
    write_atomic(str(target), render_page(results, settings, tables, shown, refresh).encode())
    on_step(1.0, "done")
    return target, results


def _figures(results: Results, settings: list[Setting], find_stream: FindStream) -> list[ReportFigure]:
    """Return every figure of every setting; of several settings each figure names its own."""
    figures = []
    for setting in settings:
        for figure in all_figures(results, setting, find_stream):
            if k := setting.number:
                title, caption = f"{figure.title} (setting {k})", f"Setting {k}: {setting.label}. {figure.caption}"
                figure = replace(figure, name=f"setting{k}-{figure.name}", title=title, caption=caption)
            figures.append(figure)
    return figures + by_memory(results, settings)


def _target(address: str, out: str | None) -> Path:
    """Return the path of the report: beside the results, or in the working directory for an object store."""
    target = Path(out) if out else Path("report.html") if "://" in address else Path(address, "report.html")
    if not out and "://" not in address and not Path(address).is_dir():
        raise UserError(f"results {address!r} is not a folder; give the folder that 'gd-ray run --results' wrote to.")
    if target.is_dir():
        raise UserError(f"report {str(target)!r} is a folder; name the HTML file with --out.")
    try:
        for folder in ("tables", "figures"):
            _beside(target, folder).mkdir(parents=True, exist_ok=True)
        TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise UserError(
            f"report {str(target)!r} cannot be written with its tables and figures ({error.strerror}: "
            f"{error.filename!r}); name another file with --out."
        ) from error
    return target


def _beside(target: Path, what: str) -> Path:
    """Return a folder of the report's own, because a folder may hold several reports."""
    return target.parent / (what if target.stem == "report" else f"{target.stem}-{what}")


def watch(write: Callable[[int | None], Results], seconds: int) -> None:
    """Write the report repeatedly until no trial runs or waits any more.

    `write` takes the seconds after which the page reloads itself; the last page does not.
    """
    over = is_over(write(seconds))
    while True:
        time.sleep(seconds)
        with suppress(Unreachable):  # storage that does not answer for a moment; the next round tries again
            if over:
                write(None)
                return
            over = is_over(write(seconds))


def is_over(results: Results) -> bool:
    return not results.states["state"].isin(["running", "waiting"]).any()


def _table_files(tables: list[Table]) -> dict[str, bytes]:
    """Return each table in three formats, with its settings and notes, so that a file is clear on its own."""
    files = {}
    for table in tables:
        prefix = f"setting{table.setting.number}-" if table.setting.number else ""
        name = f"{prefix}table-{table.layout.key}"
        parts, notes = grids(table), [f"Settings: {table.setting.label}.", *table.notes]
        files[f"{name}.csv"] = to_csv(table).encode()
        files[f"{name}.md"] = "\n".join([*map(to_markdown, parts), *(f"{markdown(note)}\n" for note in notes)]).encode()
        files[f"{name}.tex"] = "\n".join([*map(to_latex, parts), *(f"% {note}" for note in notes), ""]).encode()
    return files


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write the files of a report; remove those of an earlier one that it no longer has, and no others."""
    index = folder / ".written"
    earlier = index.read_text().splitlines() if index.exists() else []
    for name in {*earlier} - {*files}:
        (folder / Path(name).name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    index.write_text("\n".join(files))
