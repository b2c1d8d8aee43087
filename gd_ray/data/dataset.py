"""Labelled images: uint8 pixels and class numbers, in memory or mapped from files."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from gd_ray.data.pixels import Statistics, validate_images
from gd_ray.errors import UserError
from gd_ray.fingerprint import digest_of


@dataclass(frozen=True)
class ImageSet:
    """Images of shape (n, side, side, 3), uint8, and the class number of each."""

    images: Tensor
    labels: Tensor

    @staticmethod
    def from_arrays(images: ArrayLike, labels: ArrayLike) -> "ImageSet":
        """Validate arrays and share their memory."""
        pixels, numbers = validate_images(images, "images"), np.asarray(labels)
        if numbers.shape != (len(pixels),) or not np.issubdtype(numbers.dtype, np.integer):
            given = f"shape {numbers.shape} and type {numbers.dtype}"
            raise UserError(f"labels have {given}; give one whole number for each of the {len(pixels)} images.")
        if len(numbers) and numbers.min() < 0:
            raise UserError(f"labels have the value {numbers.min()}; class numbers start at 0.")
        return ImageSet(torch.from_numpy(pixels), torch.from_numpy(numbers.astype(np.int64)))

    def __len__(self) -> int:
        return len(self.images)

    @property
    def side(self) -> int:
        return self.images.shape[1]

    def first_of_each_class(self, number: int | None) -> "ImageSet":
        """Return the first `number` images of every class, in the order of the set."""
        if number is None:
            return self
        labels = self.labels.numpy()
        order = np.argsort(labels, kind="stable")
        starts = np.searchsorted(labels[order], labels[order])
        kept = np.sort(order[np.arange(len(order)) - starts < number])
        return ImageSet(self.images[kept], self.labels[kept])


@dataclass(frozen=True)
class LabelledData:
    """A data set: training images, test images, and the statistics that normalize their pixels."""

    name: str
    train: ImageSet
    test: ImageSet
    statistics: Statistics
    class_names: tuple[str, ...]
    set_size: int | None = None
    """Number of classes of one trial, if each seed learns a set of its own; None if every seed learns all classes."""

    def __post_init__(self) -> None:
        if self.train.side != self.test.side:
            sides = f"{self.train.side}x{self.train.side}, but test images of {self.test.side}x{self.test.side}"
            raise UserError(f"{self.name} has training images of {sides}; give both one size.")
        for part, images in (("train", self.train), ("test", self.test)):
            if len(images) and (most := int(images.labels.max())) >= self.num_classes:
                names = f"{self.num_classes} class names; labels go from 0 to {self.num_classes - 1}"
                raise UserError(f"{self.name} {part} labels reach {most}, but there are only {names}.")

    @property
    def num_classes(self) -> int:
        return len(self.class_names)

    @property
    def side(self) -> int:
        """Side of all images, in pixels."""
        return self.train.side

    @cached_property
    def digest(self) -> str:
        """Fingerprint of the images, in order: a coreset is stored as indices of the training set."""
        parts = (part.numpy() for data in (self.train, self.test) for part in (data.images, data.labels))
        return digest_of(*self.class_names, str(self.statistics), str(self.set_size), *parts)
