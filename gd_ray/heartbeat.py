"""Progress files: what each running trial last wrote of itself, under STORAGE/progress."""

import json
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Progress:
    """The state of a running trial and of the process that runs it."""

    stage: int = 0
    step: str = "starting"
    share: float = 0.0
    """Share of the trial's work that is done."""
    images_per_second: float = 0.0
    """In the current step."""
    share_per_second: float = 0.0
    """Since the process started."""
    time: float = 0.0
    host: str = ""
    """The machine and its process namespace: containers number processes on their own."""
    pid: int = 0
    run: str = ""
    """The run of an experiment that the process belongs to."""


def progress_file(storage: str, trial_id: str) -> Path:
    return Path(storage, "progress", f"{trial_id}.json")


def read_progress(path: Path) -> Progress | None:
    """Read a progress file; None where it is absent, or not yet written."""
    try:
        return Progress(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def read_all_progress(storage: str) -> dict[str, Progress]:
    """Read the progress of every trial that a process holds, by trial id."""
    files = Path(storage, "progress").glob("[!.]*.json")
    return {path.stem: progress for path in files if (progress := read_progress(path)) is not None}
