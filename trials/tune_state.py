"""The files that Tune writes while it runs, of which only logs of failures and events of TensorBoard are kept."""

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from gd_ray.heartbeat import Progress, is_dead, process_start, this_host
from gd_ray.storage import is_remote


@contextmanager
def tune_folder(storage: str) -> Iterator[Path]:
    """Return the folder where Tune keeps its state; of an object store, a temporary one: nothing resumes from it."""
    if not is_remote(storage):
        yield Path(storage, "tune")
        return
    prefix = f"gd-ray-tune-{process_mark()}-"
    with tempfile.TemporaryDirectory(prefix=prefix, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def process_mark() -> str:
    """Return what names this process among all of all machines: its machine, its pid, and when it started."""
    return f"{_host_mark()}-{os.getpid()}-{process_start(os.getpid())}"


def _host_mark() -> str:
    return hashlib.sha256(this_host().encode()).hexdigest()[:8]


def remove_abandoned_state(storage: str) -> None:
    """Delete what runs of this machine left whose processes were killed."""
    if not is_remote(storage):
        for path in Path(storage, "tune").glob(f"*-{_host_mark()}-*-*"):
            if _has_ended(path.name):
                remove_tune_state(path)
    for path in Path(tempfile.gettempdir()).glob(f"gd-ray-tune-{_host_mark()}-*-*"):
        if _has_ended(path.name):
            shutil.rmtree(path, ignore_errors=True)


def _has_ended(name: str) -> bool:
    """Return whether the process whose mark is in a name has ended."""
    pid, started, *_ = name.partition(f"-{_host_mark()}-")[2].split("-")
    return is_dead(Progress(host=this_host(), pid=int(pid), started=int(started)))


def remove_tune_state(folder: Path) -> None:
    """Delete what Tune would resume from, which trials do not; keep logs of failures and events of TensorBoard."""
    with suppress(OSError):
        for path in (*folder.glob("*"), *folder.glob("*/error.pkl")):
            if path.is_file():
                path.unlink()
        for path in (*folder.iterdir(), folder):
            with suppress(OSError):  # not empty
                path.rmdir()
