"""The results folder, a local one or an address such as s3://bucket/results, and the state of every trial in it.

    trials/ID.parquet        a row per finished trial: the whole spec, ACC and FGT, machine, versions, digests of images
    stages/ID.parquet        a row per (stage, task): hits and totals, sizes, seconds and images of each step, losses
    confusions/ID.parquet    (stage, true class, predicted class, count), and head_count where the head does not predict
    confidences/ID.parquet   (stage, outcome, bin of log odds, count, sum of confidences): see gd_ray.counts
    teacher_confidences/ID.parquet   the same of the teachers C of stages 2 and later
    samples/ID.parquet       the sampled external images: stage, position, class, score and its kind, source
    KIND/packed-*.parquet    the same rows of many finished trials, written by `pack`
    models/ID-STAGE.*        kept models (gd_ray.kept_models): here and not in the storage, whose checkpoints end with
                             their trial, so that models go with the results
    experiments/NAME/*       the trials that one run of an experiment selected, a row each
    failures/ID.json         why a trial failed last
    classes/DATASET.json     names of a data set's classes

A trial is finished when its row in `trials` exists, which is written last. Every file is whole or absent.

Methods differ in their steps and losses, and so do the columns of their stages. Of single files pandas alone takes the
columns of the first only; these give all of them, with nulls where a method has none:

    read_rows("results", "stages")[0].to_pandas()
    analysis.load("results", stage_columns=None).stages    # and the fields of the trials that vary
    pd.read_parquet("results/stages")                       # after `gd-ray pack results`, when all trials are finished
"""

import hashlib
import json
import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from gd_ray.errors import UserError
from gd_ray.heartbeat import Progress, read_running
from gd_ray.rows import confidences_table, confusions_table, samples_table, stages_table, table_of, trial_table
from gd_ray.spec import TrialSpec
from gd_ray.storage import (
    delete_file,
    exists,
    file_names,
    filesystem_of,
    is_remote,
    join,
    list_files,
    open_atomic,
    read_files,
    storage_errors,
    without_credentials,
    write_atomic,
)
from gd_ray.table_files import KINDS, Filters, finished, former_layout, pack, read_rows, write_table
from gd_ray.trial_result import StageResult, TrialResult

__all__ = ["KINDS", "Filters", "finished", "pack", "read_rows"]  # beside all that is defined here

State = Literal["done", "running", "failed", "waiting", "stopped"]
"""A waiting trial will be started by a run that is alive; a stopped one by the same command again."""
FIRST_MODELS, CHECKPOINTS = "first-models", "checkpoints"
"""Folders of the storage."""
STATES: tuple[State, ...] = get_args(State)


def write_stages(results: str, spec: TrialSpec, stages: Sequence[StageResult]) -> None:
    """Write the stages of a trial so far; the same stages give the same rows, seconds apart."""
    with storage_errors(f"results of trial {spec.trial_id} cannot be written to {results!r}"):
        write_table(results, "stages", spec.trial_id, stages_table(spec, stages))
        write_table(results, "confusions", spec.trial_id, confusions_table(spec, stages))
        for kind in ("confidences", "teacher_confidences"):
            if (table := confidences_table(spec, stages, of=kind)) is not None:
                write_table(results, kind, spec.trial_id, table)
        write_table(results, "samples", spec.trial_id, samples_table(spec, stages))


def write_trial(
    results: str,
    result: TrialResult,
    *,
    device: str,
    threads: int,
    revision: str | None = None,
    peak_memory: int | None = None,
    hardware: Mapping[str, str | None] | None = None,
) -> None:
    """Write the row of a trial, which marks it as finished.

    `hardware` has a column for each part that the process described.
    """
    memory = {} if peak_memory is None else {"peak_memory": peak_memory}
    table = trial_table(result, {**memory, "device": device, "threads": threads, **(hardware or {})}, revision)
    with storage_errors(f"results of trial {result.spec.trial_id} cannot be written to {results!r}"):
        write_table(results, "trials", result.spec.trial_id, table)


