"""Claims: a progress file per trial that doubles as a lock, and the heartbeats that a running trial writes to it.

The process that creates the file owns the trial; others wait until it is released or its heartbeat stops. Results are
deterministic and written whole, so a claim only saves work: two processes that run one trial write the same bytes.
In an object store, which cannot create a file exclusively, two may own a trial for a while.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, replace
from threading import Event, Thread

from gd_ray.errors import Unreachable
from gd_ray.heartbeat import Progress, is_dead, read_progress, this_host
from gd_ray.storage import create_file, delete_file, exists, is_remote, storage_errors, write_atomic
from trials.cost import StepCost, share_done

TAKE_OVER_AFTER_S = 20.0
"""Time without a new heartbeat after which a process counts as dead."""
TAKE_OVER_ELSEWHERE_AFTER_S = 90.0
"""The same for processes of other machines, as NFS may show files as they were a minute ago, and in object stores."""
HEARTBEAT_S = 2.0
STORE_HEARTBEAT_S = 12.0
"""Time between heartbeats in an object store, each of which is some requests."""
_LOOK_S, _STORE_LOOK_S = 0.5, 5.0
"""Time between two looks at the claim of another process."""
STUCK_AFTER_S = 900.0
"""Time without progress after which the heartbeat stops, until there is some."""


def acquire(path: str, run: str, *, wait_s: float = math.inf, cancelled: Callable[[], bool] = lambda: False) -> bool:
    """Create the file as soon as no other run holds it; False if one does for `wait_s` seconds, or if cancelled.

    A claim of the same run is taken over at once: the run starts a trial again only if its process was lost.
    """
    seen, since = None, time.monotonic()
    deadline = since + wait_s
    in_store = is_remote(path)
    while not cancelled():
        with storage_errors(f"claim {path} cannot be written"):
            if create_file(path, _content(Progress(run=run))):
                return True
        owner = read_progress(path)
        if owner != seen:  # by this machine's clock, because those of others may be wrong
            seen, since = owner, time.monotonic()
        is_here = not in_store and owner is not None and owner.host == this_host()
        patience = TAKE_OVER_AFTER_S if is_here else TAKE_OVER_ELSEWHERE_AFTER_S
        if time.monotonic() - since > patience or (owner and (owner.run == run or is_dead(owner))):
            with storage_errors(f"claim {path} cannot be deleted"):
                delete_file(path)
        elif time.monotonic() >= deadline:
            return False
        else:
            time.sleep(_STORE_LOOK_S if in_store else _LOOK_S)
    return False


def owns(path: str, run: str) -> bool:
    """Return whether the file is this process's; also where it cannot be read for a moment."""
    owner = read_progress(path)
    return exists(path) if owner is None else (owner.host, owner.pid, owner.run) == (this_host(), os.getpid(), run)


def beat(path: str, progress: Progress) -> None:
    """Write a heartbeat, unless another process has taken the claim over or storage fails for a moment."""
    with suppress(OSError, Unreachable):
        if owns(path, progress.run):
            write_atomic(path, _content(progress))


def release(path: str, run: str) -> None:
    """Delete the file, unless it is another process's by now."""
    with suppress(OSError, Unreachable):
        if owns(path, run):
            delete_file(path)


@contextmanager
def heartbeat(path: str, run: str, cost: Sequence[StepCost]) -> Iterator["ProgressReporter"]:
    """Write the progress of an acquired trial from a thread, and release the trial at the end."""
    reporter = ProgressReporter(run, cost)

    def write() -> None:
        if time.monotonic() - reporter.last < STUCK_AFTER_S:
            beat(path, reporter.progress())

    try:
        with repeated(write, _heartbeat_s(path)):
            yield reporter
    finally:
        release(path, run)


@contextmanager
def run_heartbeat(path: str, run: str) -> Iterator[None]:
    """Write that a run is alive, so that its other trials count as waiting, until its end."""

    def write() -> None:
        with suppress(OSError, Unreachable):
            write_atomic(path, _content(Progress(run=run)))

    write()
    try:
        with repeated(write, _heartbeat_s(path)):
            yield
    finally:
        with suppress(OSError):
            delete_file(path)


def _heartbeat_s(path: str) -> float:
    return STORE_HEARTBEAT_S if is_remote(path) else HEARTBEAT_S


@contextmanager
def repeated(action: Callable[[], None], every_s: float) -> Iterator[None]:
    """Repeat an action in a thread, first after `every_s` seconds."""
    ended = Event()

    def repeat() -> None:
        while not ended.wait(every_s):
            action()

    thread = Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


class ProgressReporter:
    """A ProgressCallback that turns counts into rates; cheap enough to be called for every batch."""

    def __init__(self, run: str, cost: Sequence[StepCost]) -> None:
        self.run, self.cost = run, cost
        self.last = time.monotonic()
        self.now: tuple[int, str, int, int] | None = None
        self.step_start = self.trial_start = (0.0, 0.0)

    def __call__(self, stage: int, step: str, done: int, total: int) -> None:
        clock = self.last = time.monotonic()
        if self.now is None:
            self.trial_start = clock, share_done(self.cost, stage, step, done, total)
        if self.now is None or self.now[:2] != (stage, step):
            self.step_start = clock, float(done)
        self.now = stage, step, done, total

    def progress(self) -> Progress:
        """Return the progress of this moment."""
        if self.now is None:
            return Progress(run=self.run)
        stage, step, done, total = self.now
        share = share_done(self.cost, stage, step, done, total)
        return Progress(
            stage, step, share, _rate(done, *self.step_start), _rate(share, *self.trial_start), run=self.run
        )


def _rate(value: float, started: float, at_start: float) -> float:
    seconds = time.monotonic() - started
    return (value - at_start) / seconds if seconds > 0 else 0.0


def _content(progress: Progress) -> bytes:
    return json.dumps(asdict(replace(progress, time=time.time(), host=this_host(), pid=os.getpid()))).encode()
