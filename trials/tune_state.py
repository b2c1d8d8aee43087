"""The files that Tune writes while it runs, of which only logs of failures and events of TensorBoard are kept."""

import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from gd_ray.heartbeat import this_host
from gd_ray.storage import is_remote, storage_errors

_LOCK = "in-use"
"""File that names a run's process, which holds a lock on it: the system releases that, however the process ends."""
_TEMPORARY = "gd-ray-tune-"


@contextmanager
def tune_folder(storage: str, name: str) -> Iterator[Path]:
    """Make the folder where Tune keeps its state, and delete that state at the end; nothing resumes from it.

    For an object store it is a temporary folder.
    """
    remote = is_remote(storage)
    parent = Path(tempfile.mkdtemp(prefix=_TEMPORARY) if remote else Path(storage, "tune"))
    folder = parent / name
    with storage_errors(f"folder {str(folder)!r} cannot be written"):
        folder.mkdir(parents=True)
        lock = (folder / _LOCK).open("w", buffering=1)
        lock.write(f"{this_host()}, process {os.getpid()}\n")
    _acquire(lock)
    try:
        yield folder
    finally:
        remove_tune_state(folder)
        if remote:
            shutil.rmtree(parent, ignore_errors=True)
        lock.close()


def remove_abandoned_state(storage: str) -> None:
    """Delete what killed runs left in the storage, and of object stores on this machine."""
    folders = [] if is_remote(storage) else [Path(storage, "tune")]
    temporary = list(Path(tempfile.gettempdir()).glob(f"{_TEMPORARY}*"))
    for path in (path for parent in (*folders, *temporary) for path in parent.glob(f"*/{_LOCK}")):
        with suppress(OSError), path.open("r+") as lock:
            if _acquire(lock):
                remove_tune_state(path.parent)
                if path.parents[1] in temporary:
                    shutil.rmtree(path.parents[1])


def _acquire(lock: IO[str]) -> bool:
    """Lock a file; return whether no other process has done so. Where locks do not exist, others count as running."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def remove_tune_state(folder: Path) -> None:
    """Delete what Tune would resume from, which trials do not; keep logs of failures and events of TensorBoard."""
    with suppress(OSError):
        for path in (*folder.glob("*"), *folder.glob("*/error.pkl")):
            if path.is_file():
                path.unlink()
        for path in (*folder.iterdir(), folder):
            with suppress(OSError):  # not empty
                path.rmdir()
