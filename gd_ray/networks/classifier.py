"""A backbone and one linear head that grows with every task."""

import copy
import math
from typing import Protocol

import torch
from torch import Tensor, nn

from gd_ray.networks import backbone_builder
from gd_ray.networks.dropout import DropoutRng


class Backbone(Protocol):
    """What a network must offer: features of shape (n, dim). With random numbers dropout is on, without it is off."""

    dim: int

    def __call__(self, images: Tensor, dropout: DropoutRng | None = None) -> Tensor: ...


class Classifier(nn.Module):
    """A backbone and a head with one row per class learned so far."""

    def __init__(self, backbone: Backbone, num_classes: int, rng: torch.Generator) -> None:
        super().__init__()
        assert isinstance(backbone, nn.Module), "a backbone is an nn.Module"
        self.backbone = backbone
        with torch.random.fork_rng(devices=[]):  # torch draws values that are not kept from its global generator
            self.head = nn.Linear(backbone.dim, num_classes)
        initialize(self, rng)
        self.to(memory_format=torch.channels_last)

    @property
    def num_classes(self) -> int:
        return self.head.out_features

    @property
    def device(self) -> torch.device:
        return self.head.weight.device

    def features(self, inputs: Tensor, dropout: DropoutRng | None = None) -> Tensor:
        result: Tensor = self.backbone(inputs, dropout)
        return result

    def logits(
        self,
        inputs: Tensor,
        dropout: DropoutRng | None = None,
        *,
        head_only: bool = False,
        bfloat16: bool = False,
    ) -> Tensor:
        """Return logits; bfloat16 computes the backbone in that precision, the head always in its own.

        With `head_only` no gradient flows into the backbone.
        """
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and not head_only),
            torch.autocast(inputs.device.type, torch.bfloat16, enabled=bfloat16),
        ):
            features = self.features(inputs, dropout)
        result: Tensor = self.head(features.to(self.head.weight.dtype))
        return result

    def forward(self, inputs: Tensor, dropout: DropoutRng | None = None) -> Tensor:
        return self.logits(inputs, dropout)

    def scores(self, inputs: Tensor) -> Tensor:
        """Return what each image is classified by, the highest score of its row: the logits, unless overridden."""
        return self.logits(inputs)

    @classmethod
    def has_own_scores(cls) -> bool:
        """Whether it classifies by something else than its head, which is tested apart then."""
        return cls.scores is not Classifier.scores

    def predict(self, inputs: Tensor) -> Tensor:
        """Return the predicted class of each image."""
        return self.scores(inputs).argmax(dim=1)


def new_classifier(
    network: str, dropout: float, num_classes: int, rng: torch.Generator, kind: type[Classifier] = Classifier
) -> Classifier:
    """Build the network of that name with weights drawn from `rng`; they do not depend on the kind of classifier."""
    with torch.random.fork_rng(devices=[]):
        backbone = backbone_builder(network)(dropout)
    return kind(backbone, num_classes, rng)


def as_reference(model: Classifier, *, bfloat16: bool = False) -> Classifier:
    """Return the model for comparison while another learns: without dropout, and not to be changed.

    With bfloat16 it is a copy whose weights are cast once; autocast would cast them in every update.
    """
    model.eval()
    if not bfloat16:
        return model
    result = copy.deepcopy(model)
    for module in result.backbone.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.to(torch.bfloat16)
    return result


def expand_head(model: Classifier, new_classes: int, rng: torch.Generator) -> Classifier:
    """Return a copy with new rows in the head; the old rows are kept bit for bit."""
    result, old = copy.deepcopy(model), model.head
    result.head = _new_head(old, old.out_features + new_classes, rng, kept=old.out_features)
    return result


def with_new_head(model: Classifier, num_classes: int, rng: torch.Generator) -> Classifier:
    """Return a copy of the backbone under a new head: the start of a current-task teacher."""
    result = copy.deepcopy(model)
    result.head = _new_head(model.head, num_classes, rng, kept=0)
    return result


def _new_head(old: nn.Linear, rows: int, rng: torch.Generator, kept: int) -> nn.Linear:
    with torch.random.fork_rng(devices=[]):
        head = nn.Linear(old.in_features, rows).to(old.weight)
    with torch.no_grad():
        new = torch.empty(rows - kept, head.in_features).normal_(0, _deviation(head), generator=rng)
        head.weight[kept:] = new.to(old.weight)
        head.weight[:kept] = old.weight[:kept]
        head.bias.zero_()
        head.bias[:kept] = old.bias[:kept]
    return head


def _deviation(layer: nn.Conv2d | nn.Linear) -> float:
    return math.sqrt(2 / layer.weight[0].numel())


@torch.no_grad()
def initialize(network: nn.Module, rng: torch.Generator) -> None:
    """Draw weights from N(0, sqrt(2 / fan_in)) and batch-norm scales from U(0, 1); set biases to 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.normal_(0, _deviation(module), generator=rng)
        elif isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0, 1, generator=rng)
        if isinstance(getattr(module, "bias", None), Tensor):
            module.bias.zero_()  # type: ignore[operator]
