"""The trainings of a stage as data: a learner trains by this description, and `gd-ray plan` counts its cost."""

from dataclasses import dataclass

from gd_ray.schedule import Training

BACKWARD = 2.0
"""Cost of a backward pass, in forward passes."""


@dataclass(frozen=True)
class StageSizes:
    """How many classes and images a stage has."""

    number: int
    """Of the stage, from 1."""
    previous_classes: int
    new_classes: int
    current: int
    """Images of the current task."""
    exemplars: int
    """Labelled images of previous tasks."""
    external: int

    @property
    def all(self) -> int:
        return self.current + self.exemplars + self.external


@dataclass(frozen=True)
class Step:
    """One training of a stage."""

    name: str
    """Names its progress, losses, times and random numbers: 'teacher', 'model', 'fine-tune' or a learner's own."""
    training: Training
    """Its schedule."""
    images: int
    """Images of one epoch."""
    references: int = 0
    """Models that are evaluated beside the one that learns."""
    head_only: bool = False
    epoch_images: int | None = None
    """Images that count as one epoch of the schedule, where that is not the set itself."""

    @property
    def passes(self) -> float:
        """Cost of one image, in forward passes of the network."""
        return 1 + (0 if self.head_only else BACKWARD) + self.references
