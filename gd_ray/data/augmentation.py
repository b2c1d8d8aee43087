"""Training batches: images stay on the device as uint8 and are augmented there, a whole batch at a time.

The augmentation is torchvision's ColorJitter(brightness=63/255, contrast=0.8), RandomCrop(side, padding=side // 8) and
RandomHorizontalFlip on PIL images, pixel for pixel, with the random numbers drawn for all images at once.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from gd_ray.arithmetic import compiles_batches
from gd_ray.data.pixels import Statistics

BRIGHTNESS = 63 / 255
CONTRAST = 0.8
PADDED_SHARE = 8
"""Images are padded by an eighth of their side before they are cropped: 4 pixels of 32."""


def normalize(images: Tensor, statistics: Statistics) -> Tensor:
    """Turn pixels (n, side, side, 3) in [0, 255] into network inputs (n, 3, side, side) in channels-last memory."""
    return _scale(images, *normalization(statistics, images.device))


def _scale(images: Tensor, scale: Tensor, shift: Tensor) -> Tensor:
    return torch.addcmul(shift, images.float(), scale).permute(0, 3, 1, 2)


@lru_cache(maxsize=16)
def normalization(statistics: Statistics, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return what a pixel of each channel is multiplied by and what is added then."""
    with torch.inference_mode(False):  # training may use what an inference put into the cache
        mean = torch.tensor(statistics.mean, dtype=torch.float64)
        std = torch.tensor(statistics.std, dtype=torch.float64)
        return to_device((1 / (255 * std)).float(), device), to_device((-mean / std).float(), device)


@dataclass(frozen=True)
class Augmentation:
    """The random numbers of one batch, one value per image."""

    brightness: Tensor
    contrast: Tensor
    brightness_first: Tensor
    top: Tensor
    left: Tensor
    flip: Tensor

    @staticmethod
    def of(whole: Tensor, factors: Tensor) -> "Augmentation":
        """Name the draws of one batch of `draw_augmentations`."""
        (top, left), (brightness_first, flip) = whole[:2], whole[2:].bool()
        return Augmentation(factors[0], factors[1], brightness_first, top, left, flip)


