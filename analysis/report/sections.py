"""The content of the report's page: what was run, how it compares with the paper, and how sure one can be."""

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis.aggregate import Setting, mixed_note, ordered, uses_external
from analysis.conventions_table import convention_parts, report_part
from analysis.formats import Cell, Grid, frame_grid, grids, interval, number_cell
from analysis.published import dataset_title
from analysis.report.findings import findings
from analysis.report.trial_sections import failure_grid, trial_context, version_grid
from analysis.results import Results
from analysis.stats import FEW
from analysis.status import status_grid
from analysis.tables import MARGIN, Table, gap_closed, metric_title
from gd_ray.naming import counted
from gd_ray.store import STATES

TEMPLATES = Environment(
    loader=PackageLoader("analysis.report", ""), autoescape=True, trim_blocks=True, undefined=StrictUndefined
)


def render_page(
    results: Results,
    settings: list[Setting],
    tables: list[Table],
    figures: list[dict[str, Any]],
    refresh: int | None = None,
) -> str:
    """Return the page as HTML."""
    done = len(results.trials)
    trials = trial_context(results)  # before the notes, which name files that could not be read
    remarks = [*results.notes, *([text] if (text := mixed_note(settings)) else [])]
    if not done:
        below = "the stages so far are below" if results.unfinished else "nor any stage of one"
        remarks.append(f"No trial is finished yet, so there are no tables and figures; {below}.")
    parts = [findings(setting, tables) for setting in settings]
    return TEMPLATES.get_template("template.html.j2").render(
        title=f"Results: {Path(results.address.rstrip('/')).name}",
        address=results.address,
        made=datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC"),
        done=done,
        total=max(done, results.states["trial_id"].nunique()),
        refresh=refresh,
        remarks=remarks,
        collapsed=done and results.trials["collapsed"].any(),
        headline=parts[0][0] if parts else None,
        findings=[sentence for _, sentences in parts for sentence in sentences],
        experiments=_experiment_grid(results),
        status=status_grid(results.trials) if done else None,
        settings=[_setting(setting) for setting in settings],
        tables=_tables(settings, tables) + convention_parts(results, settings),
        **_verdicts(tables),
        comparisons=_comparisons(tables),
        gaps=[_gap(setting) for setting in settings],
        few=FEW,
        figures=figures,
        **trials,
        failures=failure_grid(results),
        has_states=len(results.states) > 0,
        versions=version_grid(results),
        **_reproduction(results),
    )


def _listed(values: Iterable[object]) -> str:
    return ", ".join(str(value) for value in values)


def _experiment_grid(results: Results) -> Grid | None:
    if results.states.empty:
        return None
    states = results.states.groupby(["experiment", "state"]).size().unstack(fill_value=0)
    frame = states.reindex(columns=STATES, fill_value=0).reset_index()
    return frame_grid(frame, "Trials by experiment and state")


def _setting(setting: Setting) -> dict[str, Any]:
    trials = setting.variants
    titles = dict(zip(trials["method"].astype(str), trials["method_title"].astype(str), strict=True))
    return {
        "heading": f"Setting {setting.number}" if setting.number else "Setting",
        "entries": {
            "data": _listed(dataset_title(name) for name in trials["dataset"].unique()),
            "streams": _listed(sorted(trials.loc[uses_external(trials), "stream"].unique())) or "none",
            "methods": _listed(titles[name] for name in ordered(titles)),
            "task sizes": _listed(sorted(trials["task_size"].unique())),
            "seeds": _listed(sorted(trials["seed"].unique())),
            "differs from the paper, external data apart, in": setting.differs or "nothing",
            "convention": setting.convention,
        },
        "notes": setting.notes,
    }


def _tables(settings: list[Setting], tables: list[Table]) -> list[dict[str, Any]]:
    parts = []
    for setting in settings:
        own = [table for table in tables if table.setting is setting]
        if own:
            heading = f"Setting {setting.number}: {setting.label}" if setting.number else ""
            notes = [note for table in own for note in table.notes]
            parts.append(report_part(heading, [grid for table in own for grid in grids(table)], notes))
    return parts


