"""BiC, bias correction (Wu et al., CVPR 2019): distil the previous model, then fit two numbers on held-out images."""

from collections.abc import Callable, Sequence
from time import perf_counter

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.functional import hessian, jacobian

from gd_ray.coreset import random_coreset
from gd_ray.errors import UserError
from gd_ray.evaluation import in_batches
from gd_ray.learner import IntArray, Learner, Stage
from gd_ray.learners.wa import replay_loss
from gd_ray.networks.classifier import Classifier, expand_head
from gd_ray.seeding import Purpose
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step

PENALTY = 0.05
"""Of the squared offset."""
SCALES = (0.1, 10.0)
"""Limits of the scale: a few held-out images that are all right would ask for an infinite one."""


def fit_bias(logits: Tensor, labels: Tensor, num_prev: int) -> tuple[float, float]:
    """Return (a, b) that minimize CE([old, a * new + b], labels) + PENALTY b^2, a convex function, to all digits."""
    logits = logits.to(torch.float64, copy=True)  # those of an inference cannot be differentiated

    def value(at: Tensor) -> Tensor:
        corrected = torch.cat([logits[:, :num_prev], logits[:, num_prev:] * at[0] + at[1]], dim=1)
        return F.cross_entropy(corrected, labels) + PENALTY * at[1] ** 2

    scale, offset = minimize(value, logits.new_tensor([1.0, 0.0])).tolist()
    if not SCALES[0] <= scale <= SCALES[1]:  # then the best one within the limits is a limit
        scale = min(max(scale, SCALES[0]), SCALES[1])
        fixed = logits.new_tensor([scale])
        offset = float(minimize(lambda b: value(torch.cat([fixed, b])), logits.new_zeros(1)))
    return scale, offset


def minimize(value: Callable[[Tensor], Tensor], at: Tensor) -> Tensor:
    """Minimize a convex function of a few numbers by Newton's method, halving steps that do not descend."""
    for _ in range(100):
        gradient, curvature = jacobian(value, at), hessian(value, at)  # type: ignore[no-untyped-call]
        if gradient.abs().max() < 1e-13:
            break
        step = -torch.linalg.solve(curvature + 1e-15 * torch.eye(len(at)).to(at), gradient)
        while value(at + step) > value(at):
            step = step / 2
        if torch.equal(at + step, at):  # rounding is all that is left
            break
        at = at + step
    return at


@torch.no_grad()
def fold_bias(head: nn.Linear, num_prev: int, scale: float, offset: float) -> None:
    """Change the head's new rows so that its logits are the corrected ones."""
    head.weight[num_prev:] *= scale
    head.bias[num_prev:] = head.bias[num_prev:] * scale + offset


class BiasCorrection(Learner):
    """Images held out for the bias are part of the coreset; they come first in it, so that they stay held out."""

    def __init__(self, spec: TrialSpec) -> None:
        super().__init__(spec)
        self.share = float(spec.method.option("held_out", 0.1))
        if not 0 < self.share <= 0.5:
            raise UserError(f"method {spec.method.name!r}: held_out {self.share} must be above 0 and at most 0.5.")
        num_prev = sum(spec.task_sizes[:-1])
        kept = min(spec.coreset_size, num_prev * (spec.train_per_class or spec.coreset_size))
        self._check(kept, num_prev)

    def _check(self, exemplars: int, num_prev: int) -> int:
        """Return the images of each class to hold out; refuse to hold out none."""
        number = int(self.share * exemplars / num_prev + 1e-9)
        if not number:
            raise UserError(
                f"coreset_size {self.spec.coreset_size} leaves method {self.spec.method.name!r} {exemplars} images of "
                f"{num_prev} previous classes, of which a share of {self.share} is none to hold out of each; raise "
                f"coreset_size, or train_per_class, until it is one."
            )
        return number

    def steps(self, sizes: StageSizes) -> Sequence[Step]:
        held_out = self._check(sizes.exemplars, sizes.previous_classes)
        held_out *= sizes.previous_classes + sizes.new_classes
        return [Step("model", "whole", sizes.all - held_out, references=1), Step("bias", None, held_out)]

    def train(self, stage: Stage, previous: Classifier | None) -> Classifier:
        assert previous is not None, "this method shares its first model"
        held_out = self.held_out(stage)
        model = expand_head(previous, stage.num_new, stage.init_rng())
        step, _ = self.steps(stage.sizes)
        stage.fit(step, model, replay_loss(self.spec, previous), np.setdiff1d(stage.all, held_out))
        started = perf_counter()
        logits = in_batches(model.logits, model, stage.images[torch.from_numpy(held_out)], stage.statistics)
        scale, offset = fit_bias(logits.cpu(), torch.from_numpy(stage.labels_of(held_out)), stage.num_prev)
        fold_bias(model.head, stage.num_prev, scale, offset)
        stage.log.add("bias", started, len(held_out))
        stage.log.recorded |= {"bias scale": scale, "bias offset": offset}
        return model

    def held_out(self, stage: Stage) -> IntArray:
        """Return as many images of each class: the coreset's first ones of a previous class, random ones of a new."""
        number = self._check(len(stage.exemplars), stage.num_prev)
        quotas = np.full(sum(stage.task_sizes), number)
        quotas[: stage.num_prev] = 0
        new = random_coreset(stage.current, stage.labels_of(stage.current), quotas, stage.numpy_rng(Purpose.HELD_OUT))
        labels = stage.labels_of(stage.ranked_exemplars)
        old = [stage.ranked_exemplars[labels == label][:number] for label in range(stage.num_prev)]
        chosen = np.concatenate([*old, new])
        counts = np.bincount(stage.labels_of(stage.labelled))
        if counts.min() <= number:
            raise UserError(
                f"a class with {counts.min()} images at stage {stage.number} leaves method {self.spec.method.name!r} "
                f"none to train on once {number} are held out; add images or lower held_out."
            )
        return chosen

    def select_coreset(self, stage: Stage, model: Classifier) -> IntArray:
        if stage.number == 1:  # that of every method which shares the first model
            return super().select_coreset(stage, model)
        labelled = stage.labelled
        labels = stage.labels_of(labelled)
        ranked = random_coreset(labelled, labels, np.bincount(labels), stage.numpy_rng(Purpose.CORESET))
        ranked = ranked[np.lexsort((~np.isin(ranked, self.held_out(stage)), stage.labels_of(ranked)))]
        return np.concatenate([ranked[stage.labels_of(ranked) == k][:quota] for k, quota in enumerate(stage.quotas)])
