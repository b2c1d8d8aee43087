"""DMC, deep model consolidation (Zhang et al., WACV 2020): a student regresses two specialists on unlabeled images."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from gd_ray.errors import UserError
from gd_ray.learner import IntArray, Learner, Stage
from gd_ray.learners.distillation import train_teacher
from gd_ray.networks.classifier import Classifier
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step, teacher_step
from gd_ray.training import ReferenceLoss

IMAGES = 100_000
"""Stream images of a stage, if its window has as many."""


def consolidation_target(previous: Tensor, current: Tensor) -> Tensor:
    """Return the logits of both specialists, each centred over its own classes, image by image."""
    return torch.cat([logits - logits.mean(dim=1, keepdim=True) for logits in (previous, current)], dim=1)


def consolidation_terms(logits: Tensor, _: Tensor, previous: Tensor, current: Tensor) -> dict[str, Tensor]:
    """Return the mean squared distance to the specialists' centred logits; labels do not matter."""
    return {"regression": (logits - consolidation_target(previous, current)).square().mean()}


class Consolidation(Learner):
    """P and a C, trained from new weights on the current task alone, are consolidated into an M from new weights.

    The option 'coreset' lets exemplars join the unlabeled images; without it none are kept.
    """

    def __init__(self, spec: TrialSpec) -> None:
        super().__init__(spec)
        if not spec.method.external:
            raise UserError(
                f"method {spec.method.name!r} learns from unlabeled images only; give it external=True and a stream."
            )
        self.uses_coreset = bool(spec.method.option("coreset", default=False))

    def external_size(self, labelled: int) -> int:  # noqa: ARG002
        return min(int(self.spec.method.option("images", IMAGES)), self.spec.window)

    def steps(self, sizes: StageSizes) -> Sequence[Step]:
        teacher = teacher_step(self.spec, sizes)
        if sizes.number == 1:
            return [teacher]
        images = sizes.external + (sizes.exemplars if self.uses_coreset else 0)
        # As many updates as GD+ext takes to train its M: on the task, a coreset, and as many external images.
        earlier = sizes.current * sizes.previous_classes // sizes.new_classes
        epoch = 2 * (sizes.current + min(self.spec.coreset_size, earlier))
        return [teacher, Step("model", "before fine-tuning", images, references=2, epoch_images=epoch)]

    def train(self, stage: Stage, previous: Classifier | None) -> Classifier:
        rng = stage.init_rng()
        current = train_teacher(stage, self.new_model(stage.num_new, rng).to(stage.device))
        if previous is None:
            return current
        model = self.new_model(sum(stage.task_sizes), rng).to(stage.device)
        loss = ReferenceLoss(consolidation_terms, previous, current, precision=self.spec.precision)
        unlabelled = np.concatenate([stage.exemplars, stage.external]) if self.uses_coreset else stage.external
        stage.fit(self.steps(stage.sizes)[-1], model, loss, unlabelled)
        return model

    def select_coreset(self, stage: Stage, model: Classifier) -> IntArray:
        return super().select_coreset(stage, model) if self.uses_coreset else np.empty(0, np.int64)
