"""The report: one HTML file, and its tables and figures as files beside it; written once, or again and again."""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import uuid4

from analysis import page
from analysis.drawing import Picture
from analysis.figures import all_pictures
from analysis.formats import grids, markdown, to_csv, to_latex, to_markdown
from analysis.report_page import build_page
from analysis.results import Results, load
from analysis.settings import Setting, settings
from analysis.streams import FindStream, stream_finder
from analysis.tables import Table, all_tables
from gd_ray.errors import Unreachable, UserError

Step = Callable[[float, str], None]
"""Told the share done and what comes next."""


def _silent(_: float, __: str) -> None:
    """Tells nobody."""


def write_report(
    address: str,
    out: str | None = None,
    *,
    streams: Mapping[str, str] | None = None,
    refresh: int | None = None,
    on_step: Step = _silent,
) -> tuple[Path, Results]:
    """Writes the report, and its tables and figures as files beside it; gives back its path and what it shows."""
    target = _target(address, out)
    on_step(0.0, "reading results")
    results = load(address)
    on_step(0.3, "tables")
    found = settings(results)
    tables = all_tables(found)
    _write_files(_beside(target, "tables"), _table_files(found, tables))
    on_step(0.4, "figures")
    pictures = _pictures(results, found, stream_finder(results, streams or {}))
    drawn: list[str] = []
    files: dict[str, bytes] = {}
    for k, (name, shown) in enumerate(pictures.items()):
        on_step(0.5 + 0.4 * k / len(pictures), name)
        images = page.rendered(shown.figure)
        files |= {f"{name}.{kind}": content for kind, content in images.items()}
        drawn.append(page.picture(shown, images))
    _write_files(_beside(target, "figures"), files)
    on_step(0.9, "page")
    text = build_page(results, found, tables, "".join(drawn), refresh)
    temporary = _temporary(target)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(target)
    on_step(1.0, "done")
    return target, results


def _pictures(results: Results, found: list[Setting], finder: FindStream) -> dict[str, Picture]:
    """Every figure of every setting by the name of its file; where there are several, it says which it belongs to."""
    if len(found) == 1:
        return {shown.name: shown for shown in all_pictures(results, found[0], finder)}
    return {
        f"setting{k + 1}-{shown.name}": replace(
            shown,
            title=f"{shown.title} (setting {k + 1})",
            caption=f"Setting {k + 1}: {setting.label}. {shown.caption}",
        )
        for k, setting in enumerate(found)
        for shown in all_pictures(results, setting, finder)
    }


def _target(address: str, out: str | None) -> Path:
    """Beside the results; in the working directory where they are in an object store."""
    target = Path(out) if out else Path("report.html") if "://" in address else Path(address, "report.html")
    if not out and "://" not in address and not Path(address).is_dir():
        raise UserError(f"results {address!r} is no folder; give the folder that 'gd-ray run --results' wrote to.")
    if target.is_dir():
        raise UserError(f"report {str(target)!r} is a folder; name the HTML file with --out.")
    try:
        for folder in ("tables", "figures"):
            _beside(target, folder).mkdir(parents=True, exist_ok=True)
        probe = _temporary(target)
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"report {str(target)!r} cannot be written with its tables and figures ({error.strerror}: "
            f"{error.filename!r}); name another file with --out."
        ) from error
    return target


def _temporary(target: Path) -> Path:
    """A name that no other report of these results takes at the same time."""
    return target.with_name(f".{target.name}.{uuid4().hex}.tmp")


def _beside(target: Path, what: str) -> Path:
    """A folder of the report's own: several reports may lie in one place."""
    return target.parent / (what if target.stem == "report" else f"{target.stem}-{what}")


def watch(write: Callable[[int | None], Results], seconds: int) -> None:
    """Writes the report again and again until every trial of the ledgers is done or has failed.

    `write` is given the seconds after which the page reloads itself; the last page does not.
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
    return not results.expected["state"].isin(["started", "waiting"]).any()


def _table_files(found: list[Setting], tables: list[Table]) -> dict[str, bytes]:
    """Each table in three forms, with its notes: who reads a file alone must not take it for another setting's."""
    files = {}
    for table in tables:
        prefix = f"setting{found.index(table.setting) + 1}-" if len(found) > 1 else ""
        name = f"{prefix}table-{table.layout.key}"
        parts, notes = grids(table), [f"Settings: {table.setting.label}.", *table.notes]
        files[f"{name}.csv"] = to_csv(table).encode()
        files[f"{name}.md"] = "\n".join([*map(to_markdown, parts), *(f"{markdown(note)}\n" for note in notes)]).encode()
        files[f"{name}.tex"] = "\n".join([*map(to_latex, parts), *(f"% {note}" for note in notes), ""]).encode()
    return files


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a report; those of an earlier one that it has no more are removed, and no others."""
    listed = folder / ".written"
    earlier = listed.read_text().splitlines() if listed.exists() else []
    for name in {*earlier} - {*files}:
        (folder / Path(name).name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    listed.write_text("\n".join(files))
