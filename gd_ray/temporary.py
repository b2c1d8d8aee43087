"""Folders that processes need while they run. A lock shows whether one still does, however the others ended.

The system releases a lock with its process, whatever container or host that was in; a pid may be given again.
"""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gd_ray.heartbeat import this_host

LOCK = "in-use"
"""File that names the processes of a folder, each of which holds a lock on it."""
_PREFIX = "gd-ray-"


def use_folder(folder: Path) -> IO[str]:
    """Make a folder, or join the processes that use it, until the file that is returned is closed."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = (folder / LOCK).open("a", buffering=1)
    lock.write(f"{this_host()}, process {os.getpid()}\n")
    _acquire(lock, fcntl.LOCK_SH)
    return lock


@contextmanager
def temporary_folder(purpose: str) -> Iterator[Path]:
    """Make a temporary folder and delete it at the end; `remove_temporary_folders` does so for killed processes."""
    folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{purpose}-"))
    with use_folder(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def remove_temporary_folders() -> None:
    """Delete the temporary folders that killed processes left on this machine."""
    remove_abandoned(Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"), shutil.rmtree)


def remove_abandoned(folders: Iterable[Path], remove: Callable[[Path], object]) -> None:
    """Call `remove` for every folder that was in use and whose processes have all ended."""
    for folder in folders:
        with suppress(OSError), (folder / LOCK).open("r+") as lock:
            if _acquire(lock, fcntl.LOCK_EX):
                remove(folder)


def _acquire(lock: IO[str], kind: int) -> bool:
    """Lock a file; return whether other processes allow it. Where locks do not exist, others count as running."""
    try:
        fcntl.flock(lock, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
