"""What a results folder knows of an experiment: which trials belong to it, and how each of them stands."""

import hashlib
import json
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from gd_ray.errors import UserError
from gd_ray.filesystems import answering, filesystem_of, listed
from trials.progress import Progress, read_all_progress
from trials.results import finished, stages_written

State = Literal["done", "running", "failed", "waiting"]
_STALE = 120.0
"""Seconds without a word after which a trial is no longer taken to be running; clocks of machines may differ."""


@dataclass(frozen=True)
class TrialState:
    """One trial of an experiment, as it stands now."""

    experiment: str
    trial_id: str
    method: str
    dataset: str
    task_size: int
    seed: int
    stages: int
    state: State
    work: float
    """All its work, in multiply-adds."""
    work_done: float
    detail: str = ""
    progress: Progress | None = None
    """Of a running trial."""

    @property
    def seconds_left(self) -> float | None:
        """Of a running trial, at its own pace so far."""
        if self.progress is None or not self.progress.share_per_second:
            return None
        return (1 - self.progress.share) / self.progress.share_per_second

    @property
    def name(self) -> str:
        return f"{self.method}, {self.dataset}, task size {self.task_size}, seed {self.seed}"


def seconds_left(states: list[TrialState]) -> float | None:
    """Until all that is not failed is done, at the pace of what runs now; None while there is no pace yet."""
    running = [state for state in states if state.state == "running"]
    pace = sum(state.work * state.progress.share_per_second for state in running if state.progress)
    left = sum(state.work - state.work_done for state in states if state.state in ("running", "waiting"))
    if not left:
        return 0.0
    # At the end fewer trials run at once: not before the longest of those that run.
    return max([left / pace, *(state.seconds_left or 0.0 for state in running)]) if pace else None


def write_ledger(
    results: str, experiment: str, storage: str, trials: list[dict[str, Any]], command: str | None = None
) -> None:
    """Adds the trials, and the command that wants them, to what is known of the experiment.

    Each run has a file of its own, for two may start at once; the same run again, later, has the same one.
    """
    content = {"storage": storage, "trials": trials, "command": command}
    digest = hashlib.sha256(json.dumps([storage, command, [row["trial_id"] for row in trials]]).encode()).hexdigest()
    path = f"ledger/experiment={experiment}/{digest[:16]}.json"
    _write(results, path, {**content, "time": time.time()})


def write_class_names(results: str, dataset: str, names: Sequence[str]) -> None:
    """So that what reads the results can call the classes by name."""
    _write(results, f"classes/{dataset}.json", {"names": list(names)})


def write_failure(results: str, trial_id: str, error: str, log: str) -> None:
    _write(results, f"failures/{trial_id}.json", {"error": error, "log": log, "time": time.time()})


def clear_failure(results: str, trial_id: str) -> None:
    filesystem, root = filesystem_of(results)
    with suppress(FileNotFoundError):
        filesystem.delete_file(f"{root}/failures/{trial_id}.json")


def read_states(results: str) -> list[TrialState]:
    """Every trial of every experiment that was ever started into this folder."""
    files = [Path(info.path) for info in listed(results, "ledger", recursive=True) if info.path.endswith(".json")]
    files = sorted(file for file in files if file.parent.name.startswith("experiment="))
    if not files:
        raise UserError(
            f"results {results!r} holds no experiment; give the folder that 'gd-ray run --results' wrote to."
        )
    runs = []
    for file in files:
        experiment, place = file.parent.name.removeprefix("experiment="), f"ledger/{file.parent.name}/{file.name}"
        content = _read_json(results, place)
        if not isinstance(content, dict) or not {"storage", "trials", "time"} <= content.keys():
            raise UserError(
                f"results {results!r} has a {place} that cannot be read; delete it, and 'gd-ray run {experiment}' with "
                f"the same options writes it anew."
            )
        runs.append((experiment, content["time"], content["storage"], content["trials"]))
    known: dict[tuple[str, str], TrialState] = {}
    ended = finished(results), _failures(results)
    for experiment, _, storage, trials in sorted(runs, key=lambda run: run[:2]):
        for state in _states(results, experiment, storage, trials, *ended):
            key = experiment, state.trial_id
            # Runs with different storages may want one trial: the one that is further tells of it.
            if key not in known or _rank(state) > _rank(known[key]):
                known[key] = state
    return list(known.values())


