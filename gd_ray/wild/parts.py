"""A source of images as parts that any process can list and load."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gd_ray.data.pictures import picture32
from gd_ray.data.pixels import SIDE

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
ROWS = 4096
"""Images that a part has at most, where a source can be cut at will."""


@dataclass(frozen=True)
class Listing:
    """What a part holds, seen without decoding any of it."""

    classes: list[str | None]
    """One for each image, None where the source has none."""
    names: list[str]
    """One for each image; equal ones where only the place tells them apart."""
    broken: list[str]
    """What the part should hold but does not, and why."""


@dataclass(frozen=True)
class Chunk:
    """Images of a part, 32x32, and their places in its listing."""

    images: NDArray[np.uint8]
    places: NDArray[np.int64]
    unreadable: list[str]
    """What could not be read, and why."""


def wordnet_class(folders: Iterable[str]) -> str | None:
    """The innermost of an image's folders that is named after a WordNet id, as in train/n01443537/images/1.jpg."""
    return next((name for name in reversed(list(folders)) if re.fullmatch(r"n\d{8}", name)), None)


def printable(name: str) -> str:
    """A file's name, which may be no Unicode."""
    return name.encode("utf-8", "backslashreplace").decode()


class Part(Protocol):
    """A part of a source. It holds no images and no open file, so it can be sent to another process."""

    @property
    def expected(self) -> int:
        """About how many images it has."""
        ...

    def listing(self) -> Listing: ...

    def load(self, places: NDArray[np.int64]) -> Chunk:
        """The images at these places of the listing, in this order, but for those that cannot be read."""
        ...


def decoded(places: Iterable[int], contents: Iterable[bytes | OSError | None], name: Callable[[int], str]) -> Chunk:
    """Decodes the contents of places, or tells why there are none; what is corrupt is listed, never fatal."""
    images, readable, unreadable = [], [], []
    for place, content in zip(places, contents, strict=True):
        try:
            if isinstance(content, OSError):
                raise content
            images.append(picture32(content or b""))
            readable.append(place)
        except Exception as error:  # a decoder may fail with anything
            unreadable.append(f"{name(place)}: {type(error).__name__}: {error}")
    array = np.frombuffer(b"".join(images), np.uint8).reshape(-1, SIDE, SIDE, 3)
    return Chunk(array, np.array(readable, np.int64), unreadable)
