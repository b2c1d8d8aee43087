"""WideResNet with pre-activation."""

import torch.nn.functional as F
from torch import Tensor, nn

from gd_ray.networks.dropout import DropoutRng, drop

CHANNELS = (16, 16, 32, 64)


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

    def forward(self, x: Tensor, dropout: DropoutRng | None) -> Tensor:
        activated = F.relu(self.norm1(x), inplace=True)
        shortcut = x if self.shortcut is None else self.shortcut(activated)
        inner = F.relu(self.norm2(self.conv1(activated)), inplace=True)
        result: Tensor = shortcut + self.conv2(drop(inner, self.dropout, dropout))
        return result


class WideResNet(nn.Module):
    """The backbone WRN-depth-width, for images of any side."""

    def __init__(self, depth: int, width: int, dropout: float) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, CHANNELS[0], 3, padding=1, bias=False)
        blocks, inputs = [], CHANNELS[0]
        for group, channels in enumerate(CHANNELS[1:]):
            for layer in range((depth - 4) // 6):
                stride = 2 if group and not layer else 1
                blocks.append(Block(inputs, width * channels, stride, dropout))
                inputs = width * channels
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.BatchNorm2d(inputs)
        self.dim = inputs

    def forward(self, x: Tensor, dropout: DropoutRng | None = None) -> Tensor:
        x = self.stem(x)
        for block in self.blocks:
            x = block(x, dropout)
        return F.relu(self.norm(x), inplace=True).mean(dim=(2, 3))
