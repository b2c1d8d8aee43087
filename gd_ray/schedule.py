"""How long each training lasts and how its learning rate decays: the paper's (appendix B), and along cosines."""

import math
from dataclasses import dataclass
from typing import Literal

DECAY = 0.1


@dataclass(frozen=True)
class Cosine:
    """A training whose learning rate falls to 0 along half a cosine, and starts anew with each further cycle."""

    cycles: tuple[int, ...]
    """Epochs of each cycle."""
    share: float = 1.0
    """Share of the spec's learning rate that a cycle starts with."""


PaperTraining = Literal["whole", "before fine-tuning", "fine-tuning"]
Training = PaperTraining | Cosine

_PAPER: dict[PaperTraining, tuple[float, float, tuple[float, ...]]] = {
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


@dataclass(frozen=True)
class CosineSchedule(Schedule):
    """Epochs of one rate each: a GPU records an update anew for every rate."""

    cycles: tuple[int, ...]
    updates_per_scaled_epoch: float

    def rate(self, update: int) -> float:
        epoch = int(update / self.updates_per_scaled_epoch)
        for length in self.cycles:
            if epoch < length:
                return self.learning_rate * (1 + math.cos(math.pi * epoch / length)) / 2
            epoch -= length
        raise IndexError(f"update {update} is after the last of {self.updates}")


def schedule(
    training: Training, *, images: int, batch_size: int, epoch_factor: float, learning_rate: float
) -> Schedule:
    """Return the schedule of a training on a set of `images`, all epochs scaled by one factor.

    It is kept in updates, so that a factor may leave fractions of an epoch and every decay keeps its share. A set
    smaller than a batch is one batch.
    """
    updates_per_epoch = max(1, images // batch_size)
    per_scaled_epoch = updates_per_epoch * epoch_factor
    if isinstance(training, Cosine):
        return CosineSchedule(
            updates=max(1, round(sum(training.cycles) * per_scaled_epoch)),
            updates_per_epoch=updates_per_epoch,
            learning_rate=learning_rate * training.share,
            decay_updates=(),
            cycles=training.cycles,
            updates_per_scaled_epoch=per_scaled_epoch,
        )
    epochs, share, decays = _PAPER[training]
    return Schedule(
        updates=max(1, round(epochs * per_scaled_epoch)),
        updates_per_epoch=updates_per_epoch,
        learning_rate=learning_rate * share,
        decay_updates=tuple(round(decay * per_scaled_epoch) for decay in decays),
    )
