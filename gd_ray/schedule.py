"""How long each training lasts and how its learning rate decays (appendix B)."""

from dataclasses import dataclass
from typing import Literal

DECAY = 0.1

Training = Literal["whole", "before fine-tuning", "fine-tuning"]

_PAPER: dict[Training, tuple[float, float, tuple[float, ...]]] = {
    # epochs, share of the initial learning rate, decays after these epochs
    "whole": (200, 1.0, (120, 160, 180)),
    "before fine-tuning": (180, 1.0, (120, 160, 170)),
    "fine-tuning": (20, DECAY, (10, 15)),
}


@dataclass(frozen=True)
class Schedule:
    """One training: how many updates, and the learning rate of each."""

    updates: int
    learning_rate: float
    decay_updates: tuple[int, ...]

    def rate(self, update: int) -> float:
        """The learning rate of the update with that number, from 0."""
        return self.learning_rate * DECAY ** sum(update >= decay for decay in self.decay_updates)


def schedule(training: Training, *, updates_per_epoch: int, epoch_factor: float, learning_rate: float) -> Schedule:
    """The paper's schedule, all epochs scaled by one factor.

    It is kept in updates, so that a factor may leave fractions of an epoch and every decay keeps its share.
    """
    epochs, share, decays = _PAPER[training]
    per_paper_epoch = updates_per_epoch * epoch_factor
    return Schedule(
        updates=max(1, round(epochs * per_paper_epoch)),
        learning_rate=learning_rate * share,
        decay_updates=tuple(round(decay * per_paper_epoch) for decay in decays),
    )
