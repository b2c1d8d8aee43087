"""How far each trial is, told by the trial itself in a file of its own; the file also says who is at work on it.

Two runs of one experiment into the same folders meet here: who made the file computes the trial, the other waits until
the trial is finished, until what it needs of it is there, or until the file has fallen silent and it goes on itself.
A run that starts a trial again takes its file over at once: it knows that its former process is lost. Who lost the
file to another run while it slept writes nothing more of the trial.
"""

import json
import os
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Event, Thread

from trials.cost import StepCost, share_done

SILENT = 20.0
"""Seconds without a word after which whoever wrote a progress file is taken to be gone."""
_BEAT = 2.0
_STUCK = 900.0
"""Seconds without a step forward after which a trial no longer says that it is at work, until it takes one."""


class TakenOver(Exception):
    """Another process is at work on the trial, or was and has ended."""

    def __init__(self, run: str) -> None:
        super().__init__(run)
        self.run = run
        """Which run it belongs to, as far as it is known."""


@dataclass(frozen=True)
class Progress:
    """What a trial last said of itself."""

    stage: int = 0
    step: str = "starting"
    share: float = 0.0
    """Of the trial's work, how much is done."""
    images_per_second: float = 0.0
    """In the current step."""
    share_per_second: float = 0.0
    """Since it was started, or started again."""
    time: float = 0.0
    host: str = ""
    """The machine, and there the world of process numbers: containers have their own."""
    pid: int = 0
    run: str = ""
    """Which run of the experiment it belongs to."""


def progress_file(storage: str, trial_id: str) -> Path:
    return Path(storage, "progress", f"{trial_id}.json")


def read_all_progress(storage: str) -> dict[str, Progress]:
    """Of every trial that is at work, by its id."""
    files = Path(storage, "progress").glob("*.json")
    return {path.stem: state for path in files if (state := _read(path)) is not None}


def wait_for_turn(
    path: Path, run: str, *, needless: Callable[[], bool] = lambda: False, seconds: float = SILENT
) -> bool:
    """Makes the file as soon as no other run is at work on the trial; False if that became needless meanwhile."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while not needless():
        with suppress(FileExistsError), path.open("x") as file:
            file.write(json.dumps(asdict(_here(Progress(run=run)))))
            return True
        if (state := _read(path)) is not None and state.run == run:
            _replace(path, _here(Progress(run=run)))
            return True
        _wait_until_free(path, needless, seconds)
    return False


@contextmanager
def telling(path: Path, run: str, cost: list[StepCost]) -> Iterator["Teller"]:
    """A Report for the trial, written to its file now and then by a thread; the file goes when the trial ends."""
    pace = Teller(path, run, cost)
    over = Event()

    def beat() -> None:
        while not over.wait(_BEAT) and pace.is_ours():
            if time.monotonic() - pace.last < _STUCK:  # a machine that slept goes on
                with suppress(OSError):  # storage that does not answer for a moment
                    _replace(path, pace.progress())

    thread = Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield pace
    finally:
        over.set()
        thread.join()
        if pace.is_ours():
            path.unlink(missing_ok=True)


class Teller:
    """A Report that turns what a trial says into rates; cheap enough to be called for every batch."""

    def __init__(self, path: Path, run: str, cost: list[StepCost]) -> None:
        self.path, self.run, self.cost = path, run, cost
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

    def is_ours(self) -> bool:
        """Whether this process still is the one at work; so, too, where the file cannot be read for a moment."""
        try:
            state = Progress(**json.loads(self.path.read_text()))
        except FileNotFoundError:
            return False
        except (OSError, ValueError, TypeError):
            return True
        return (state.host, state.pid, state.run) == (_host(), os.getpid(), self.run)

    def check(self) -> None:
        """To be called before anything of the trial is written."""
        if not self.is_ours():
            state = _read(self.path)
            raise TakenOver(state.run if state else "")

    def progress(self) -> Progress:
        if self.now is None:
            return _here(Progress(run=self.run))
        stage, step, done, total = self.now
        share, clock = share_done(self.cost, stage, step, done, total), time.monotonic()
        return _here(
            Progress(
                stage=stage,
                step=step,
                share=share,
                images_per_second=_rate(done, *self.step_start, clock),
                share_per_second=_rate(share, *self.trial_start, clock),
                run=self.run,
            )
        )


def _rate(value: float, started: float, at_start: float, now: float) -> float:
    return (value - at_start) / (now - started) if now > started else 0.0


def _here(progress: Progress) -> Progress:
    return Progress(**{**asdict(progress), "time": time.time(), "host": _host(), "pid": os.getpid()})


def _host() -> str:
    namespace = Path("/proc/self/ns/pid")
    return f"{platform.node()} {os.readlink(namespace)}" if namespace.is_symlink() else platform.node()


def _is_gone(pid: int) -> bool:
    """Of a process of this machine."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False  # it is another user's
    return False


def _wait_until_free(path: Path, needless: Callable[[], bool], seconds: float) -> None:
    """Returns once the file is gone, removing it if its writer is, or once waiting is needless."""
    seen, since = _modified(path), time.monotonic()
    while seen is not None and not needless():
        state = _read(path)
        gone = state is not None and state.host == _host() and _is_gone(state.pid)
        if gone or time.monotonic() - since > seconds:
            path.unlink(missing_ok=True)
            return
        time.sleep(0.5)
        if (last := _modified(path)) != seen:
            seen, since = last, time.monotonic()


def _modified(path: Path) -> int | None:
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _read(path: Path) -> Progress | None:
    try:
        return Progress(**json.loads(path.read_text()))
    except (OSError, ValueError, TypeError):
        return None


def _replace(path: Path, progress: Progress) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(asdict(progress)))
    temporary.replace(path)
