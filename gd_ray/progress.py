"""How far something is, told to whoever wants to show it."""

from collections.abc import Callable, Iterable, Iterator
from typing import Protocol, TypeVar

T = TypeVar("T")

OnProgress = Callable[[str, int, int], None]
"""Told the step, and how many of its parts are done of how many."""


def counted(step: str, results: Iterable[T], total: int, on_progress: OnProgress) -> Iterator[T]:
    """The results as they come, each of them told."""
    on_progress(step, 0, total)
    for done, result in enumerate(results, start=1):
        yield result
        on_progress(step, done, total)


class Report(Protocol):
    """What a running trial tells: which step of which stage, and how far it is."""

    def __call__(self, stage: int, step: str, done: int, total: int) -> None:
        """`done` of `total` images of a step ('score', 'teacher', 'model', 'fine-tune', 'evaluate')."""


def silent(stage: int, step: str, done: int, total: int) -> None:
    """Tells nobody."""
