"""A network with the features of two backbones: those of a previous model, which is frozen, and new ones."""

import copy

import torch
from torch import Tensor, nn

from gd_ray.networks.classifier import Classifier, as_reference, initialize
from gd_ray.networks.dropout import DropoutRng


class BoostedBackbone(nn.Module):
    """The features of P, which does not learn, beside those of a backbone that does."""

    def __init__(self, previous: Classifier, new: nn.Module) -> None:
        super().__init__()
        self.previous, self.new, self.dim = previous, new, 2 * previous.head.in_features

    def forward(self, images: Tensor, dropout: DropoutRng | None = None) -> Tensor:
        with torch.no_grad():
            old = self.previous.features(images)
        return torch.cat([old, self.new(images, dropout)], dim=1)

    def train(self, mode: bool = True) -> "BoostedBackbone":
        super().train(mode)
        self.previous.eval()
        return self


class BoostedHead(nn.Linear):
    """A head over old and new features that starts from P's. It returns three blocks of logits side by side: its own,
    those of a head over the new features alone, and P's."""

    def __init__(self, previous: nn.Linear, num_classes: int, rng: torch.Generator) -> None:
        with torch.random.fork_rng(devices=[]):
            super().__init__(2 * previous.in_features, num_classes)
            self.new = nn.Linear(previous.in_features, num_classes)
        initialize(self, rng)
        self.to(previous.weight)
        self.previous = copy.deepcopy(previous).requires_grad_(False)
        with torch.no_grad():
            self.weight[: previous.out_features, : previous.in_features] = previous.weight
            self.bias[: previous.out_features] = previous.bias

    def forward(self, features: Tensor) -> Tensor:
        old, new = features.chunk(2, dim=1)
        return torch.cat([super().forward(features), self.new(new), self.previous(old)], dim=1)


def boosted_classifier(
    previous: Classifier, num_classes: int, rng: torch.Generator, *, bfloat16: bool = False
) -> Classifier:
    """Return a network whose new backbone starts as P's; only parameters that learn take gradients."""
    result, frozen = copy.deepcopy(previous), copy.deepcopy(as_reference(previous, bfloat16=bfloat16))
    result.backbone = BoostedBackbone(frozen.requires_grad_(False), result.backbone)  # type: ignore[assignment]
    result.head = BoostedHead(previous.head, num_classes, rng)
    return result