def _rank(state: TrialState) -> tuple[bool, float]:
    return state.state == "running", state.work_done


def states_of(results: str, experiment: str, storage: str, trials: list[dict[str, Any]]) -> list[TrialState]:
    """These trials of an experiment, given as its ledger holds them."""
    return _states(results, experiment, storage, trials, finished(results), _failures(results))


def _states(
    results: str,
    experiment: str,
    storage: str,
    trials: list[dict[str, Any]],
    done: Collection[str],
    failed: dict[str, dict[str, Any]],
) -> list[TrialState]:
    now = time.time()
    running = {
        trial_id: progress for trial_id, progress in read_all_progress(storage).items() if now - progress.time < _STALE
    }
    first_models, kept = (
        {path.stem for path in Path(storage, folder).glob("*.pt")} for folder in ("first-models", "checkpoints")
    )

    def stages_done(row: dict[str, Any]) -> int:
        """Of a trial that does not run: those before its checkpoint, or the first where its first model is there."""
        stages = stages_written(results, experiment, row["trial_id"]) if row["trial_id"] in kept else 0
        return stages or int(row.get("first_model") in first_models)

    return [
        _state(experiment, row, row["trial_id"] in done, running.get(row["trial_id"]), failed, stages_done)
        for row in trials
    ]


def _state(
    experiment: str,
    row: dict[str, Any],
    done: bool,
    progress: Progress | None,
    failed: dict[str, dict[str, Any]],
    stages_done: Callable[[dict[str, Any]], int],
) -> TrialState:
    fields = {key: row[key] for key in ("trial_id", "method", "dataset", "task_size", "seed", "stages", "work")}
    known = {"experiment": experiment, **fields}
    if done:
        return TrialState(**known, state="done", work_done=row["work"])
    if progress is not None:
        detail = f"stage {progress.stage} of {row['stages']}, {progress.step}" if progress.stage else "starting"
        made = row["work"] * progress.share
        return TrialState(**known, state="running", work_done=made, detail=detail, progress=progress)
    made = row["work"] * [0.0, *row["shares"]][stages_done(row)]
    if failure := failed.get(row["trial_id"]):
        return TrialState(**known, state="failed", work_done=made, detail=f"{failure['error']} ({failure['log']})")
    return TrialState(**known, state="waiting", work_done=made)


def _failures(results: str) -> dict[str, dict[str, Any]]:
    names = [Path(info.path).name for info in listed(results, "failures") if info.path.endswith(".json")]
    return {Path(name).stem: failure for name in names if (failure := _read_json(results, f"failures/{name}"))}


def _read_json(results: str, path: str) -> dict[str, Any]:
    filesystem, root = filesystem_of(results)
    # What storage refuses is no empty file: a trial that failed would be shown as waiting.
    with answering(f"{path} of results {results!r} cannot be read"):
        try:
            with filesystem.open_input_stream(f"{root}/{path}") as source:
                content: dict[str, Any] = json.loads(source.read())
                return content
        except (FileNotFoundError, ValueError):
            return {}


def _write(results: str, path: str, content: dict[str, Any]) -> None:
    filesystem, root = filesystem_of(results)
    target = f"{root}/{path}"
    temporary = f"{target}.{uuid4().hex}.tmp"
    with answering(f"{path} of results {results!r} cannot be written"):
        filesystem.create_dir(target.rsplit("/", 1)[0], recursive=True)
        with filesystem.open_output_stream(temporary) as file:
            file.write(json.dumps(content).encode())
        filesystem.move(temporary, target)
