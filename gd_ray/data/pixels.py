"""Pixels of square RGB images: their shape, sums and statistics. Needs no torch, so that a stream does not."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gd_ray.errors import UserError

_BLOCK = 256  # images per sum: their squares fit into 32 bits, and they into the cache


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of each channel, of pixels in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> "Statistics":
        return Statistics(tuple(content["mean"]), tuple(content["std"]))


def validate_images(images: ArrayLike, what: str) -> NDArray[np.uint8]:
    """Return the images as a contiguous array; raise a UserError if their type or shape is wrong."""
    array = np.asarray(images)
    if array.dtype != np.uint8:
        raise UserError(f"{what} have type {array.dtype}; give them as uint8, from 0 to 255.")
    if array.ndim != 4 or array.shape[1] != array.shape[2] or array.shape[3] != 3:
        raise UserError(f"{what} have shape {array.shape}; give them as (n, side, side, 3), channels last.")
    return np.ascontiguousarray(array)


@dataclass(frozen=True)
class PixelSums:
    """Sums of the pixels of each channel: whole numbers, exact in whatever order they are added."""

    pixels: int
    sums: NDArray[np.int64]
    """Of shape (2, 3): the pixels, and their squares."""

    @staticmethod
    def of(images: ArrayLike) -> "PixelSums":
        array = np.asarray(images)
        width = int(np.prod(array.shape[1:]))
        rows = array.reshape(len(array), width)
        sums = np.zeros((2, width), np.int64)
        for start in range(0, len(rows), _BLOCK):
            block = rows[start : start + _BLOCK].astype(np.uint32)
            sums += [block.sum(axis=0, dtype=np.uint32), (block * block).sum(axis=0, dtype=np.uint32)]
        return PixelSums(array.size // 3, sums.reshape(2, -1, 3).sum(axis=1))

    def __add__(self, other: "PixelSums") -> "PixelSums":
        return PixelSums(self.pixels + other.pixels, self.sums + other.sums)

    def statistics(self) -> Statistics:
        total, squares = self.sums.tolist()  # Python's own numbers: their products exceed 64 bits
        mean = [x / self.pixels / 255 for x in total]
        std = [(self.pixels * y - x * x) ** 0.5 / self.pixels / 255 for x, y in zip(total, squares, strict=True)]
        return Statistics((mean[0], mean[1], mean[2]), (std[0], std[1], std[2]))


def pixel_statistics(images: ArrayLike) -> Statistics:
    """Return the mean and standard deviation over all pixels, from exact integer sums."""
    return PixelSums.of(images).statistics()
