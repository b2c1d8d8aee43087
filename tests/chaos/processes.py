"""Processes by their parents: this process adopts orphans, so that whatever a run started stays below it."""

import ctypes
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from trials.claim import repeated

_PR_SET_CHILD_SUBREAPER = 36
_TITLES = {"trial": "ray::ImplicitFunc", "scorer": "Scorer", "raylet": "/raylet/raylet", "gcs": "/gcs/gcs_server"}


@dataclass(frozen=True)
class Process:
    """A process as /proc shows it."""

    pid: int
    parent: int
    session: int
    state: str
    title: str

    @property
    def role(self) -> str:
        """Its part in a run; empty for one that no fault hits."""
        return next((role for role, title in _TITLES.items() if title in self.name), "")

    @property
    def name(self) -> str:
        """Its program, or the title that Ray gave it."""
        return self.title.partition("\0")[0].strip()


def adopt_orphans() -> None:
    """Become the parent of processes whose own ends: what Ray starts is found whatever its session or group."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def descendants(root: int | None = None) -> list[Process]:
    """Return all living processes below one, this one if not given."""
    children: dict[int, list[Process]] = {}
    for process in _processes():
        children.setdefault(process.parent, []).append(process)
    found, todo = [], [root or os.getpid()]
    while todo:
        for child in children.get(todo.pop(), []):
            found.append(child)
            todo.append(child.pid)
    return [process for process in found if process.state not in "ZX"]


def _processes() -> Iterator[Process]:
    for path in Path("/proc").iterdir():
        if path.name.isdigit():
            with suppress(OSError, IndexError):  # it has ended
                state, parent, _, session = path.joinpath("stat").read_text().rpartition(")")[2].split()[:4]
                title = path.joinpath("cmdline").read_text(errors="replace")
                yield Process(int(path.name), int(parent), int(session), state, title)


@contextmanager
def orphans_reaped(own: set[int]) -> Iterator[None]:
    """Take the exit codes of adopted processes, as init does; not those of `own` children, whose starter does."""

    def reap() -> None:
        for process in _processes():
            adopted = process.parent == os.getpid() and process.session != os.getsid(0) and process.pid not in own
            if adopted and process.state == "Z":
                with suppress(ChildProcessError):
                    os.waitpid(process.pid, os.WNOHANG)

    with repeated(reap, 0.5):
        yield


def is_spare(process: Process) -> bool:
    """Whether it is a worker that Ray's cluster keeps ready and no run ever had: its log names no job."""
    try:
        return process.name == "ray::IDLE" and ":job_id:" not in Path(f"/proc/{process.pid}/fd/1").read_text()
    except OSError:
        return False


def nothing_stays(_: Process) -> bool:
    return False


def wait_until_gone(known: set[int], limit_s: float, stays: Callable[[Process], bool] = nothing_stays) -> list[Process]:
    """Wait for the processes below this one to end, but known ones and what `stays`; return the others."""
    deadline = time.monotonic() + limit_s
    while True:
        new = (process for process in descendants() if process.pid not in known)
        left = [process for process in new if not stays(process)]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.5)


def kill(*processes: Process) -> None:
    """Kill processes by their ids."""
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, signal.SIGKILL)
