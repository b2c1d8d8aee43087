"""What a results folder knows of an experiment: which trials belong to it, and how each of them stands."""

import json
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from pyarrow import fs

from gd_ray.errors import UserError
from gd_ray.wild.manifest import filesystem_of
from trials.results import finished

State = Literal["done", "running", "failed", "waiting"]
_STALE = 120.0
"""Seconds without a word after which a trial is no longer taken to be running."""


@dataclass(frozen=True)
class TrialState:
    """One trial of an experiment, as it stands now."""

    experiment: str
    trial_id: str
    method: str
    dataset: str
    task_size: int
    seed: int
    state: State
    detail: str
    work: float
    """All its work, in forward passes of images."""
    work_done: float


def write_ledger(results: str, experiment: str, storage: str, trials: list[dict[str, Any]]) -> None:
    """Adds the trials to those that the experiment is known to have."""
    known = {row["trial_id"]: row for row in _read(results, experiment).get("trials", [])}
    known |= {row["trial_id"]: row for row in trials}
    _write(results, f"ledger/{experiment}.json", {"storage": storage, "trials": list(known.values())})


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
    filesystem, root = filesystem_of(results)
    files = filesystem.get_file_info(fs.FileSelector(f"{root}/ledger", allow_not_found=True))
    names = sorted(Path(info.path).stem for info in files if info.path.endswith(".json"))
    if not names:
        raise UserError(
            f"results {results!r} holds no experiment; give the folder that 'gd-ray run --results' wrote to."
        )
    done = finished(results)
    return [
        _state(results, name, content["storage"], row, done)
        for name in names
        if (content := _read(results, name))
        for row in content["trials"]
    ]


def read_progress(storage: str, trial_id: str) -> dict[str, Any] | None:
    """What a trial last said of itself."""
    try:
        content: dict[str, Any] = json.loads(Path(storage, "progress", f"{trial_id}.json").read_text())
        return content
    except (OSError, ValueError):
        return None


def _state(results: str, experiment: str, storage: str, row: dict[str, Any], done: dict[str, str]) -> TrialState:
    progress = read_progress(storage, row["trial_id"])
    failure = _read_json(results, f"failures/{row['trial_id']}.json")
    state: State = "waiting"
    detail, made = "", 0.0
    if row["trial_id"] in done:
        state, made = "done", row["work"]
    elif progress is not None and time.time() - progress["time"] < _STALE:
        state = "running"
        detail = f"stage {progress['stage']} of {row['stages']}, {progress['step']}"
        made = row["work"] * progress["share"]
    elif failure:
        state, detail = "failed", f"{failure['error']} ({failure['log']})"
    fields = {key: row[key] for key in ("trial_id", "method", "dataset", "task_size", "seed", "work")}
    return TrialState(experiment=experiment, state=state, detail=detail, work_done=made, **fields)


def _read(results: str, experiment: str) -> dict[str, Any]:
    return _read_json(results, f"ledger/{experiment}.json")


def _read_json(results: str, path: str) -> dict[str, Any]:
    filesystem, root = filesystem_of(results)
    try:
        with filesystem.open_input_stream(f"{root}/{path}") as source:
            content: dict[str, Any] = json.loads(source.read())
            return content
    except (OSError, ValueError):
        return {}


def _write(results: str, path: str, content: dict[str, Any]) -> None:
    filesystem, root = filesystem_of(results)
    target = f"{root}/{path}"
    filesystem.create_dir(target.rsplit("/", 1)[0], recursive=True)
    temporary = f"{target}.{uuid4().hex}.tmp"
    with filesystem.open_output_stream(temporary) as file:
        file.write(json.dumps(content).encode())
    filesystem.move(temporary, target)
