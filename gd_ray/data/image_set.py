"""Labelled images in memory: uint8 pixels and class numbers."""

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gd_ray.data.pixels import Statistics, checked_images
from gd_ray.errors import UserError
from gd_ray.inputs import digest_of


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

    @cached_property
    def digest(self) -> str:
        """Of all that a trial may learn or test, in order: a coreset is kept as places in the training set."""
        parts = (part.numpy() for data in (self.train, self.test) for part in (data.images, data.labels))
        return digest_of(*self.class_names, str(self.statistics), str(self.set_size), *parts)

    def content_hash(self) -> str:
        """Equal for the same images under the same class names, whatever form they were read from."""
        parts = (*self.class_names, "", self.train.content_hash(), self.test.content_hash())
        return hashlib.sha256("\n".join(parts).encode()).hexdigest()