def draw_augmentations(batches: int, number: int, side: int, rng: torch.Generator) -> tuple[Tensor, Tensor]:
    """Draw batches of one size on the CPU: whole numbers (batches, 4, number) and factors (batches, 2, number).

    One draw for many batches gives the numbers of one draw for each.
    """
    u = torch.rand(batches, 6, number, generator=rng)
    factors = 1 + torch.tensor([[BRIGHTNESS], [CONTRAST]]) * (2 * u[:, :2] - 1)
    offsets = 2 * (side // PADDED_SHARE) + 1
    whole = torch.cat([(u[:, 3:5] * offsets).long(), u[:, [2, 5]] < 0.5], dim=1)
    return whole, factors


@dataclass(frozen=True)
class Constants:
    """Tensors on the device that the augmentation of any batch of one size reads."""

    luminance: Tensor
    images: Tensor
    """Where the images of a padded batch start; `rows` and `columns` where those of an image do."""
    rows: Tensor
    columns: Tensor
    mirrored: Tensor
    """The columns from right to left."""


@lru_cache(maxsize=16)
def constants_for(number: int, side: int, device: torch.device) -> Constants:
    images, columns = torch.arange(number, device=device), torch.arange(side, device=device)
    wide = side + 2 * (side // PADDED_SHARE)
    luminance = to_device(torch.tensor([19595.0, 38470.0, 7471.0]), device)
    return Constants(luminance, images * wide**2, columns * wide, columns, columns.flip(0))


def augment(images: Tensor, draw: Augmentation) -> Tensor:
    """Jitter, crop and flip uint8 images (n, side, side, 3); return floats, still whole numbers in [0, 255]."""
    return _augment(images, draw, constants_for(len(images), images.shape[1], images.device))


def _augment(images: Tensor, draw: Augmentation, constants: Constants) -> Tensor:
    return _crop_and_flip(_jitter(images.float(), draw, constants.luminance), draw, constants)


def _jitter(x: Tensor, draw: Augmentation, luminance: Tensor) -> Tensor:
    """Change brightness and contrast in either order, as two affine steps; PIL cuts to whole numbers after each."""
    brightness, contrast, first = (
        value[:, None, None, None] for value in (draw.brightness, draw.contrast, draw.brightness_first)
    )
    # Brightness blends with black, contrast with the image's own mean grey.
    x = _blend(_mean_grey(x, luminance) * ~first, x, torch.where(first, brightness, contrast))
    return _blend(_mean_grey(x, luminance) * first, x, torch.where(first, contrast, brightness))


def _blend(base: Tensor, x: Tensor, factor: Tensor) -> Tensor:
    return x.sub_(base).mul_(factor).add_(base).clamp_(0, 255).floor_()


def _mean_grey(x: Tensor, luminance: Tensor) -> Tensor:
    """Return the mean of the luminance, rounded. Exact in float32: all sums are below 2^24."""
    return (grey(x, luminance).mean(dim=(1, 2)) + 0.5).floor_()[:, None, None, None]


def grey(x: Tensor, luminance: Tensor) -> Tensor:
    """Return PIL's 16-bit fixed-point luminance of each pixel."""
    return ((x @ luminance + 32768) / 65536).floor_()


def _crop_and_flip(x: Tensor, draw: Augmentation, constants: Constants) -> Tensor:
    number, side = len(x), x.shape[1]
    padding = side // PADDED_SHARE
    padded = F.pad(x, (0, 0, padding, padding, padding, padding))
    wide = side + 2 * padding
    corner = draw.top * wide + draw.left + constants.images
    column = torch.where(draw.flip[:, None], constants.mirrored, constants.columns)
    index = ((corner[:, None] + constants.rows)[:, :, None] + column[:, None, :]).view(-1)
    return padded.view(-1, 3).index_select(0, index).view(number, side, side, 3)


BatchDraw = tuple[Tensor, ...]
"""What makes a batch of n images: whole numbers (5, n), of which the first are the images' indices, and jitter factors
(2, n). Batches of another kind may add to them."""


@dataclass(frozen=True, kw_only=True)
class TrainingBatches:
    """The batches of one training. Iterating draws them on the CPU, an epoch at a time, so that every device has the
    same; a `loader` puts one together on the device."""

    images: Tensor
    labels: Tensor
    statistics: Statistics
    indices: Tensor
    """The images to train on."""
    batch_size: int
    updates: int
    shuffle_rng: torch.Generator
    augmentation_rng: torch.Generator

    def __iter__(self) -> Iterator[BatchDraw]:
        device, side = self.images.device, self.images.shape[1]
        for index in shuffled_epochs(self.indices, self.batch_size, self.updates, self.shuffle_rng):
            whole, factors = draw_augmentations(len(index), index.shape[1], side, self.augmentation_rng)
            epoch = torch.cat([index[:, None], whole], dim=1)
            yield from zip(to_device(epoch, device), to_device(factors, device), strict=True)

    def loader(self) -> Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Return the function that makes a batch's augmented network inputs and their labels on the device."""
        device, side = self.images.device, self.images.shape[1]
        constants = constants_for(min(self.batch_size, len(self.indices)), side, device)
        scale_and_shift = normalization(self.statistics, device)

        def load(whole: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
            index, draw = whole[0], Augmentation.of(whole[1:], factors)
            return _scale(_augment(self.images[index], draw, constants), *scale_and_shift), self.labels[index]

        return torch.compile(load, fullgraph=True) if device.type == "cuda" and compiles_batches() else load


def shuffled_epochs(indices: Tensor, batch_size: int, updates: int, rng: torch.Generator) -> Iterator[Tensor]:
    """Yield the batches (k, n) of one shuffle of the indices at a time, `updates` in all; drop partial batches."""
    size = min(batch_size, len(indices))
    while updates > 0:
        order = indices[torch.randperm(len(indices), generator=rng)]
        yield (epoch := order[: len(order) // size * size].view(-1, size)[:updates])
        updates -= len(epoch)


def to_device(values: Tensor, device: torch.device | str) -> Tensor:
    """Copy without waiting for the device, as a copy from pageable memory would; nothing is copied that is there."""
    if torch.device(device).type == "cuda" and values.device.type == "cpu":
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)
