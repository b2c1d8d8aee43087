"""80 Million Tiny Images, where a user holds it: tiny_images.bin, its words, and a sample of it.

The images lie in one file of 3072-byte records, each 32x32x3 in column-major order. Every image was found under a
word: tiny_metadata.bin has it in the first 80 of each record's 768 bytes, tiny_index.mat has each word's number of
images, in the order of the file. CIFAR-100 was drawn from the same images: its index file lists their numbers, from
1, 0 where one is unknown. Those records are left out, and with them every image of a word that one of them was found
under, as the paper's authors did.
"""

import mmap
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gd_ray.data.pixels import SIDE
from gd_ray.errors import UserError
from gd_ray.wild.exclusions import Exclusions
from gd_ray.wild.parts import ROWS, Chunk, Listing

RECORD = SIDE * SIDE * 3
INDEXED = "(an image of the index file)"
"""Stands as the class of an image that the index file lists."""
_METADATA, _WORD = 768, 80


@dataclass(frozen=True)
class TinyRequest:
    """What is wanted of a tiny_images.bin."""

    images: int | None = None
    """A uniform sample of so many; all without it."""
    words: str | None = None
    """tiny_metadata.bin or tiny_index.mat; looked for beside the images without it."""
    indexes: str | None = None
    """CIFAR-100's index file."""


@dataclass(frozen=True)
class Words:
    """The word of each record: from the metadata's records, or from the places where each word begins."""

    metadata: Path | None = None
    starts: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    words: tuple[str, ...] = ()

    def of(self, records: range | NDArray[np.int64]) -> list[str]:
        if self.metadata is None:
            places = np.searchsorted(self.starts, records, side="right") - 1
            return [self.words[place] for place in places.tolist()]
        return [_word(row.tobytes()) for row in _read(self.metadata, _METADATA, records, _WORD)]

    def between(self, first: int, last: int) -> "Words":
        """Enough of it for the records from `first` to `last`, to be sent to another process."""
        if self.metadata is not None:
            return self
        low, high = np.searchsorted(self.starts, [first, last], side="right") - 1
        return Words(None, self.starts[low : high + 1], self.words[low : high + 1])


@dataclass(frozen=True)
class TinyPart:
    """Records of a tiny_images.bin: a stretch of them, or single ones."""

    file: Path
    records: range | NDArray[np.int64]
    words: Words | None
    indexed: NDArray[np.int64]
    """Those of its records that the index file lists."""

    @property
    def expected(self) -> int:
        return len(self.records)

    def listing(self) -> Listing:
        records = np.asarray(self.records)
        classes: list[str | None] = [None] * len(records)
        if self.words is not None:
            classes = [word or None for word in self.words.of(self.records)]
        for place in np.flatnonzero(np.isin(records, self.indexed)).tolist():
            classes[place] = INDEXED
        return Listing(classes, [""] * len(records), [])

    def load(self, places: NDArray[np.int64]) -> Chunk:
        if isinstance(self.records, range):
            pixels = _read(self.file, RECORD, self.records, RECORD)[places]
        else:
            pixels = _read(self.file, RECORD, self.records[places], RECORD)
        images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)
        return Chunk(np.ascontiguousarray(images), places, [])


def tiny_parts(
    files: list[Path], exclude: Exclusions, request: TinyRequest, seed: int
) -> tuple[list[TinyPart], frozenset[str]]:
    """The parts of a tiny_images.bin, and the classes that its index file excludes."""
    if len(files) > 1:
        raise UserError(f"source has {len(files)} .bin files, such as {files[0].name} and {files[1].name}; name one.")
    (file,) = files
    total = _records(file, RECORD)
    words = _read_words(file, request.words, total)
    indexed = _read_indexes(request.indexes, total)
    if words is None and (exclude.named or exclude.listed):
        raise UserError(
            f"exclude needs the words of {file.name}: put tiny_metadata.bin or tiny_index.mat beside it or name it "
            f"with --words, or leave out --exclude and give CIFAR-100's index file with --indexes."
        )
    excluded = {INDEXED} if len(indexed) else set()
    if words is not None and len(indexed):
        excluded.update(words.of(indexed))
    if request.images is None:
        cuts: Iterable[range | NDArray[np.int64]] = (
            range(start, min(start + ROWS, total)) for start in range(0, total, ROWS)
        )
    else:
        chosen = _sample(total, request.images, words, indexed, exclude.with_listed(excluded), seed)
        cuts = (chosen[start : start + ROWS] for start in range(0, len(chosen), ROWS))
    return [_part(file, cut, words, indexed) for cut in cuts], frozenset(excluded)


