"""WideResNet with pre-activation, and one linear head that grows with every task."""

import copy
import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CHANNELS = (16, 16, 32, 64)


def _dropout(x: Tensor, rate: float, generator: torch.Generator | None) -> Tensor:
    """Dropout from a generator of our own: torch's draws from the global one.

    Four elements share one 64-bit draw, 16 bits each: several times faster on a CPU than a draw per element.
    """
    threshold = round((1 - rate) * 65536)
    if generator is None or threshold == 65536:
        return x
    number, channels, height, width = x.shape
    words = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device)
    words.random_(-(2**63), None, generator=generator)
    bits = words.view(torch.int16)[: x.numel()].view(number, height, width, channels).permute(0, 3, 1, 2)
    return x * (bits < threshold - 32768).to(x.dtype).mul_(65536 / threshold)


class Block(nn.Module):
    """Two 3x3 convolutions around a shortcut, dropout between them."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(inputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.shortcut = nn.Conv2d(inputs, outputs, 1, stride, bias=False) if inputs != outputs else None
        self.dropout = dropout

    def forward(self, x: Tensor, dropout: torch.Generator | None) -> Tensor:
        activated = F.relu(self.norm1(x), inplace=True)
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        inner = F.relu(self.norm2(self.conv1(activated)), inplace=True)
        result: Tensor = shortcut + self.conv2(_dropout(inner, self.dropout, dropout))
        return result


class WideResNet(nn.Module):
    """WRN-depth-width over 32x32 images; `head` has one row per class learned so far."""

    def __init__(self, depth: int, width: int, dropout: float, num_classes: int, generator: torch.Generator) -> None:
        super().__init__()
        stem, *groups = CHANNELS[0], *(width * channels for channels in CHANNELS[1:])
        with torch.random.fork_rng(devices=[]):  # torch's layers draw values from the global generator; not kept
            self.stem = nn.Conv2d(3, stem, 3, padding=1, bias=False)
            blocks, inputs = [], stem
            for group, outputs in enumerate(groups):
                for layer in range((depth - 4) // 6):
                    blocks.append(Block(inputs, outputs, stride=2 if group and not layer else 1, dropout=dropout))
                    inputs = outputs
            self.blocks = nn.ModuleList(blocks)
            self.norm = nn.BatchNorm2d(inputs)
            self.head = nn.Linear(inputs, num_classes)
        _initialise(self, generator)
        self.to(memory_format=torch.channels_last)

    def features(self, x: Tensor, dropout: torch.Generator | None = None) -> Tensor:
        """The shared part: what the head sees. With a generator dropout is on, without it is off."""
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, dropout)
        return F.relu(self.norm(x), inplace=True).mean(dim=(2, 3))

    def forward(self, x: Tensor, dropout: torch.Generator | None = None) -> Tensor:
        logits: Tensor = self.head(self.features(x, dropout))
        return logits


def grown(network: WideResNet, new_classes: int, generator: torch.Generator) -> WideResNet:
    """A copy with new rows in the head; the old rows are kept bit for bit."""
    result, old = copy.deepcopy(network), network.head
    result.head = _new_head(network, old.out_features + new_classes, generator, keep=old)
    return result


def specialised(network: WideResNet, new_classes: int, generator: torch.Generator) -> WideResNet:
    """A copy of the shared part with a new head of its own: the start of a current-task teacher."""
    result = copy.deepcopy(network)
    result.head = _new_head(network, new_classes, generator)
    return result


def _new_head(network: WideResNet, rows: int, generator: torch.Generator, keep: nn.Linear | None = None) -> nn.Linear:
    like = network.head.weight
    with torch.random.fork_rng(devices=[]):
        head = nn.Linear(network.head.in_features, rows).to(like)
    kept = 0 if keep is None else keep.out_features
    with torch.no_grad():
        new = torch.empty(rows - kept, head.in_features).normal_(0, _deviation(head), generator=generator)
        head.weight[kept:] = new.to(like)
        head.bias.zero_()
        if keep is not None:
            head.weight[:kept] = keep.weight
            head.bias[:kept] = keep.bias
    return head


def _deviation(layer: nn.Conv2d | nn.Linear) -> float:
    return math.sqrt(2 / layer.weight[0].numel())


@torch.no_grad()
def _initialise(network: nn.Module, generator: torch.Generator) -> None:
    """Weights N(0, sqrt(2 / fan_in)), batch-norm scales U(0, 1), biases 0."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.normal_(0, _deviation(module), generator=generator)
        elif isinstance(module, nn.BatchNorm2d):
            module.weight.uniform_(0, 1, generator=generator)
        if getattr(module, "bias", None) is not None:
            module.bias.zero_()  # type: ignore[operator]
