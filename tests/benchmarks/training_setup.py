"""The images and networks of a stage of GD+ext, which `bench_train.py` measures.

Everything that is random is drawn from fixed seeds, so that both implementations start from the same weights.
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from gd_ray.conventions import CONVENTIONS
from gd_ray.data.pixels import Statistics
from gd_ray.learner import Stage
from gd_ray.networks.classifier import Classifier, expand_head, new_classifier, with_new_head
from gd_ray.objective import ModelObjective
from gd_ray.spec import TrialSpec
from tests.helpers.stages import make_stage

TASK, SHARE = 10, 20
STATISTICS = Statistics((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))


def numbers(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@dataclass(frozen=True)
class Setup:
    """The images and networks of a stage; `share` scales the paper's numbers of images down."""

    stage: int = 5
    share: int = SHARE
    statistics: Statistics = STATISTICS

    @property
    def num_prev(self) -> int:
        return TASK * (self.stage - 1)

    @property
    def num_seen(self) -> int:
        return TASK * self.stage

    @cached_property
    def labels(self) -> Tensor:
        """The current task, then the coreset, then the external set of as many images, without labels."""
        current = torch.arange(self.num_prev, self.num_seen).repeat_interleave(500 // self.share)
        coreset = torch.arange(2000 // self.share) % self.num_prev
        return torch.cat([current, coreset, torch.full((len(current) + len(coreset),), -1)])

    @cached_property
    def images(self) -> Tensor:
        return torch.randint(0, 256, (len(self.labels), 32, 32, 3), dtype=torch.uint8, generator=numbers())

    @cached_property
    def test_labels(self) -> Tensor:
        return torch.arange(self.num_seen).repeat_interleave(100 // self.share)

    @cached_property
    def test_images(self) -> Tensor:
        return torch.randint(0, 256, (len(self.test_labels), 32, 32, 3), dtype=torch.uint8, generator=numbers())

    @cached_property
    def previous(self) -> Classifier:
        return new_classifier("wrn-16-2", 0.3, self.num_prev, numbers()).eval()

    @cached_property
    def teacher(self) -> Classifier:
        return with_new_head(self.previous, TASK, numbers()).eval()

    @cached_property
    def model(self) -> Classifier:
        return expand_head(self.previous, TASK, numbers())

    @property
    def counts(self) -> Tensor:
        return torch.bincount(self.labels[self.labels >= 0], minlength=self.num_seen)

    def objective(self, *, fine_tuning: bool = False) -> ModelObjective:
        spec = TrialSpec(method="gd+ext")
        return ModelObjective(
            task_sizes=(TASK,) * self.stage,
            previous="global",
            teacher="distilled",
            ensemble=True,
            confidence=True,
            fine_tuning=fine_tuning,
            temperature=spec.temperature,
            ensemble_temperature=spec.ensemble_temperature,
            convention=CONVENTIONS[spec.convention],
            class_counts=self.counts.float() if fine_tuning else None,
        )

    def stage_of(self, spec: TrialSpec) -> Stage:
        current, labelled = TASK * (500 // self.share), len(self.labels) // 2
        return make_stage(spec, self.stage, self.images, self.labels, self.statistics, current, labelled)