@dataclass(frozen=True)
class Selection:
    """The trials that one run of an experiment asked for."""

    experiment: str
    storage: str
    command: str | None
    """The command line, for reproduction."""
    trials: list[dict[str, Any]] = field(repr=False)
    """For each trial its trial_id, spec.flat(), stages, work, shares of the work done after each stage, first_model."""
    time: float = field(default_factory=time.time)

    @property
    def digest(self) -> str:
        """Name of its file, and of the progress file of a run that works on it; the same run again has the same."""
        content = json.dumps(
            [without_credentials(self.storage), self.command, [row["trial_id"] for row in self.trials]]
        )
        return hashlib.sha256(content.encode()).hexdigest()[:16]


def write_selection(results: str, selection: Selection) -> None:
    """Add a selection to an experiment. Each has its own file; the same run again replaces it."""
    if not selection.trials:
        return
    own = {"storage": without_credentials(selection.storage), "command": selection.command, "time": selection.time}
    path = f"experiments/{selection.experiment}/{selection.digest}.parquet"
    with storage_errors(f"{path} of results {results!r} cannot be written"), open_atomic(join(results, path)) as stream:
        pq.write_table(table_of([row | own for row in selection.trials]), stream)


def read_selections(results: str) -> list[Selection]:
    """Read the selections of all experiments, the oldest of each first."""
    if list_files(results, "ledger"):
        raise former_layout(results)
    selections = []
    for path, content in read_files(results, "experiments", ".parquet"):
        try:
            rows = pq.ParquetFile(pa.BufferReader(content)).read().to_pylist()
            own = {name: rows[0][name] for name in ("storage", "command", "time")}
        except (OSError, pa.ArrowException, LookupError) as error:
            raise UserError(
                f"results {results!r} have a selection that cannot be read, experiments/{path.parent.name}/{path.name};"
                f" delete it, and 'gd-ray run {path.parent.name}' with the same options writes it again."
            ) from error
        trials = [{name: value for name, value in row.items() if name not in own} for row in rows]
        selections.append(Selection(experiment=path.parent.name, trials=trials, **own))
    return sorted(selections, key=lambda selection: (selection.experiment, selection.time))


def write_failure(results: str, trial_id: str, error: str, log: str) -> None:
    error, log = without_credentials(error), without_credentials(log)
    _write_json(results, f"failures/{trial_id}.json", {"error": error, "log": log, "time": time.time()})


def clear_failure(results: str, trial_id: str) -> None:
    with storage_errors(f"failures/{trial_id}.json of results {results!r} cannot be deleted"):
        delete_file(join(results, f"failures/{trial_id}.json"))


def clear_failures(results: str, trials: Collection[str]) -> None:
    """Delete the failures of these trials."""
    for name in file_names(results, "failures"):
        if (trial_id := name.removesuffix(".json")) in trials:
            clear_failure(results, trial_id)


def read_failures(results: str) -> dict[str, str]:
    """Read why trials failed last, by trial id: the error in one line, and the path of its log in brackets."""
    failures = _read_json_files(results, "failures")
    return {name: f"{content.get('error', '')} ({content.get('log', '')})" for name, content in failures}


def write_class_names(results: str, dataset: str, names: Sequence[str]) -> None:
    _write_json(results, f"classes/{dataset}.json", {"names": list(names)})


def read_class_names(results: str) -> dict[str, tuple[str, ...]]:
    """Read the names of the classes of each data set."""
    return {name: tuple(map(str, content.get("names", ()))) for name, content in _read_json_files(results, "classes")}


@dataclass(frozen=True)
class TrialState:
    """The state of one trial of an experiment."""

    experiment: str
    trial_id: str
    spec: Mapping[str, Any] = field(repr=False)
    """The fields of the trial, as TrialSpec.flat() gives them."""
    stages: int
    state: State
    work: float
    """All work of the trial, in multiply-adds."""
    work_done: float
    detail: str = ""
    """The stage and step of a running trial, the error of a failed one."""
    progress: Progress | None = None
    """Set for a running trial."""

    @property
    def seconds_left(self) -> float | None:
        """Estimate for a running trial, at its own rate so far."""
        if self.progress is None or not self.progress.share_per_second:
            return None
        return (1 - self.progress.share) / self.progress.share_per_second


