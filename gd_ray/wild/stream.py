"""The unlabeled stream as a trial sees it: windows of images in a fixed order, read in units or by position."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gd_ray.data.pixels import SIDE, checked_images
from gd_ray.errors import UserError
from gd_ray.filesystems import filesystem_of
from gd_ray.inputs import digest_of
from gd_ray.seeding import Purpose, numpy_generator
from gd_ray.wild.manifest import Manifest, read_manifest

PIXELS = SIDE * SIDE * 3


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

    def spans(self, skip: int) -> Iterator[tuple[int, int, int]]:
        """(first offset, first position, one past the last position) of its one or two straight parts."""
        first = (self.start + skip) % self.total
        straight = min(self.length - skip, self.total - first)
        yield skip, first, first + straight
        if straight < self.length - skip:
            yield skip + straight, 0, self.length - skip - straight


def stage_window(seed: int, stage: int, stages: int, total: int, window: int) -> Window:
    """The window of a stage: consecutive ones from a random start while all stages fit, else each at a random start."""
    fits = stages * window <= total
    first = int(numpy_generator(seed, 0 if fits else stage, Purpose.STREAM_WINDOW).integers(total))
    start = (first + (stage - 1) * window) % total if fits else first
    return Window(start=start, length=min(window, total), total=total)


@dataclass(frozen=True)
class Unit:
    """Images that are read together: rows `start` to `stop` of one group, at consecutive offsets of a window."""

    group: int
    start: int
    stop: int
    first_offset: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.arange(self.first_offset, self.first_offset + len(self))


class Stream(Protocol):
    """Unlabeled 32x32 images in a fixed order."""

    @property
    def digest(self) -> str:
        """Differs for streams of other images, or of the same in another order."""
        ...

    def __len__(self) -> int: ...

    def units(self, window: Window, skip: int) -> list[Unit]:
        """The window without its first `skip` images, in the order of its offsets."""
        ...

    def load(self, unit: Unit) -> NDArray[np.uint8]:
        """The images of a unit."""
        ...

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at these positions, in this order."""
        ...


def _units(window: Window, skip: int, starts: NDArray[np.int64]) -> list[Unit]:
    """Cuts a window at the groups' borders; `starts` are the groups' first positions and the end of the stream."""
    found = []
    for offset, first, last in window.spans(skip):
        group = int(np.searchsorted(starts, first, side="right")) - 1
        while first < last:
            begin, end = int(starts[group]), min(int(starts[group + 1]), last)
            found.append(Unit(group, first - begin, end - begin, offset))
            offset, first, group = offset + end - first, end, group + 1
    return found


class MemoryStream:
    """A stream held in memory as one uint8 array of shape (n, 32, 32, 3)."""

    def __init__(self, images: NDArray[np.uint8], block: int = 4096) -> None:
        self.images = checked_images(images, "stream images")
        self._starts = np.append(np.arange(0, len(self.images), block), len(self.images))

    @cached_property
    def digest(self) -> str:
        return digest_of(self.images)

    def __len__(self) -> int:
        return len(self.images)

    def units(self, window: Window, skip: int) -> list[Unit]:
        return _units(window, skip, self._starts)

    def load(self, unit: Unit) -> NDArray[np.uint8]:
        begin = self._starts[unit.group]
        return self.images[begin + unit.start : begin + unit.stop]

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        return self.images[positions]


class WildStream:
    """A prepared stream: a folder of shuffled Parquet shards and its manifest.

    It holds no images and no open file, so it travels cheaply to other processes. Every row group is checked
    against its checksum when it is read.
    """

    def __init__(self, address: str, manifest: Manifest) -> None:
        self.address, self.manifest = address, manifest
        self._groups = [
            (shard.file, group, rows, crc)
            for shard in manifest.shards
            for group, (rows, crc) in enumerate(zip(shard.group_rows, shard.group_crcs, strict=True))
        ]
        self._starts = np.cumsum([0, *(rows for _, _, rows, _ in self._groups)])

    @cached_property
    def digest(self) -> str:
        """Of the manifest's checksums: no image is read for it."""
        return digest_of(*(f"{rows} {crc}" for _, _, rows, crc in self._groups))

    @staticmethod
    def open(address: str) -> "WildStream":
        """Opens a stream after a fast check: the manifest, and each shard's presence and size. Reads no image."""
        return WildStream(str(address), read_manifest(str(address)))

    def __len__(self) -> int:
        return self.manifest.images

    def units(self, window: Window, skip: int) -> list[Unit]:
        return _units(window, skip, self._starts)

    def load(self, unit: Unit) -> NDArray[np.uint8]:
        return self._group(unit.group)[unit.start : unit.stop]

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        result = np.empty((len(positions), SIDE, SIDE, 3), np.uint8)
        groups = np.searchsorted(self._starts, positions, side="right") - 1
        for group in np.unique(groups):
            here = groups == group
            result[here] = self._group(int(group))[positions[here] - self._starts[group]]
        return result

    def class_names(self, positions: NDArray[np.int64]) -> list[str | None]:
        """The source's class of the images at these positions, where it has one. A trial never asks."""
        names: dict[int, str | None] = {}
        groups = np.searchsorted(self._starts, positions, side="right") - 1
        for group in np.unique(groups):
            column = self._column(int(group), "class").to_pylist()
            for position in positions[groups == group].tolist():
                names[position] = column[position - int(self._starts[group])]
        return [names[position] for position in positions.tolist()]

    def _column(self, group: int, name: str) -> pa.ChunkedArray:
        file, index, _, _ = self._groups[group]
        filesystem, root = filesystem_of(self.address)
        try:
            with filesystem.open_input_file(f"{root}/{file}") as source:
                return pq.ParquetFile(source).read_row_group(index, columns=[name]).column(0)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(
                f"stream shard {self.address}/{file} cannot be read ({error}); if it stays so, prepare it anew."
            ) from error

    def _group(self, group: int) -> NDArray[np.uint8]:
        file, index, rows, crc = self._groups[group]
        images = image_array(self._column(group, "image").combine_chunks())
        if len(images) != rows or zlib.crc32(images.data) != crc:
            raise UserError(
                f"stream shard {self.address}/{file} does not match its checksum in row group {index}; prepare it anew."
            )
        return images


def image_array(column: pa.FixedSizeBinaryArray) -> NDArray[np.uint8]:
    """A view of the column's bytes as images."""
    buffer = np.frombuffer(column.buffers()[1], np.uint8)
    return buffer[column.offset * PIXELS : (column.offset + len(column)) * PIXELS].reshape(-1, SIDE, SIDE, 3)


def image_column(images: NDArray[np.uint8]) -> pa.FixedSizeBinaryArray:
    """Images as a fixed-size binary column, without a copy."""
    kind = pa.binary(PIXELS)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(images), [None, pa.py_buffer(np.ascontiguousarray(images))])
