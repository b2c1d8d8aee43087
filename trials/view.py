"""What a person sees while something runs."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Event, Thread

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Table

from gd_ray.errors import UserError
from trials.ledger import TrialState, seconds_left

_SHOWN = 12
"""Running trials listed one by one; more would be a flood."""


def progress_bar(console: Console) -> Progress:
    """A bar with the time left; nothing at all in a pipe."""
    return Progress(
        BarColumn(20),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def live_view(states: Callable[[], list[TrialState]], console: Console, *, line_every: float = 60.0) -> Iterator[None]:
    """Shows running trials on a terminal; in a pipe, one line now and then."""
    over = Event()
    live = Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None

    def watch() -> None:
        last = time.monotonic()
        while not over.wait(1.0):
            if live is None and time.monotonic() - last < line_every:
                continue
            last = time.monotonic()
            with suppress(OSError, UserError):  # storage that does not answer for a moment must not end the view
                if live is not None:
                    live.update(_picture(states()), refresh=True)
                else:
                    console.print(f"{time.strftime('%H:%M')} {summary(states())}", highlight=False, soft_wrap=True)

    thread = Thread(target=watch, daemon=True)
    if live is not None:
        live.start()
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        if live is not None:
            live.stop()


def summary(states: list[TrialState]) -> str:
    """How an experiment stands, in a line."""
    counts = {kind: sum(state.state == kind for state in states) for kind in ("running", "failed")}
    done = sum(state.state == "done" for state in states)
    parts = [f"{done} of {len(states)} trials done", *(f"{count} {kind}" for kind, count in counts.items() if count)]
    return f"{', '.join(parts)}, {100 * work_share(states):.0f}% of the work, {duration(seconds_left(states))} left"


def work_share(states: list[TrialState]) -> float:
    return sum(state.work_done for state in states) / sum(state.work for state in states)


def duration(seconds: float | None) -> str:
    """A time a person can plan with."""
    if seconds is None:
        return "unknown time"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def running_table(states: list[TrialState]) -> Table:
    """Each running trial: where it is, how fast, how long still."""
    table = Table(box=None, pad_edge=False)
    for name in ("trial", "at", "images/s", "done", "left"):
        table.add_column(name, justify="left" if name in ("trial", "at") else "right")
    running = [state for state in states if state.progress is not None]
    for state in running[:_SHOWN]:
        assert state.progress is not None
        progress = state.progress
        rate = f"{progress.images_per_second:.0f}" if progress.images_per_second else ""
        left = duration(state.seconds_left) if state.seconds_left is not None else ""
        table.add_row(state.name, state.detail, rate, f"{100 * progress.share:.0f}%", left)
    if len(running) > _SHOWN:
        table.add_row(f"and {len(running) - _SHOWN} more", "", "", "", "")
    return table


def _picture(states: list[TrialState]) -> RenderableType:
    bar = ProgressBar(total=1.0, completed=work_share(states), width=40)
    return Group(bar, summary(states), running_table(states))
