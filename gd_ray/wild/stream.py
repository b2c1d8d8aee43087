"""The unlabeled stream as a trial sees it: windows of images in a fixed order, read by position."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gd_ray.data.image_set import checked_images
from gd_ray.seeding import Purpose, numpy_generator


@dataclass(frozen=True)
class Window:
    """`length` consecutive positions of a stream of `total` images, from `start`, wrapping round.

    Offset i of the window is position (start + i) mod total; offsets are the order in which Algorithm 2 meets
    the images.
    """

    start: int
    length: int
    total: int

    def positions(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        return (self.start + offsets) % self.total


def stage_window(seed: int, stage: int, total: int, window: int) -> Window:
    """The window of a stage. Windows of one trial do not overlap while the stream is long enough."""
    first = int(numpy_generator(seed, 0, Purpose.STREAM_WINDOW).integers(total))
    return Window(start=(first + (stage - 1) * window) % total, length=min(window, total), total=total)


class Stream(Protocol):
    """Unlabeled 32x32 images in a fixed order."""

    def __len__(self) -> int: ...

    def blocks(self, window: Window, skip: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        """(offsets, images) of the window in blocks, without its first `skip` images."""
        ...

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at these positions, in this order."""
        ...


class MemoryStream:
    """A stream held in memory as one uint8 array of shape (n, 32, 32, 3)."""

    def __init__(self, images: NDArray[np.uint8], block: int = 4096) -> None:
        self.images = checked_images(images, "stream images")
        self.block = block

    def __len__(self) -> int:
        return len(self.images)

    def blocks(self, window: Window, skip: int) -> Iterator[tuple[NDArray[np.int64], NDArray[np.uint8]]]:
        for start in range(skip, window.length, self.block):
            offsets = np.arange(start, min(start + self.block, window.length))
            yield offsets, self.read(window.positions(offsets))

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self.images[positions]
