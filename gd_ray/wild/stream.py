"""The unlabeled stream of a trial: windows of images in a fixed order, read in units or by position."""

import math
import zlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gd_ray.data.pixels import validate_images
from gd_ray.errors import UserError
from gd_ray.fingerprint import digest_of
from gd_ray.seeding import Purpose, numpy_generator
from gd_ray.storage import filesystem_of, join
from gd_ray.wild.manifest import Manifest, read_manifest, unreadable


@dataclass(frozen=True)
class Window:
    """`length` consecutive positions of a stream of `total` images, from `start`, wrapping around.

    Offset i of the window is position (start + i) mod total. Algorithm 2 reads the images in the order of offsets.
    """

    start: int
    length: int
    total: int

    def positions(self, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        return (self.start + offsets) % self.total

    def spans(self, skip: int) -> Iterator[tuple[int, int, int]]:
        """Yield (first offset, first position, last position + 1) of the one or two parts that do not wrap around."""
        first = (self.start + skip) % self.total
        straight = min(self.length - skip, self.total - first)
        yield skip, first, first + straight
        if straight < self.length - skip:
            yield skip + straight, 0, self.length - skip - straight


def stage_window(seed: int, stage: int, stages: int, total: int, window: int) -> Window:
    """Return a stage's window: consecutive windows from a random start if all stages fit, else random starts."""
    fits = stages * window <= total
    first = int(numpy_generator(seed, 0 if fits else stage, Purpose.STREAM_WINDOW).integers(total))
    start = (first + (stage - 1) * window) % total if fits else first
    return Window(start=start, length=min(window, total), total=total)


@dataclass(frozen=True)
class Unit:
    """Images that are read together: rows `start` to `stop` of one row group, at consecutive offsets of a window."""

    group: int
    start: int
    stop: int
    first_offset: int

    def __len__(self) -> int:
        return self.stop - self.start

    @property
    def offsets(self) -> NDArray[np.int64]:
        return np.arange(self.first_offset, self.first_offset + len(self))


class Stream(ABC):
    """Unlabeled images in a fixed order, in groups that are read whole."""

    side: int
    """Side of the images, in pixels."""
    digest: str
    """Fingerprint of the images and their order."""
    _starts: NDArray[np.int64]
    """First position of each group, and the end of the stream."""

    @abstractmethod
    def _group(self, group: int) -> NDArray[np.uint8]:
        """Read the images of a group."""

    def __len__(self) -> int:
        return int(self._starts[-1])

    def units(self, window: Window, skip: int) -> list[Unit]:
        """Cut the window without its first `skip` images into units, in the order of offsets."""
        units = []
        for offset, first, last in window.spans(skip):
            group = int(np.searchsorted(self._starts, first, side="right")) - 1
            while first < last:
                begin, end = int(self._starts[group]), min(int(self._starts[group + 1]), last)
                units.append(Unit(group, first - begin, end - begin, offset))
                offset, first, group = offset + end - first, end, group + 1
        return units

    def load(self, unit: Unit) -> NDArray[np.uint8]:
        """Read the images of a unit."""
        return self._group(unit.group)[unit.start : unit.stop]

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Read the images at these positions, in this order."""
        images = np.empty((len(positions), self.side, self.side, 3), np.uint8)
        for group, here, rows in self._by_group(positions):
            images[here] = self._group(group)[rows]
        return images

    def _by_group(self, positions: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.bool_], NDArray[np.int64]]]:
        """Yield the groups of these positions; for each, which positions are in it, and their rows."""
        groups = np.searchsorted(self._starts, positions, side="right") - 1
        for group in np.unique(groups).tolist():
            here = groups == group
            yield group, here, positions[here] - self._starts[group]


class MemoryStream(Stream):
    """A stream in memory: one uint8 array of shape (n, side, side, 3)."""

    def __init__(self, images: NDArray[np.uint8], block: int = 4096) -> None:
        self.images = validate_images(images, "stream images")
        self.side = self.images.shape[1]
        self._starts = np.append(np.arange(0, len(self.images), block), len(self.images))

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        return digest_of(self.images)

    def _group(self, group: int) -> NDArray[np.uint8]:
        return self.images[self._starts[group] : self._starts[group + 1]]


class WildStream(Stream):
    """A prepared stream: a folder of shuffled Parquet shards and its manifest.

    Holds neither images nor open files, so that it is cheap to send to other processes. Every row group is compared
    with its checksum when it is read.
    """

    def __init__(self, address: str, manifest: Manifest) -> None:
        self.address, self.manifest, self.side = address, manifest, manifest.side
        self._groups = [
            (shard.file, group, rows, crc)
            for shard in manifest.shards
            for group, (rows, crc) in enumerate(zip(shard.group_rows, shard.group_crcs, strict=True))
        ]
        self._starts = np.cumsum([0, *(rows for _, _, rows, _ in self._groups)])

    @cached_property
    def digest(self) -> str:  # type: ignore[override]
        """Fingerprint of the manifest's checksums, without reading an image."""
        return digest_of(*(f"{rows} {crc}" for _, _, rows, crc in self._groups))

    @staticmethod
    def open(address: str) -> "WildStream":
        """Open a stream after checking its manifest and the presence and size of each shard. Reads no image."""
        return WildStream(str(address), read_manifest(str(address)))

    def class_names(self, positions: NDArray[np.int64]) -> list[str | None]:
        """Read the source's classes at these positions, None if unknown. Not used in training."""
        return self._texts("class", positions)

    def all_classes(self) -> pa.ChunkedArray:
        """Read the source's classes of the whole stream, in its order."""
        with ThreadPoolExecutor() as threads:  # an object store answers slowly, but many at once
            columns = threads.map(lambda group: self._column(group, "class"), range(len(self._groups)))
            return pa.chunked_array([chunk for column in columns for chunk in column.chunks])

    def paths(self, positions: NDArray[np.int64]) -> list[str | None]:
        """Read where the images at these positions come from, None in streams that were prepared without it."""
        return self._texts("path", positions)

    def _texts(self, name: str, positions: NDArray[np.int64]) -> list[str | None]:
        texts = np.empty(len(positions), object)
        for group, here, rows in self._by_group(positions):
            texts[here] = self._column(group, name).to_numpy()[rows]
        return list(texts)

    def _column(self, group: int, name: str) -> pa.ChunkedArray:
        """Read a column of a group; an absent one is null."""
        file, index, rows, _ = self._groups[group]
        filesystem, root = filesystem_of(self.address)
        try:
            with filesystem.open_input_file(f"{root}/{file}") as source:
                table = pq.ParquetFile(source).read_row_group(index, columns=[name])
            return table[name] if table.num_columns else pa.chunked_array([pa.nulls(rows)])
        except (OSError, pa.ArrowInvalid) as error:
            raise unreadable(f"stream shard {join(self.address, file)} cannot be read", self.address, error) from error

    def _group(self, group: int) -> NDArray[np.uint8]:
        file, index, rows, crc = self._groups[group]
        images = image_array(self._column(group, "image").combine_chunks())
        if len(images) != rows or zlib.crc32(images.data) != crc:
            problem = f"does not match its checksum in row group {index}; prepare it again."
            raise UserError(f"stream shard {self.address}/{file} {problem}")
        return images


def image_array(column: pa.FixedSizeBinaryArray) -> NDArray[np.uint8]:
    """View the bytes of a column as images."""
    width = column.type.byte_width
    side = math.isqrt(width // 3)
    buffer = np.frombuffer(column.buffers()[1], np.uint8)
    return buffer[column.offset * width : (column.offset + len(column)) * width].reshape(-1, side, side, 3)


def image_column(images: NDArray[np.uint8]) -> pa.FixedSizeBinaryArray:
    """View images as a fixed-size binary column."""
    kind = pa.binary(3 * images.shape[1] ** 2)
    return pa.FixedSizeBinaryArray.from_buffers(kind, len(images), [None, pa.py_buffer(np.ascontiguousarray(images))])
