"""The trainings of a stage as data: a learner trains by this description, and `gd-ray plan` counts its cost."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gd_ray.conventions import convention_named
from gd_ray.coreset import images_per_previous_class
from gd_ray.schedule import Schedule, Training

if TYPE_CHECKING:
    from gd_ray.spec import TrialSpec

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
    def labelled(self) -> int:
        return self.current + self.exemplars

    @property
    def all(self) -> int:
        return self.labelled + self.external


@dataclass(frozen=True)
class Step:
    """One training of a stage, or one use of a network without learning."""

    name: str
    """Names its progress, losses, times and random numbers: 'teacher', 'model', 'fine-tune' or a learner's own."""
    training: Training | None
    """Its schedule; None if nothing learns and every image is looked at once."""
    images: int
    """Images of one epoch."""
    references: float = 0
    """Models that are evaluated beside the one that learns; a fraction where only some of the images need them."""
    head_only: bool = False
    epoch_images: int | None = None
    """Images that count as one epoch of the schedule, where that is not the set itself."""
    batch_size: int | None = None
    """Images of an update, where that is not the spec's."""

    @property
    def passes(self) -> float:
        """Cost of one image, in forward passes of the network."""
        return 1 + (0 if self.head_only or self.training is None else BACKWARD) + self.references

    def schedule(self, spec: "TrialSpec") -> Schedule:
        assert self.training is not None, "this step trains nothing"
        return spec.schedule(self.training, self.epoch_images or self.images, self.batch_size)

    def images_looked_at(self, spec: "TrialSpec") -> int:
        """Return the images of all its updates."""
        if self.training is None:
            return self.images
        return self.schedule(spec).updates * min(self.batch_size or spec.batch_size, self.images)


def teacher_step(spec: "TrialSpec", sizes: StageSizes) -> Step:
    """Describe the training of a current-task teacher C, and so of the first model."""
    # Without the confidence loss nothing is to be learned from images of other classes.
    return Step("teacher", "whole", sizes.all if spec.method.confidence else sizes.current)


def distillation_steps(spec: "TrialSpec", sizes: StageSizes) -> Sequence[Step]:
    """Describe the trainings of the paper's methods after the first stage. Here, so that a plan needs no torch."""
    method = spec.method
    inside_ensemble = method.ensemble and not convention_named(spec.convention).ensemble_alone_has_no_teacher
    trains_teacher = method.teacher == "distilled" or inside_ensemble  # to distil it, or inside Q
    references = (method.previous != "none" or method.ensemble) + trains_teacher
    teacher = [teacher_step(spec, sizes)] if trains_teacher else []
    if method.fine_tuned == "nothing":
        return [*teacher, Step("model", "whole", sizes.all, references)]
    balanced = sizes.exemplars + sizes.new_classes * images_per_previous_class(sizes.exemplars, sizes.previous_classes)
    images = balanced if method.balancing == "balanced set" else sizes.all
    return [
        *teacher,
        Step("model", "before fine-tuning", sizes.all, references),
        Step("fine-tune", "fine-tuning", images, references, head_only=method.fine_tuned == "head"),
    ]
