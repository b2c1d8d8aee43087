"""Pixels of 32x32 images: their shape, their sums and their statistics. Needs no torch, so that a stream does not."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gd_ray.errors import UserError

SIDE = 32
_ADDED_TOGETHER = 256  # images: their squares fit into 32 bits, and they into the cache


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of each channel, of pixels in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


def checked_images(images: ArrayLike, what: str) -> NDArray[np.uint8]:
    """The images as they are, or a sentence that says what is wrong with them."""
    array = np.asarray(images)
    if array.dtype != np.uint8:
        raise UserError(f"{what} have type {array.dtype}; give them as uint8, from 0 to 255.")
    if array.ndim != 4 or array.shape[1:] != (SIDE, SIDE, 3):
        raise UserError(f"{what} have shape {array.shape}; give them as (n, {SIDE}, {SIDE}, 3), channels last.")
    return np.ascontiguousarray(array)


@dataclass(frozen=True)
class PixelSums:
    """Pixels added up, per channel, in whole numbers: they lose nothing, in whatever parts they are added."""

    pixels: int
    total: tuple[int, int, int]
    squares: tuple[int, int, int]

    @staticmethod
    def of(images: ArrayLike) -> "PixelSums":
        rows = np.asarray(images).reshape(-1, SIDE * SIDE * 3)
        sums = np.zeros((2, SIDE * SIDE, 3), np.int64)
        for start in range(0, len(rows), _ADDED_TOGETHER):
            block = rows[start : start + _ADDED_TOGETHER].astype(np.uint32)
            for place, values in ((0, block), (1, block * block)):
                sums[place] += values.sum(axis=0, dtype=np.uint32).reshape(-1, 3)
        (a, b, c), (d, e, f) = sums.sum(axis=1).tolist()
        return PixelSums(len(rows) * SIDE * SIDE, (a, b, c), (d, e, f))

    def __add__(self, other: "PixelSums") -> "PixelSums":
        total, squares = (
            tuple(a + b for a, b in zip(mine, others, strict=True))
            for mine, others in ((self.total, other.total), (self.squares, other.squares))
        )
        return PixelSums(self.pixels + other.pixels, total, squares)  # type: ignore[arg-type]

    def statistics(self) -> Statistics:
        mean = [total / self.pixels / 255 for total in self.total]
        pairs = zip(self.total, self.squares, strict=True)
        std = [(self.pixels * squares - total * total) ** 0.5 / self.pixels / 255 for total, squares in pairs]
        return Statistics((mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))


def pixel_statistics(images: ArrayLike) -> Statistics:
    """Mean and standard deviation over all pixels, from exact integer sums."""
    return PixelSums.of(images).statistics()
