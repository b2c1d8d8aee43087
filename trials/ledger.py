"""What a results folder knows of an experiment: which trials belong to it, and how each of them stands."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from gd_ray.errors import UserError
from gd_ray.filesystems import answering, filesystem_of, listed
from trials.progress import Progress, read_all_progress
from trials.results import finished

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
    """All its work, in forward passes of images."""
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
    """Adds the trials, and the command that wants them, to what is known of the experiment."""
    old = _read(results, experiment)
    known = {row["trial_id"]: row for row in [*old.get("trials", []), *trials]}
    commands = dict.fromkeys([*old.get("commands", []), *([command] if command else [])])
    content = {"storage": storage, "trials": list(known.values()), "commands": list(commands)}
    _write(results, f"ledger/{experiment}.json", content)


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
    names = sorted(Path(info.path).stem for info in listed(results, "ledger") if info.path.endswith(".json"))
    if not names:
        raise UserError(
            f"results {results!r} holds no experiment; give the folder that 'gd-ray run --results' wrote to."
        )
    states = []
    for name in names:
        content = _read(results, name)
        if "storage" not in content or not isinstance(content.get("trials"), list):
            raise UserError(
                f"results {results!r} has a ledger/{name}.json that cannot be read; 'gd-ray run {name}' with the same "
                f"options writes it anew."
            )
        states += states_of(results, name, content["storage"], content["trials"])
    return states


def states_of(results: str, experiment: str, storage: str, trials: list[dict[str, Any]]) -> list[TrialState]:
    """These trials of an experiment, given as its ledger holds them."""
    done, failed = finished(results), _failures(results)
    now = time.time()
    running = {
        trial_id: progress for trial_id, progress in read_all_progress(storage).items() if now - progress.time < _STALE
    }
    first_models = {path.stem for path in Path(storage, "first-models").glob("*.pt")}
    return [
        _state(experiment, row, row["trial_id"] in done, running.get(row["trial_id"]), failed, first_models)
        for row in trials
    ]


def _state(
    experiment: str,
    row: dict[str, Any],
    done: bool,
    progress: Progress | None,
    failed: dict[str, dict[str, Any]],
    first_models: set[str],
) -> TrialState:
    """A trial that does not run has done its first stage where the first model that it needs is there."""
    fields = {key: row[key] for key in ("trial_id", "method", "dataset", "task_size", "seed", "stages", "work")}
    known = {"experiment": experiment, **fields}
    if done:
        return TrialState(**known, state="done", work_done=row["work"])
    if progress is not None:
        detail = f"stage {progress.stage} of {row['stages']}, {progress.step}" if progress.stage else "starting"
        made = row["work"] * progress.share
        return TrialState(**known, state="running", work_done=made, detail=detail, progress=progress)
    made = row["work"] * row["first_share"] if row.get("first_model") in first_models else 0.0
    if failure := failed.get(row["trial_id"]):
        return TrialState(**known, state="failed", work_done=made, detail=f"{failure['error']} ({failure['log']})")
    return TrialState(**known, state="waiting", work_done=made)


def _failures(results: str) -> dict[str, dict[str, Any]]:
    names = [Path(info.path).name for info in listed(results, "failures") if info.path.endswith(".json")]
    return {Path(name).stem: failure for name in names if (failure := _read_json(results, f"failures/{name}"))}


def _read(results: str, experiment: str) -> dict[str, Any]:
    return _read_json(results, f"ledger/{experiment}.json")


def _read_json(results: str, path: str) -> dict[str, Any]:
    filesystem, root = filesystem_of(results)
    # What storage refuses must not be taken for an empty file, which would be written anew.
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
