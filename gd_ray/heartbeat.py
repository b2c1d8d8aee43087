"""Progress files: what each running trial, and each run as a whole, last wrote of itself, under STORAGE/progress."""

import json
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

STALE_AFTER_S = 120.0
"""Age of a heartbeat from which its process does not count as running; clocks of machines may differ."""


@dataclass(frozen=True)
class Progress:
    """The state of a running trial (or of a whole run) and of the process that runs it."""

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


def read_running(storage: str) -> dict[str, Progress]:
    """Read the progress of everything that a live process holds, by the stem of its file."""
    files, now = Path(storage, "progress").glob("[!.]*.json"), time.time()
    written = {path.stem: progress for path in files if (progress := read_progress(path)) is not None}
    return {name: p for name, p in written.items() if now - p.time < STALE_AFTER_S and not is_dead(p)}


def this_host() -> str:
    """Return the machine and its process namespace, as `Progress.host` names them."""
    namespace = Path("/proc/self/ns/pid")
    return f"{platform.node()} {os.readlink(namespace)}" if namespace.is_symlink() else platform.node()


def is_dead(owner: Progress) -> bool:
    """Return whether the owner was a process of this machine and does not exist any more."""
    if owner.host == this_host():
        try:
            os.kill(owner.pid, 0)
            # A zombie has ended; in a container its exit code may never be asked for.
            return Path(f"/proc/{owner.pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except ProcessLookupError:
            return True
        except (OSError, IndexError):
            pass  # another user's
    return False