def _part(file: Path, records: range | NDArray[np.int64], words: Words | None, indexed: NDArray[np.int64]) -> TinyPart:
    first, last = int(records[0]), int(records[-1])
    low, high = np.searchsorted(indexed, [first, last + 1])
    return TinyPart(file, records, words.between(first, last) if words else None, indexed[low:high])


def _sample(
    total: int, number: int, words: Words | None, indexed: NDArray[np.int64], exclude: Exclusions, seed: int
) -> NDArray[np.int64]:
    """Records drawn uniformly from those that are not excluded, sorted. Looks only at those it draws."""
    if number < 1:
        raise UserError(f"images {number} must be at least 1.")
    drawn = min(total, number + number // 8 + 64)
    while True:
        generator = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SAMPLE,)))
        records = generator.choice(total, drawn, replace=False)
        kept = ~np.isin(records, indexed)
        if words is not None:
            kept &= np.array([word not in exclude for word in words.of(records)], bool)
        if kept.sum() >= number:
            return np.sort(records[kept][:number])
        if drawn == total:
            raise UserError(
                f"images {number} is more than the {kept.sum()} of {total} that are not excluded; lower it."
            )
        drawn = min(total, 2 * drawn)


_SAMPLE = 2**31  # apart from the parts' numbers, which seed the shuffle


def _read(file: Path, width: int, records: range | NDArray[np.int64], wanted: int) -> NDArray[np.uint8]:
    """The first bytes of records of a file: a stretch of them in one go, single ones without reading ahead."""
    if isinstance(records, range):
        stretch = np.fromfile(file, np.uint8, len(records) * width, offset=records.start * width)
        return stretch.reshape(-1, width)[:, :wanted]
    table = np.memmap(file, np.uint8, mode="r").reshape(-1, width)
    pages = table._mmap  # type: ignore[attr-defined]
    if hasattr(mmap, "MADV_RANDOM"):
        pages.madvise(mmap.MADV_RANDOM)
    return np.asarray(table[records, :wanted])


def _records(file: Path, width: int) -> int:
    size = file.stat().st_size
    if not size or size % width:
        raise UserError(f"source file {str(file)!r} has {size} bytes, not whole records of {width}; copy it again.")
    return size // width


def _read_words(images: Path, named: str | None, total: int) -> Words | None:
    beside = [images.parent / name for name in ("tiny_index.mat", "tiny_metadata.bin")]
    file = Path(named) if named else next((path for path in beside if path.is_file()), None)
    if file is None:
        return None
    if not file.is_file():
        raise UserError(f"words {str(file)!r} does not exist; name a tiny_metadata.bin or tiny_index.mat.")
    if file.suffix == ".mat":
        starts, words, number = _read_mat(file)
    else:
        starts, words, number = np.empty(0, np.int64), (), _records(file, _METADATA)
    if number != total:
        raise UserError(
            f"words {str(file)!r} has {number} records, but {images.name} has {total}; they do not belong together."
        )
    return Words(None, starts, words) if words else Words(file)


def _read_mat(file: Path) -> tuple[NDArray[np.int64], tuple[str, ...], int]:
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(file)
        words = tuple(_word(str(np.ravel(cell)[0]).encode("latin1", "replace")) for cell in np.ravel(content["word"]))
        counts = np.ravel(content["num_imgs"]).astype(np.int64)
    except Exception as error:  # scipy's readers of damaged files fail with anything
        raise UserError(f"words {str(file)!r} cannot be read ({error}); it needs 'word' and 'num_imgs'.") from error
    if len(words) != len(counts):
        raise UserError(f"words {str(file)!r} has {len(words)} words, but {len(counts)} counts; copy it again.")
    return np.cumsum(counts) - counts, words, int(counts.sum())


def _word(content: bytes) -> str:
    return content.decode("latin1").replace("\x1a", "").strip(" \0")


def _read_indexes(named: str | None, total: int) -> NDArray[np.int64]:
    """The records of an index file: whole numbers from 1; 0 is for unknown."""
    if named is None:
        return np.empty(0, np.int64)
    try:
        lines = Path(named).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"indexes {named!r} cannot be read ({error}); give a text file of numbers.") from error
    for number, text in enumerate(lines, start=1):
        if not text.isdecimal() or int(text) > total:
            raise UserError(
                f"indexes {named!r} has {text!r} as its entry {number}; entries are numbers from 0 to {total}, the "
                f"records of the source."
            )
    numbers = np.unique(np.array(lines, np.int64)) - 1
    return numbers[numbers >= 0]
