"""What the report says of single trials: each of them stage by stage, those that failed, and where they ran."""

import pandas as pd

from analysis import page
from analysis.curves import accuracy_matrix
from analysis.formats import Cell, Grid, frame_grid, to_html
from analysis.published import dataset_title
from analysis.results import SPEC, Results
from analysis.settings import uses_external

_DRILLED = 200
"""Trials whose stages are in the page; those of the others are one call of `accuracy_matrix` away."""


def trials_section(results: Results) -> str:
    trials = results.trials
    rows = pd.DataFrame(
        {
            "trial": trials["trial_id"].astype(str),
            "method": trials["method_title"].astype(str),
            "data": [dataset_title(name) for name in trials["dataset"]],
            "task size": trials["task_size"],
            "seed": trials["seed"],
            "OOD ratio": trials["ood_ratio"].where(uses_external(trials)),
            "ACC": [_percent(value) for value in trials["acc"]],
            "FGT": [_percent(value) for value in trials["fgt_paper"]],
            "FGT as released": [_percent(value) for value in trials["fgt_released"]],
            "state": ["collapsed" if value else "finished" for value in trials["collapsed"]],
            "minutes": [Cell(f"{value / 60:.1f}", value) for value in trials["seconds"].astype(float)],
        }
    )
    open_trials = results.unfinished
    if open_trials:
        rows = pd.concat([rows, _unfinished(results)], ignore_index=True)
    if rows.empty:
        return ""
    rows = rows.astype(object).where(rows.notna(), None)
    text = to_html(frame_grid(rows, f"All {len(rows)} trials"))
    shown = [*trials["trial_id"].astype(str), *map(str, open_trials)][:_DRILLED]
    if len(rows) > _DRILLED:
        text += page.notes([f"The first {_DRILLED} trials are shown stage by stage."])
    stages = results.rows("stages", shown)
    by_trial = dict(list(stages.groupby("trial_id", observed=True))) if len(stages) else {}
    by_id = trials.set_index(trials["trial_id"].astype(str))
    for trial in shown:
        if trial in by_trial:
            text += _drill_down(trial, by_trial[trial], by_id.loc[trial] if trial in by_id.index else None)
    return text


def _unfinished(results: Results) -> pd.DataFrame:
    """Rows of the trials that are still running, or were stopped."""
    curves = results.curves[results.curves["trial_id"].isin(results.unfinished)]
    last = curves.sort_values("stage").groupby("trial_id", observed=True).last()
    known = results.stages.drop_duplicates("trial_id").set_index("trial_id").loc[list(last.index)]
    return pd.DataFrame(
        {
            "trial": last.index.astype(str),
            "method": known["method"].astype(str).to_numpy(),
            "data": known["dataset"].astype(str).to_numpy(),
            "task size": known["task_size"].to_numpy(),
            "seed": known["seed"].to_numpy(),
            "ACC": [_percent(value) for value in last["acc"]],
            "FGT": [_percent(value) for value in last["fgt_paper"]],
            "FGT as released": [_percent(value) for value in last["fgt_released"]],
            "state": [f"after stage {stage}" for stage in last["stage"]],
        }
    )


def _percent(value: object) -> Cell:
    number = float(value)  # type: ignore[arg-type]
    return Cell("" if pd.isna(number) else f"{100 * number:.1f}", None if pd.isna(number) else number)


def _drill_down(trial: str, stages: pd.DataFrame, row: "pd.Series | None") -> str:
    first = stages.iloc[0]
    title = str(row["method_title"]) if row is not None else str(first["method"])
    matrix = accuracy_matrix(stages)
    header = ("after stage", *(f"task {task + 1}" for task in range(len(matrix))))
    cells = tuple((Cell(str(s + 1), s + 1), *(_percent(value) for value in values)) for s, values in enumerate(matrix))
    text = to_html(Grid("Accuracy on each task, in %", header, cells), sortable=False)
    last = stages.drop_duplicates("stage")
    seconds = [name for name in stages.columns if name.startswith("seconds_")]
    shown = pd.DataFrame(
        {
            "stage": last["stage"],
            "labelled": last["labelled_size"],
            "coreset left": last["coreset_size"],
            "external, previous": last["external_previous"],
            "external, OOD": last["external_ood"],
            "mean confidence": last["mean_confidence"],
            "seconds": last[seconds].sum(axis=1).round(1),
        }
    )
    text += to_html(frame_grid(shown, "Stages"), sortable=False)
    if row is not None:
        text += page.definitions({name: _shown(row[name]) for name in SPEC if name in row})
    place = f"{first['dataset']!s}, task size {first['task_size']!s}, seed {first['seed']!s}"
    return page.folded(f"{title}, {place} ({trial})", text)


def _shown(value: object) -> str:
    return "all" if isinstance(value, float) and pd.isna(value) else str(value)


def failures_section(results: Results) -> str:
    failed = results.expected[results.expected["state"] == "failed"]
    if failed.empty:
        return page.paragraph("No trial failed.") if len(results.expected) else ""
    names = ["experiment", "method", "dataset", "task_size", "seed", "error", "log"]
    return to_html(frame_grid(failed, "Failed trials", {name: name.replace("_", " ") for name in names}))


def versions_section(results: Results) -> str:
    trials = results.trials
    if trials.empty:
        return ""
    names = ["host", "device", "threads", "python", "torch", "ray", "numpy", "git_revision"]
    groups = trials.groupby(names, observed=True, dropna=False)
    rows = groups.agg(trials=("trial_id", "size"), seconds=("seconds", "sum")).reset_index()
    hours = [Cell(f"{value / 3600:.2f}", value) for value in rows["seconds"].astype(float)]
    shown = {name: name.replace("_", " ") for name in [*names, "trials", "hours"]}
    text = to_html(frame_grid(rows.assign(hours=pd.Series(hours, rows.index)), "Where the trials ran", shown))
    return text + (
        page.notes(
            ["Trials of more than one version or machine are here; on a CPU, results may differ in the last bits."]
        )
        if len(rows) > 1
        else ""
    )