def _verdicts(tables: list[Table]) -> dict[str, Any]:
    frames = [table.frame.assign(convention=table.setting.convention) for table in tables if table.layout.key != "1"]
    cells = pd.concat(frames) if frames else pd.DataFrame({"verdict": []})
    cells = cells[cells["verdict"] != ""]
    if cells.empty:
        return {"verdict_grid": None}
    cells = cells.drop_duplicates(["convention", "dataset", "task_size", "method", "metric"])
    shown = pd.DataFrame(
        {
            "method": cells["title"],
            "data": [dataset_title(name) for name in cells["dataset"]],
            "task size": cells["task_size"],
            "convention": cells["convention"],
            "metric": [metric_title(m, c) for m, c in zip(cells["metric"], cells["convention"], strict=True)],
            "ours": cells["mean"].map(number_cell),
            "paper": cells["printed"].map(number_cell),
            "difference": [number_cell(v, "+.1f") for v in cells["difference"]],
            "n": cells["n"],
            "verdict": cells["verdict"],
        }
    )
    counts = cells["verdict"].value_counts()
    return {
        "verdict_grid": frame_grid(shown, "Each cell against the paper"),
        "counts": {name: counts.get(name, 0) for name in ("reproduced", "differs", "undecided")},
        "margin": f"{MARGIN:g}",
    }


def _comparisons(tables: list[Table]) -> list[dict[str, Any]]:
    parts = []
    for table in tables:
        frame = table.comparisons
        if frame.empty or frame["n"].max() < 2:
            continue
        title = f"{table.layout.title}{table.setting.suffix}"
        titles = table.frame.set_index("method")["title"].to_dict()
        shown = pd.DataFrame(
            {
                "method": [titles.get(name, name) for name in frame["method"]],
                "against": [titles.get(name, name) for name in frame["against"]],
                "data": [dataset_title(name) for name in frame["dataset"]],
                "task size": frame["task_size"],
                "metric": [metric_title(metric, table.setting.convention) for metric in frame["metric"]],
                "difference": [number_cell(v, "+.1f") for v in frame["difference"]],
                "95% interval": list(map(interval, frame["low"], frame["high"])),
                "p, Holm": frame["p_holm"],
                "wins": [Cell(f"{w} of {n}", w / n) for w, n in zip(frame["wins"], frame["n"], strict=True)],
                "improvement": [number_cell(v, ".0%") for v in frame["improvement"]],
                "remark": frame["remark"],
            }
        )
        grid = frame_grid(shown, f"{title}: differences in points, seed by seed")
        parts.append({"summary": f"{title}: {counted(len(frame), 'comparison')}", "grid": grid})
    return parts


def _gap(setting: Setting) -> dict[str, Any]:
    frame, notes = gap_closed(setting)
    if frame.empty:
        return {"notes": notes, "grid": None}
    titles = setting.trials.set_index("method")["method_title"].to_dict()
    shown = pd.DataFrame(
        {
            "method": [str(titles.get(name, name)) for name in frame["method"]],
            "data": [dataset_title(name) for name in frame["dataset"]],
            "metric": [metric_title(metric, setting.convention) for metric in frame["metric"]],
            "gap closed": [number_cell(v, ".0%") for v in frame["iqm"]],
            "95% interval": [interval(low, high, ".0%") for low, high in zip(frame["low"], frame["high"], strict=True)],
            "task sizes": frame["settings"],
            "seeds": frame["n"],
        }
    )
    title = "Gap closed from Baseline (0%) to Oracle (100%): interquartile mean over seeds and task sizes"
    return {"notes": notes, "grid": frame_grid(shown, f"{title}{setting.suffix}")}


def _reproduction(results: Results) -> dict[str, Any]:
    """Return the commands that run the same again, and what is not known about them."""
    unknown = [name for name in sorted(results.experiments) if not results.commands.get(name)]
    typed = dict.fromkeys(line for name in sorted(results.experiments) for line in results.commands.get(name, ()))
    recorded = results.trials["git_revision"].dropna().astype(str)
    revisions = recorded.str.removesuffix("-dirty").value_counts()
    return {
        "commands": [
            *(f"git checkout {revision}" for revision in revisions.index[:1]),
            *typed,
            *(f"gd-ray run {name} --results {results.address}" for name in unknown),
            f"gd-ray report {results.address}",
        ],
        "unknown_commands": unknown,
        "dirty": recorded.str.endswith("-dirty").any(),
        "revisions": len(revisions),
    }
