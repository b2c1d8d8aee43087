"""Labelled images in memory: uint8 pixels, class numbers and pixel statistics."""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from gd_ray.errors import UserError

SIDE = 32
_ADDED_TOGETHER = 256  # images: their squares fit into 32 bits, and they into the cache


@dataclass(frozen=True)
class Statistics:
    """Mean and standard deviation of each channel, of pixels in [0, 1]."""

    mean: tuple[float, float, float]
    std: tuple[float, float, float]


@dataclass(frozen=True)
class ImageSet:
    """Images of shape (n, 32, 32, 3), uint8, and a class number for each."""

    images: Tensor
    labels: Tensor

    @staticmethod
    def from_arrays(images: ArrayLike, labels: ArrayLike) -> "ImageSet":
        """Checks and takes over arrays; the images are not copied."""
        pixels, numbers = checked_images(images, "images"), np.asarray(labels)
        if numbers.shape != (len(pixels),) or not np.issubdtype(numbers.dtype, np.integer):
            raise UserError(
                f"labels have shape {numbers.shape} and type {numbers.dtype}; give one whole number for each of the "
                f"{len(pixels)} images."
            )
        if len(numbers) and numbers.min() < 0:
            raise UserError(f"labels have the value {numbers.min()}; class numbers start at 0.")
        return ImageSet(torch.from_numpy(pixels), torch.from_numpy(numbers.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.images)

    def content_hash(self) -> str:
        """SHA-256 of all labelled images, whatever their order."""
        rows, labels = self.images.numpy().reshape(len(self), -1), self.labels.numpy().astype("<i8")
        digests = [
            hashlib.sha256(label.tobytes() + row.tobytes()).digest() for row, label in zip(rows, labels, strict=True)
        ]
        return hashlib.sha256(b"".join(sorted(digests))).hexdigest()

    def first_of_each_class(self, number: int | None) -> "ImageSet":
        """The first `number` images of every class, in the order of the set."""
        if number is None:
            return self
        labels = self.labels.numpy()
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], labels[order])
        kept = np.sort(order[np.arange(len(order)) - starts < number])
        return ImageSet(self.images[kept], self.labels[kept])


@dataclass(frozen=True)
class LabelledData:
    """A data set: what is learned, what is tested, and how pixels are normalised."""

    name: str
    train: ImageSet
    test: ImageSet
    statistics: Statistics
    class_names: tuple[str, ...]
    set_size: int | None = None
    """Classes of one trial, where the seeds take disjoint sets of them; all of them where it is not given."""

    def __post_init__(self) -> None:
        for part, images in (("train", self.train), ("test", self.test)):
            if len(images) and int(images.labels.max()) >= self.num_classes:
                raise UserError(
                    f"{self.name} {part} labels reach {int(images.labels.max())}, but there are only "
                    f"{self.num_classes} class names; labels go from 0 to {self.num_classes - 1}."
                )

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    def content_hash(self) -> str:
        """Equal for the same images under the same class names, whatever form they were read from."""
        parts = (*self.class_names, "", self.train.content_hash(), self.test.content_hash())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()


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
