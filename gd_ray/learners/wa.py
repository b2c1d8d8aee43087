"""WA, weight aligning (Zhao et al., CVPR 2020): distil the previous model, then scale the head's new rows."""

from functools import partial

import torch
from torch import Tensor, nn

from gd_ray.learner import Learner, Stage
from gd_ray.losses import EXTERNAL, classification, distillation, masked_mean, softmax_with_temperature
from gd_ray.networks.classifier import Classifier, expand_head
from gd_ray.spec import TrialSpec
from gd_ray.training import ReferenceLoss


def replay_terms(logits: Tensor, labels: Tensor, previous: Tensor, temperature: float) -> dict[str, Tensor]:
    """Return (1 - share) CE over labelled images and share KD over all; the share is that of previous classes.

    Conventions of the paper do not apply: the temperature is not squared, and P is weighted by all classes seen.
    """
    num_prev = previous.shape[1]
    share = num_prev / logits.shape[1]
    kept = distillation(logits[:, :num_prev], softmax_with_temperature(previous, temperature), temperature)
    cls = masked_mean(classification(logits, labels), labels != EXTERNAL)
    return {"cls": (1 - share) * cls, "previous": share * masked_mean(kept)}


def replay_loss(spec: TrialSpec, previous: Classifier) -> ReferenceLoss:
    return ReferenceLoss(partial(replay_terms, temperature=spec.temperature), previous, precision=spec.precision)


@torch.no_grad()
def align(head: nn.Linear, num_prev: int) -> float:
    """Give the head's new rows the mean norm of the previous ones, in place; return what they were multiplied by."""
    norms = head.weight.norm(dim=1)
    gamma = norms[:num_prev].mean() / norms[num_prev:].mean()
    head.weight[num_prev:] *= gamma
    head.bias[num_prev:] *= gamma
    return float(gamma)


class WeightAligning(Learner):
    """The aligned model is tested, scores the stream, and is the next stage's P."""

    def train(self, stage: Stage, previous: Classifier | None) -> Classifier:
        assert previous is not None, "this method shares its first model"
        model = expand_head(previous, stage.num_new, stage.init_rng())
        (step,) = self.steps(stage.sizes)
        stage.fit(step, model, replay_loss(self.spec, previous), stage.all)
        stage.log.recorded["gamma"] = align(model.head, stage.num_prev)
        return model
