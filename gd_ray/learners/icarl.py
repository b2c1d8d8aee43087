"""iCaRL (Rebuffi et al., CVPR 2017): sigmoid distillation, herded exemplars, and the nearest mean of exemplars."""

from collections.abc import Sequence
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.coreset import herd
from gd_ray.errors import UserError, unknown_name
from gd_ray.evaluation import class_means, unit_features
from gd_ray.learner import IntArray, Learner, Stage
from gd_ray.learners.distillation import train_teacher
from gd_ray.learners.wa import replay_loss
from gd_ray.losses import EXTERNAL, masked_mean
from gd_ray.networks.classifier import Classifier, expand_head
from gd_ray.networks.nearest_mean import NearestMeanClassifier
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step, teacher_step
from gd_ray.training import ReferenceLoss

LOSSES = ("sigmoid", "cross-entropy")
"""The paper's loss, and cross-entropy with distillation, which other tables call iCaRL as well."""


def sigmoid_terms(logits: Tensor, labels: Tensor, previous: Tensor | None) -> dict[str, Tensor]:
    """Return binary cross-entropies summed over outputs: new classes against labels, previous ones against P."""
    num_prev = 0 if previous is None else previous.shape[1]
    classes = torch.arange(num_prev, logits.shape[1], device=logits.device)
    targets = (labels[:, None] == classes).to(logits)
    cls = F.binary_cross_entropy_with_logits(logits[:, num_prev:], targets, reduction="none").sum(dim=1)
    terms = {"cls": masked_mean(cls, labels != EXTERNAL)}
    if previous is not None:
        kept = F.binary_cross_entropy_with_logits(logits[:, :num_prev], previous.sigmoid(), reduction="none")
        terms["previous"] = masked_mean(kept.sum(dim=1))
    return terms


class ICaRL(Learner):
    """The first model learns with the same loss, from the weights and batches of the first model that others share."""

    kind = NearestMeanClassifier

    def __init__(self, spec: TrialSpec) -> None:
        super().__init__(spec)
        self.loss = str(spec.method.option("loss", LOSSES[0]))
        if self.loss not in LOSSES:
            raise unknown_name(f"method {spec.method.name!r}: loss", self.loss, LOSSES)
        if spec.coreset_size < spec.num_classes:
            raise UserError(
                f"coreset_size {spec.coreset_size} leaves method {spec.method.name!r} no exemplar for some of "
                f"{spec.num_classes} classes, whose mean it classifies by; raise it to {spec.num_classes} or more."
            )

    def steps(self, sizes: StageSizes) -> Sequence[Step]:
        if sizes.number > 1:
            training = Step("model", "whole", sizes.all, references=1)
        else:
            training = teacher_step(self.spec, sizes)
            if self.loss != "cross-entropy":
                training = replace(training, images=sizes.current)
        kept = min(self.spec.coreset_size, sizes.current + sizes.exemplars)
        return [training, Step("herd", None, sizes.current + 2 * kept)]

    def train(self, stage: Stage, previous: Classifier | None) -> Classifier:
        step, _ = self.steps(stage.sizes)
        if previous is None:
            model, images = self.new_model(stage.num_new, stage.init_rng()).to(stage.device), stage.current
            if self.loss == "cross-entropy":
                return train_teacher(stage, model)
        else:
            model, images = expand_head(previous, stage.num_new, stage.init_rng()), stage.all
        if previous is not None and self.loss == "cross-entropy":
            loss = replay_loss(self.spec, previous)
        else:
            loss = ReferenceLoss(sigmoid_terms, previous, precision=self.spec.precision)
        stage.fit(step, model, loss, images)
        return model

    def select_coreset(self, stage: Stage, model: Classifier) -> IntArray:
        """Herd the new classes, keep the first of the previous ones, and give the model the means of all."""
        started, chosen = perf_counter(), []
        for label, quota in enumerate(stage.quotas.tolist()):
            kept = stage.ranked_exemplars if label < stage.num_prev else stage.current
            kept = kept[stage.labels_of(kept) == label]
            if label >= stage.num_prev:  # a class is herded once, when it is new
                kept = kept[herd(self._features(stage, model, kept), quota)]
            chosen.append(kept[:quota])
        exemplars = np.concatenate(chosen)
        views = [self._features(stage, model, exemplars, mirrored=mirrored) for mirrored in (False, True)]
        labels = np.tile(stage.labels_of(exemplars), 2)
        means = torch.from_numpy(class_means(np.concatenate(views), labels, model.num_classes))
        assert isinstance(model, NearestMeanClassifier)
        model.means = means.to(model.head.weight)
        stage.log.add("herd", started, len(stage.current) + 2 * len(exemplars))
        return exemplars

    def _features(
        self, stage: Stage, model: Classifier, indices: IntArray, *, mirrored: bool = False
    ) -> NDArray[np.float64]:
        images = stage.images[torch.from_numpy(indices)]
        return unit_features(model, images.flip(2) if mirrored else images, stage.statistics)
