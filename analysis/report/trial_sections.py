"""The report's sections on single trials: each of them stage by stage, those that failed, and where they ran."""

from typing import Any

import pandas as pd

from analysis.aggregate import uses_external
from analysis.curves import accuracy_matrix
from analysis.formats import Cell, Grid, frame_grid, number_cell
from analysis.frames import SPEC, VERSIONS
from analysis.published import dataset_title
from analysis.results import Results
from gd_ray.naming import counted, field_title, varying_fields
from gd_ray.spec import EXTERNAL_FIELDS

_DRILLED = 200
"""Trials whose stages are in the page; for the others there is `Results.accuracy_matrix`."""


def trial_context(results: Results) -> dict[str, Any]:
    """Return a grid of all trials, and of the first of them the stages."""
    finished, varying = results.trials, varying_fields(results.specs.to_dict("records"))  # type: ignore[arg-type]
    fields = _fields(results.specs, [name for name in varying if name not in ("dataset", "task_size")])
    frame = _rows(finished, ["collapsed" if value else "finished" for value in finished["collapsed"]])
    minutes = [Cell(f"{value / 60:.1f}", value) for value in finished["seconds"].astype(float)]
    frame = frame.assign(minutes=pd.Series(minutes))
    if results.unfinished:
        unfinished = _unfinished(results)
        states = [f"after stage {stage}" for stage in unfinished["stage"]]
        frame = pd.concat([frame, _rows(unfinished, states)], ignore_index=True)
    position = list(frame.columns).index("ACC")
    for name, values in reversed(fields.items()):
        frame.insert(position, name, frame["trial"].map(values))
    shown = frame["trial"].tolist()[:_DRILLED]
    by_trial: dict[Any, pd.DataFrame] = {}
    if shown:
        stages = results.rows("stages", shown)
        by_trial = dict(list(stages.groupby("trial_id", observed=True))) if len(stages) else {}
    rows = finished.set_index(finished["trial_id"].astype(str))
    drill_downs = [
        _drill_down(
            f"{results.names[trial]} ({trial})", by_trial[trial], rows.loc[trial] if trial in rows.index else None
        )
        for trial in shown
        if trial in by_trial
    ]
    frame = frame.astype(object).where(frame.notna(), None)
    return {
        "trials": frame_grid(frame, f"All {counted(len(frame), 'trial')}") if len(frame) else None,
        "total_trials": len(frame),
        "drilled": len(shown),
        "drill_downs": drill_downs,
    }


def _fields(specs: pd.DataFrame, names: list[str]) -> dict[str, "pd.Series[Any]"]:
    """Return the values of fields by trial, empty for trials that do not use them."""
    external = uses_external(specs)
    return {
        field_title(name): specs[name].astype(object).where(external | (name not in EXTERNAL_FIELDS)) for name in names
    }


def _unfinished(results: Results) -> pd.DataFrame:
    """Return the trials that are still running, or were stopped, after their last stage."""
    curves = results.curves[results.curves["trial_id"].isin(results.unfinished)]
    last = curves.sort_values("stage").groupby("trial_id", observed=True).last()
    return last.assign(method_title=results.specs["method_title"].reindex(last.index)).reset_index()


def _rows(trials: pd.DataFrame, states: list[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "trial": trials["trial_id"].astype(str),
            "method": trials["method_title"].astype(str),
            "data": [dataset_title(name) for name in trials["dataset"]],
            "task size": trials["task_size"],
            "seed": trials["seed"],
            **_metrics(trials),
            "state": states,
        }
    )


def _metrics(frame: pd.DataFrame) -> dict[str, list[Cell]]:
    titles = {"acc": "ACC", "fgt_paper": "FGT", "fgt_released": "FGT as released"}
    return {title: [_percent(value) for value in frame[name]] for name, title in titles.items()}


def _percent(value: float) -> Cell:
    return Cell("") if pd.isna(value) else number_cell(100 * value)


def _drill_down(name: str, stages: pd.DataFrame, row: "pd.Series | None") -> dict[str, Any]:
    matrix = accuracy_matrix(stages)
    header = ("after stage", *(f"task {task + 1}" for task in range(len(matrix))))
    cells = tuple((Cell(str(s + 1), s + 1), *(_percent(value) for value in values)) for s, values in enumerate(matrix))
    last = stages.drop_duplicates("stage")
    shown = pd.DataFrame(
        {
            "stage": last["stage"],
            "labelled": last["labelled_size"],
            "coreset left": last["coreset_size"],
            "external, previous": last["external_previous"],
            "external, OOD": last["external_ood"],
            "mean score": last["mean_score"],
            "seconds": last.filter(like="seconds_").sum(axis=1).round(1),
        }
    )
    losses = last.filter(like="loss_").dropna(axis="columns", how="all")
    shown = shown.join(losses.rename(columns=lambda name: name.removeprefix("loss_").replace("_", " ")))
    return {
        "summary": name,
        "accuracy": Grid("Accuracy on each task, in %", header, cells),
        "stages": frame_grid(shown, "Stages"),
        "spec": None if row is None else {name: "all" if pd.isna(row[name]) else row[name] for name in SPEC},
    }


def failure_grid(results: Results) -> Grid | None:
    failed = results.states[results.states["state"] == "failed"]
    if failed.empty:
        return None
    failed = failed.assign(trial=failed["trial_id"].map(results.names))
    return frame_grid(failed, "Failed trials", {"experiment": "experiment", "trial": "trial", "detail": "error (log)"})


def version_grid(results: Results) -> Grid | None:
    trials = results.trials
    if trials.empty:
        return None
    known = [name for name in VERSIONS if trials[name].notna().any()]
    groups = trials.groupby(known, observed=True, dropna=False)
    rows = groups.agg(trials=("trial_id", "size"), seconds=("seconds", "sum")).reset_index()
    hours = [Cell(f"{value / 3600:.2f}", value) for value in rows["seconds"].astype(float)]
    shown = {name: name.replace("_", " ") for name in [*known, "trials", "hours"]}
    return frame_grid(rows.assign(hours=pd.Series(hours)), "Where the trials ran", shown)
