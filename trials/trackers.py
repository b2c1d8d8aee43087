"""Replay results to an experiment tracker: one run per finished trial, by its id. No tracker is a dependency."""

import importlib
import math
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from itertools import groupby
from pathlib import Path
from typing import Any
from uuid import uuid4

from gd_ray.errors import UserError, unknown_name
from gd_ray.spec import TrialSpec
from gd_ray.store import read_rows

_SUMMARY = ("acc", "fgt_paper", "fgt_released", "final_accuracy")


@dataclass(frozen=True)
class Run:
    """A finished trial as trackers take it."""

    trial_id: str
    name: str
    """For people; it ends with the id."""
    parameters: dict[str, Any]
    """The fields of the spec."""
    stages: dict[int, dict[str, float]]
    """Metrics after each stage."""
    summary: dict[str, float]
    """Metrics of the whole trial."""


def read_runs(results: str) -> list[Run]:
    """Return the finished trials of a results folder, by id."""
    trials = sorted(read_rows(results, "trials")[0].to_pylist(), key=lambda row: str(row["trial_id"]))
    if not trials:
        raise UserError(f"results {results!r} have no finished trial; give the folder that 'gd-ray run' wrote to.")
    rows: dict[str, list[dict[str, Any]]] = {row["trial_id"]: [] for row in trials}
    for row in read_rows(results, "stages", rows.keys())[0].to_pylist():
        rows[row["trial_id"]].append(row)
    return [_run(row, rows[row["trial_id"]]) for row in trials]


def _run(trial: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> Run:
    known = {f.name for f in fields(TrialSpec)}
    parameters = {
        name: value
        for name, value in trial.items()
        if (name in known or name.startswith("method_")) and value is not None
    }
    ordered = sorted(rows, key=lambda row: (row["stage"], row["task"]))
    return Run(
        trial_id=trial["trial_id"],
        name="{method}-{dataset}-{task_size}-seed{seed}-{trial_id}".format_map(trial),
        parameters=parameters,
        stages={stage: _metrics(list(own)) for stage, own in groupby(ordered, key=lambda row: row["stage"])},
        summary=_finite({name: trial[name] for name in _SUMMARY}),
    )


def _metrics(rows: list[Mapping[str, Any]]) -> dict[str, float]:
    """Return the metrics of a stage from its rows, one for each task; losses and seconds are the same in all."""
    hits, total = (sum(row[name] for row in rows) for name in ("hits", "total"))
    seconds = {name: value for name, value in rows[0].items() if name.startswith("seconds_") and value is not None}
    return _finite(
        {
            "accuracy": hits / total,
            **{f"accuracy_task_{row['task']}": row["hits"] / row["total"] for row in rows},
            **{name: value for name, value in rows[0].items() if name.startswith("loss_")},
            **seconds,
            "seconds": sum(seconds.values()),
        }
    )


def _finite(values: Mapping[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None and math.isfinite(value)}


def _to_tensorboard(module: Any, run: Run, _: str, out: str) -> bool:
    """Write a folder of events, under another name until it is complete."""
    folder = Path(out, run.name)
    if folder.exists():
        return False
    temporary = folder.with_name(f".{run.trial_id}.{uuid4().hex}.tmp")
    try:
        with module.SummaryWriter(str(temporary)) as writer:
            for summary in importlib.import_module("tensorboardX.summary").hparams(run.parameters, run.summary):
                writer.file_writer.add_summary(summary)
            for stage, metrics in run.stages.items():
                for name, value in metrics.items():
                    writer.add_scalar(name, value, stage)
            for name, value in run.summary.items():
                writer.add_scalar(name, value, max(run.stages, default=0))
        os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return True


def _to_mlflow(module: Any, run: Run, project: str, _: str) -> bool:
    """Find earlier runs by a tag; one that was interrupted is replaced."""
    module.set_experiment(project)
    tag = f"tags.trial_id = '{run.trial_id}'"
    earlier = module.search_runs(experiment_names=[project], filter_string=tag, output_format="list")
    if any(known.info.status == "FINISHED" for known in earlier):
        return False
    for known in earlier:
        module.delete_run(known.info.run_id)
    with module.start_run(run_name=run.name, tags={"trial_id": run.trial_id}):
        module.log_params(run.parameters)
        for stage, metrics in run.stages.items():
            module.log_metrics(metrics, step=stage)
        module.log_metrics(run.summary, step=max(run.stages, default=0))
    return True


def _to_wandb(module: Any, run: Run, project: str, _: str) -> bool:
    """Use the trial's id as the run's; offline, where no server knows it, look for its folder."""
    os.environ.setdefault("WANDB_SILENT", "true")  # it prints ten lines for each run
    local = Path(module.setup().settings.wandb_dir)
    if any(local.glob(f"*run-*-{run.trial_id}")):
        return False
    names = {"project": project, "id": run.trial_id, "name": run.name}
    tracked = module.init(**names, config=run.parameters, resume="allow")
    try:
        complete = tracked.summary.get("final_accuracy") is not None  # logged from another machine
        for stage, metrics in run.stages.items() if not complete else ():
            tracked.log(metrics, step=stage)
        tracked.summary.update(run.summary)
    except BaseException:
        tracked.finish(exit_code=1)
        for folder in local.glob(f"*run-*-{run.trial_id}"):
            shutil.rmtree(folder, ignore_errors=True)
        raise
    tracked.finish()
    return not complete


Log = Callable[[Any, Run, str, str], bool]
TRACKERS: dict[str, tuple[str, str, Log]] = {
    "tensorboard": ("tensorboardX", "tensorboardX", _to_tensorboard),
    "mlflow": ("mlflow", "mlflow-skinny sqlalchemy alembic", _to_mlflow),
    "wandb": ("wandb", "wandb", _to_wandb),
}
"""The module of each tracker, the packages that it takes, and what logs a run unless that was done before."""


def log_results(results: str, to: str, project: str, out: str | None = None) -> tuple[int, int]:
    """Log every finished trial that the tracker does not have; return how many are new, and how many there are."""
    if to not in TRACKERS:
        raise unknown_name("tracker", to, TRACKERS)
    name, packages, log = TRACKERS[to]
    runs = read_runs(results)
    try:
        module = importlib.import_module(name)
    except ImportError as error:
        raise UserError(f"tracker {to!r} is not installed; install it with 'pip install {packages}'.") from error
    folder = out or ("tensorboard" if "://" in results else f"{results}/tensorboard")
    try:
        return sum(log(module, run, project, folder) for run in runs), len(runs)
    except Exception as error:
        reason = str(error).strip().split("\n")[0].split(". ")[0]
        raise UserError(
            f"tracker {to!r} failed ({type(error).__name__}: {reason}); run the same command again, which skips what "
            f"is logged."
        ) from error
