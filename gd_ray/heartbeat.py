"""Progress files: what each running trial, and each run as a whole, last wrote of itself, under STORAGE/progress."""

import json
import math
import os
import platform
import time
from dataclasses import dataclass
from pathlib import Path

from gd_ray.storage import file_names, is_remote, join, read_file

PROGRESS = "progress"
"""Folder of the storage."""
CURRENT_FOR_S = 120.0
"""Age up to which a heartbeat shows that its process runs. One that is older, or of the future, shows it by changing:
the clock of its machine may be wrong."""
LOOK_AGAIN_AFTER_S = 5.0
"""Time in which a live process writes at least one heartbeat."""
LOOK_AGAIN_IN_STORE_AFTER_S = 20.0
"""The same for an object store, where every heartbeat is a request."""
_READS = 3

_looks: dict[str, tuple[float, float]] = {}
"""What this process last saw of such heartbeats: the time in them, and when they changed by its own clock."""


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


def progress_file(storage: str, trial_id: str) -> str:
    return join(storage, f"{PROGRESS}/{trial_id}.json")


def read_progress(path: str) -> Progress | None:
    """Read a progress file; None where it is absent, or not yet written."""
    for _ in range(_READS):
        try:
            return Progress(**json.loads(read_file(path)))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError):  # an object may be replaced between the requests that read it
            continue
    return None


def read_running(storage: str) -> dict[str, Progress]:
    """Read the progress of everything that a live process holds, by the stem of its file."""
    stems = [name.removesuffix(".json") for name in file_names(storage, PROGRESS) if name.endswith(".json")]
    paths = {progress_file(storage, stem): stem for stem in stems}
    written = {path: progress for path in paths if (progress := read_progress(path)) and not is_dead(progress)}
    old = [path for path, progress in written.items() if abs(time.time() - progress.time) > CURRENT_FOR_S]
    if any(path not in _looks for path in old):
        for path in old:
            _has_changed(path, written[path])
        time.sleep(LOOK_AGAIN_IN_STORE_AFTER_S if is_remote(storage) else LOOK_AGAIN_AFTER_S)
        written |= {path: progress for path in old if (progress := read_progress(path))}
    silent = [path for path in old if not _has_changed(path, written[path])]
    return {paths[path]: progress for path, progress in written.items() if path not in silent}


def _has_changed(path: str, progress: Progress) -> bool:
    """Return whether this process has seen the heartbeat change lately."""
    seen, changed = _looks.get(path, (progress.time, -math.inf))
    _looks[path] = progress.time, changed if seen == progress.time else time.monotonic()
    return time.monotonic() - _looks[path][1] < CURRENT_FOR_S


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
