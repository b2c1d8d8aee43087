"""ResNet-32 and ResNet-18 for small images, as other papers on class-incremental learning use them."""

import torch.nn.functional as F
from torch import Tensor, nn

from gd_ray.networks.dropout import DropoutRng, drop


class BasicBlock(nn.Module):
    """Two 3x3 convolutions with batch norm around a shortcut."""

    def __init__(self, inputs: int, outputs: int, stride: int, dropout: float, *, projection: bool) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.stride, self.added, self.dropout = stride, outputs - inputs, dropout
        changes = stride != 1 or inputs != outputs
        self.project = (
            nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))
            if projection and changes
            else None
        )

    def forward(self, x: Tensor, dropout: DropoutRng | None) -> Tensor:
        inner = F.relu(self.norm1(self.conv1(x)), inplace=True)
        inner = self.norm2(self.conv2(drop(inner, self.dropout, dropout)))
        return F.relu(inner + self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if self.project is not None:
            result: Tensor = self.project(x)
            return result
        if self.stride == 1 and not self.added:
            return x
        # Option A of He et al.: every second pixel, new channels filled with zeros.
        return F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, 0, self.added))


class ResNet(nn.Module):
    """A 3x3 stem, groups of basic blocks that halve the side from the second on, and global average pooling."""

    def __init__(self, channels: tuple[int, ...], blocks: int, dropout: float, *, projection: bool) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, channels[0], 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels[0])
        layers, inputs = [], channels[0]
        for group, outputs in enumerate(channels):
            for layer in range(blocks):
                stride = 2 if group and not layer else 1
                layers.append(BasicBlock(inputs, outputs, stride, dropout, projection=projection))
                inputs = outputs
        self.blocks = nn.ModuleList(layers)
        self.dim = inputs

    def forward(self, x: Tensor, dropout: DropoutRng | None = None) -> Tensor:
        x = F.relu(self.norm(self.stem(x)), inplace=True)
        for block in self.blocks:
            x = block(x, dropout)
        return x.mean(dim=(2, 3))


def resnet_32(dropout: float) -> ResNet:
    """Three groups of five blocks, 16-32-64 channels, option-A shortcuts: 0.46 million parameters."""
    return ResNet((16, 32, 64), 5, dropout, projection=False)


def resnet_18(dropout: float) -> ResNet:
    """Four groups of two blocks, 64-128-256-512 channels, a 3x3 stem and no max-pooling: 11.2 million parameters."""
    return ResNet((64, 128, 256, 512), 2, dropout, projection=True)
