"""Strong views of images, as FixMatch (Sohn et al., NeurIPS 2020) takes them: RandAugment and cutout, batch by batch.

Two operations of RandAugment, each of a random strength, then a grey square. An image's operation is chosen without a
branch, since a GPU records a batch once: all are computed, and each image takes the result of its own.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from gd_ray.data.augmentation import (
    Augmentation,
    BatchDraw,
    TrainingBatches,
    augment,
    constants_for,
    grey,
    normalize,
    to_device,
)

OPERATIONS = (
    *("identity", "autocontrast", "equalize", "rotate", "shear x", "shear y", "translate x", "translate y"),
    *("posterize", "solarize", "brightness", "contrast", "color", "sharpness"),
)
ROUNDS = 2
DRAWS = 2 * ROUNDS + 2
"""Random numbers of an image: operation and strength of each round, row and column of the square."""
GREY = 127


@dataclass(frozen=True)
class ViewBatches:
    """Augmented images of two sets side by side, and strong views of the second: labelled images, weak and strong views
    of unlabelled ones."""

    labelled: TrainingBatches
    unlabelled: TrainingBatches
    rng: torch.Generator

    def __iter__(self) -> Iterator[BatchDraw]:
        for labelled, unlabelled in zip(self.labelled, self.unlabelled, strict=True):
            draws = torch.rand(DRAWS, unlabelled[0].shape[1], generator=self.rng)
            both = (torch.cat(parts, dim=1) for parts in zip(labelled, unlabelled, strict=True))
            yield *both, to_device(draws, self.unlabelled.images.device)

    def loader(self) -> Callable[[Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]:
        images, labels = self.unlabelled.images, self.unlabelled.labels

        def load(whole: Tensor, factors: Tensor, draws: Tensor) -> tuple[Tensor, Tensor]:
            weak = augment(images[whole[0]], Augmentation.of(whole[1:], factors))
            strong = strong_view(weak[-draws.shape[1] :], draws)
            return normalize(torch.cat([weak, strong]), self.unlabelled.statistics), labels[whole[0]]

        return load


def strong_view(images: Tensor, draws: Tensor) -> Tensor:
    """Distort whole-numbered pixels (n, side, side, 3) in [0, 255] by uniform draws (DRAWS, n) in [0, 1)."""
    for kind, strength in draws[:-2].view(ROUNDS, 2, -1):
        images = distort(images, (kind * len(OPERATIONS)).long(), strength)
    return cut_out(images, draws[-2], draws[-1])


def distort(x: Tensor, kind: Tensor, strength: Tensor) -> Tensor:
    """Apply to each image the operation of its number; strengths in [0, 1) span what FixMatch allows of it."""
    u = strength[:, None, None, None]
    luminance = grey(x, constants_for(len(x), x.shape[1], x.device).luminance.to(x))[..., None]
    step = torch.exp2(4 - (5 * u).floor())  # 4 to 8 bits are kept
    factor = 0.05 + 0.9 * u
    results = {
        "autocontrast": _autocontrast(x),
        "equalize": _equalize(x),
        "posterize": (x / step).floor() * step,
        "solarize": torch.where(x < 256 * u, x, 255 - x),
        "brightness": (x * factor).floor(),
        "contrast": _blend((luminance.mean(dim=(1, 2), keepdim=True) + 0.5).floor(), x, factor),
        "color": _blend(luminance, x, factor),
        "sharpness": _blend(_smooth(x), x, factor),
    }
    moved = _move(x, kind, 2 * strength - 1)
    for name, result in results.items():
        moved = torch.where((kind == OPERATIONS.index(name))[:, None, None, None], result, moved)
    return moved


def _blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    return (base + (x - base) * factor).floor()


def _autocontrast(x: Tensor) -> Tensor:
    """Stretch each channel to all of [0, 255]."""
    low, high = x.amin(dim=(1, 2), keepdim=True), x.amax(dim=(1, 2), keepdim=True)
    return torch.where(high > low, ((x - low) * 255 / (high - low).clamp(min=1)).floor(), x)


def _equalize(x: Tensor) -> Tensor:
    """Map the values of each channel to equal shares of its pixels, as PIL does."""
    values = x.permute(0, 3, 1, 2).flatten(2).contiguous()
    ordered = values.sort(dim=2).values
    step = (values < ordered[:, :, -1:]).sum(dim=2, keepdim=True) // 255
    mapped = (step // 2 + torch.searchsorted(ordered, values)) // step.clamp(min=1)
    result = torch.where(step > 0, mapped.clamp(max=255).to(x), values)
    return result.transpose(1, 2).reshape(x.shape)


def _smooth(x: Tensor) -> Tensor:
    """Average each pixel, five times, with its eight neighbours, as PIL does but at the border."""
    padded = F.pad(x.permute(0, 3, 1, 2), (1, 1, 1, 1), mode="replicate")
    sums = F.avg_pool2d(padded, 3, stride=1, divisor_override=1).permute(0, 2, 3, 1)
    return ((sums + 4 * x) / 13 + 0.5).floor()


def _move(x: Tensor, kind: Tensor, v: Tensor) -> Tensor:
    """Rotate by up to 30 degrees, or shear or translate by up to 0.3 of the side, around the centre; black outside."""

    def amount(name: str, most: float) -> Tensor:
        return torch.where(kind == OPERATIONS.index(name), most * v, 0)[:, None, None]

    side = x.shape[1]
    centred = torch.arange(side, device=x.device).to(v) + 0.5 - side / 2
    row, column = centred[:, None], centred[None]
    angle = amount("rotate", math.pi / 6)
    cosine, sine = angle.cos(), angle.sin()
    from_row = cosine * row + (sine + amount("shear y", 0.3)) * column + amount("translate y", 0.3 * side)
    from_column = cosine * column + (amount("shear x", 0.3) - sine) * row + amount("translate x", 0.3 * side)
    rows, columns = ((source + side / 2).floor() for source in (from_row, from_column))
    inside = (rows >= 0) & (rows < side) & (columns >= 0) & (columns < side)
    index = (rows * side + columns).clamp(0, side**2 - 1).long().flatten(1)
    moved = x.flatten(1, 2).gather(1, index[..., None].expand(-1, -1, 3)).view_as(x)
    return moved * inside[..., None]


def cut_out(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Fill a square of half the side with grey; its middle is anywhere in the image."""
    side = x.shape[1]
    pixels = torch.arange(side, device=x.device)
    in_rows, in_columns = (
        (pixels >= middle - side // 4) & (pixels < middle + side // 4)
        for middle in ((row * side).floor()[:, None], (column * side).floor()[:, None])
    )
    return torch.where((in_rows[:, :, None] & in_columns[:, None, :])[..., None], GREY, x)
