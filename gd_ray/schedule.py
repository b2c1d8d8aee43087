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
    updates_per_epoch: int
    learning_rate: float
    decay_updates: tuple[int, ...]

    def rate(self, update: int) -> float:
        """Return the learning rate of an update; the first is number 0."""
        return self.learning_rate * DECAY ** sum(update >= decay for decay in self.decay_updates)

    @property
    def last_epoch(self) -> int:
        """The first update of the last epoch."""
        return max(0, self.updates - self.updates_per_epoch)


def schedule(
    training: Training, *, images: int, batch_size: int, epoch_factor: float, learning_rate: float
) -> Schedule:
    """Return the paper's schedule for a set of `images`, all epochs scaled by one factor.

    It is kept in updates, so that a factor may leave fractions of an epoch and every decay keeps its share. A set
    smaller than a batch is one batch.
    """
    epochs, share, decays = _PAPER[training]
    updates_per_epoch = max(1, images // batch_size)
    per_paper_epoch = updates_per_epoch * epoch_factor
    return Schedule(
        updates=max(1, round(epochs * per_paper_epoch)),
        updates_per_epoch=updates_per_epoch,
        learning_rate=learning_rate * share,
        decay_updates=tuple(round(decay * per_paper_epoch) for decay in decays),
    )