def trial_states(results: str, selections: Sequence[Selection] | None = None) -> list[TrialState]:
    """Return the state of every trial of the selections (of all that the results have, if not given)."""
    selections = read_selections(results) if selections is None else selections
    done, failures = finished(results), read_failures(results)
    storages = {selection.storage: _read_storage(selection.storage) for selection in selections}
    states: dict[tuple[str, str], TrialState] = {}
    for selection in selections:
        for row in selection.trials:
            state = _state(results, selection, row, done, failures, storages[selection.storage])
            # Several runs may share a trial: one that is alive decides, then the one that is further.
            known = states.setdefault((state.experiment, state.trial_id), state)
            if _priority(state) > _priority(known):
                states[state.experiment, state.trial_id] = state
    return list(states.values())


def _priority(state: TrialState) -> tuple[bool, bool, float]:
    return state.state == "running", state.state == "waiting", state.work_done


class _Storage(NamedTuple):
    """The content of a storage folder."""

    running: dict[str, Progress]
    """Of trials by id, and of runs by the digest of their selection."""
    first_models: set[str]
    checkpoints: set[str]
    visible: bool
    """Whether this machine sees the folder, and so which runs are alive."""


def _read_storage(storage: str) -> _Storage:
    if not storage:  # converted results
        return _Storage({}, set(), set(), visible=True)
    try:
        first_models, checkpoints = (
            {name.removesuffix(".pt") for name in file_names(storage, folder) if name.endswith(".pt")}
            for folder in (FIRST_MODELS, CHECKPOINTS)
        )
        return _Storage(read_running(storage), first_models, checkpoints, is_remote(storage) or exists(storage))
    except UserError:  # such as an object store for which this user has no credentials
        return _Storage({}, set(), set(), visible=False)


def _state(
    results: str,
    selection: Selection,
    row: dict[str, Any],
    done: set[str],
    failures: dict[str, str],
    storage: _Storage,
) -> TrialState:
    trial_id, detail = row["trial_id"], ""
    progress = None if trial_id in done else storage.running.get(trial_id)
    state: State
    if trial_id in done:
        state, share = "done", 1.0
    elif progress:
        state, share = "running", progress.share
        detail = f"stage {progress.stage} of {row['stages']}, {progress.step}" if progress.stage else "starting"
    else:
        stages = _stages_written(results, trial_id) if trial_id in storage.checkpoints else 0
        stages = stages or int(row["first_model"] in storage.first_models)
        state, share = "waiting", [0.0, *row["shares"]][stages]
        if storage.visible and selection.digest not in storage.running:
            state = "stopped"
        if trial_id in failures:
            state, detail = "failed", failures[trial_id]
    return TrialState(
        selection.experiment,
        trial_id,
        row,
        stages=row["stages"],
        state=state,
        work=row["work"],
        work_done=row["work"] * share,
        detail=detail,
        progress=progress,
    )


def _stages_written(results: str, trial_id: str) -> int:
    """Count the stages of an unfinished trial; 0 if they cannot be read."""
    filesystem, path = filesystem_of(join(results, f"stages/{trial_id}.parquet"))
    with suppress(OSError, pa.ArrowException), filesystem.open_input_file(path) as file:
        return (math.isqrt(8 * pq.read_metadata(file).num_rows + 1) - 1) // 2  # stage s has s rows
    return 0


def seconds_left(states: Sequence[TrialState]) -> float | None:
    """Estimate the time until all running and waiting trials are done, at the rate of those that run now."""
    running = [state for state in states if state.state == "running"]
    rate = sum(state.work * state.progress.share_per_second for state in running if state.progress)
    left = sum(state.work - state.work_done for state in states if state.state in ("running", "waiting"))
    if not left:
        return 0.0
    # At the end fewer trials run at once: not before the longest of those that run.
    return max([left / rate, *(state.seconds_left or 0.0 for state in running)]) if rate else None


def _read_json_files(results: str, folder: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path, content in read_files(results, folder, ".json"):
        with suppress(ValueError):
            if isinstance(values := json.loads(content), dict):
                yield path.stem, values


def _write_json(results: str, path: str, content: dict[str, Any]) -> None:
    with storage_errors(f"{path} of results {results!r} cannot be written"):
        write_atomic(join(results, path), json.dumps(content).encode())
