"""Training batches: images stay on the device as uint8 and are augmented there, a whole batch at a time.

The augmentation is torchvision's ColorJitter(brightness=63/255, contrast=0.8), RandomCrop(32, padding=4) and
RandomHorizontalFlip on PIL images, pixel for pixel, with the random numbers drawn for all images at once.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from gd_ray.data.pixels import SIDE, Statistics

BRIGHTNESS = 63 / 255
CONTRAST = 0.8
PADDING = 4


def normalised(images: Tensor, statistics: Statistics) -> Tensor:
    """uint8 or float pixels (n, 32, 32, 3) in [0, 255] as network input (n, 3, 32, 32) in channels-last memory."""
    scale, shift = _normalisation(statistics, images.device)
    return torch.addcmul(shift, images.float(), scale).permute(0, 3, 1, 2)


@lru_cache(maxsize=16)
def _normalisation(statistics: Statistics, device: torch.device) -> tuple[Tensor, Tensor]:
    with torch.inference_mode(False):  # training may use what an inference put into the cache
        mean = torch.tensor(statistics.mean, dtype=torch.float64)
        std = torch.tensor(statistics.std, dtype=torch.float64)
        return (1 / (255 * std)).float().to(device), (-mean / std).float().to(device)


@dataclass(frozen=True)
class Augmentation:
    """The random numbers of one batch, one value per image."""

    brightness: Tensor
    contrast: Tensor
    brightness_first: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor


def draw_augmentation(number: int, generator: torch.Generator, device: torch.device | str = "cpu") -> Augmentation:
    """Drawn on the CPU in one call, so that every device augments alike, and moved in one piece."""
    u = _to(torch.rand(6, number, generator=generator), device)
    places = 2 * PADDING + 1
    return Augmentation(
        brightness=1 + BRIGHTNESS * (2 * u[0] - 1),
        contrast=1 + CONTRAST * (2 * u[1] - 1),
        brightness_first=u[2] < 0.5,
        top=(u[3] * places).long(),
        left=(u[4] * places).long(),
        flip=u[5] < 0.5,
    )


def augmented(images: Tensor, draw: Augmentation) -> Tensor:
    """uint8 images (n, 32, 32, 3) jittered, cropped and flipped; float, still whole numbers in [0, 255]."""
    return _crop_and_flip(_jitter(images.float(), draw), draw)


def _jitter(x: Tensor, draw: Augmentation) -> Tensor:
    """Brightness and contrast in either order, as two affine steps; PIL cuts to whole numbers after each."""
    brightness, contrast, first = (
        value[:, None, None, None] for value in (draw.brightness, draw.contrast, draw.brightness_first)
    )
    # Brightness blends with black, contrast with the image's own mean grey.
    x = _blend(torch.where(first, 0.0, _mean_grey(x)), x, torch.where(first, brightness, contrast))
    return _blend(torch.where(first, _mean_grey(x), 0.0), x, torch.where(first, contrast, brightness))


def _blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    return x.sub_(base).mul_(factor).add_(base).clamp_(0, 255).floor_()


def _mean_grey(x: Tensor) -> Tensor:
    """PIL's luminance in 16-bit fixed point, its mean rounded to a whole number. Exact in float32: below 2^24."""
    grey = ((x @ _luminance(x.device) + 32768) / 65536).floor_()
    return (grey.mean(dim=(1, 2)) + 0.5).floor_()[:, None, None, None]


@lru_cache(maxsize=16)
def _luminance(device: torch.device) -> Tensor:
    return torch.tensor([19595.0, 38470.0, 7471.0], device=device)


def _crop_and_flip(x: Tensor, draw: Augmentation) -> Tensor:
    number, device = len(x), x.device
    padded = F.pad(x, (0, 0, PADDING, PADDING, PADDING, PADDING))
    wide = SIDE + 2 * PADDING
    steps = torch.arange(SIDE, device=device)
    columns = torch.where(draw.flip[:, None], SIDE - 1 - steps, steps) + draw.left[:, None]
    rows = steps + draw.top[:, None] + torch.arange(number, device=device)[:, None] * wide
    index = (rows[:, :, None] * wide + columns[:, None, :]).reshape(-1)
    return padded.view(-1, 3).index_select(0, index).view(number, SIDE, SIDE, 3)


def batches(
    members: Tensor, batch_size: int, updates: int, generator: torch.Generator, device: torch.device | str = "cpu"
) -> Iterator[Tensor]:
    """`updates` batches of the members, in epochs of one shuffle each; an epoch's last partial batch is dropped.

    Shuffled on the CPU, so that every device has the same batches, and moved an epoch at a time.
    """
    size = min(batch_size, len(members))
    done = 0
    while done < updates:
        order = _to(members[torch.randperm(len(members), generator=generator)], device)
        for batch in order[: len(order) // size * size].view(-1, size)[: updates - done]:
            yield batch
            done += 1


def _to(values: Tensor, device: torch.device | str) -> Tensor:
    """Without waiting for the device: a copy from pageable memory would."""
    if torch.device(device).type == "cuda":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def updates_per_epoch(members: int, batch_size: int) -> int:
    """Batches in one epoch; a set smaller than a batch is one batch."""
    return max(1, members // batch_size)
