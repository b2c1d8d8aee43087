"""How far a computation is, for whatever shows it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")

OnProgress = Callable[[str, int, int], None]
"""Receives the step, and how many of its parts are done of how many."""


def track(step: str, results: Iterable[T], total: int, on_progress: OnProgress) -> Iterator[T]:
    """Yield results, reporting progress after each one."""
    on_progress(step, 0, total)
    for done, result in enumerate(results, start=1):
        yield result
        on_progress(step, done, total)


class ProgressCallback(Protocol):
    """Receives which step of which stage a trial is at, and how far it is."""

    def __call__(self, stage: int, step: str, done: int, total: int) -> None:
        """`done` of `total` images of a step ('score', 'teacher', 'model', 'fine-tune', 'evaluate', …)."""


def no_progress(stage: int, step: str, done: int, total: int) -> None:
    """Ignore progress."""
