"""What a running trial tells: which step of which stage, and how far it is."""

from typing import Protocol


class Report(Protocol):
    def __call__(self, stage: int, step: str, done: int, total: int) -> None:
        """`done` of `total` images of a step ('score', 'teacher', 'model', 'fine-tune', 'evaluate')."""


def silent(stage: int, step: str, done: int, total: int) -> None:
    """Tells nobody."""
