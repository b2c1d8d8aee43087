"""80 Million Tiny Images: tiny_images.bin, the word of each image, and a uniform sample.

The file consists of 3072-byte records, each 32x32x3 in column-major order. Every image was found under a word:
tiny_metadata.bin has it in the first 80 of each record's 768 bytes, tiny_index.mat has each word's number of images,
in the order of the file. CIFAR-100 was drawn from the same images: its index file lists their numbers, from 1, with 0
for unknown ones. Those records are excluded, and with them every image of their words, as the paper's authors did.
"""

import mmap
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gd_ray.errors import UserError
from gd_ray.sources.base import FORMATS, PART_ROWS, Format, ImageBatch, PartIndex, Source, SourceRequest, require_side
from gd_ray.sources.imagenet_batches import BATCH_NAMES
from gd_ray.wordnet.exclusions import Exclusions

SIDE = 32
RECORD = SIDE * SIDE * 3
INDEXED = "(an image of the index file)"
"""Class of an image that the index file lists."""
_METADATA, _WORD = 768, 80
_NONE = np.empty(0, np.int64)
_SAMPLE = 2**31  # spawn key of the sample; those of the shuffle are the numbers of the parts


@dataclass(frozen=True)
class TinyPart:
    """Records of a tiny_images.bin: a range, or single ones."""

    file: Path
    records: range | NDArray[np.int64]
    words: Path | None
    indexed: NDArray[np.int64]
    """Records of this part that the index file lists."""

    @property
    def expected(self) -> int:
        return len(self.records)

    def index(self) -> PartIndex:
        records = np.asarray(self.records)
        classes: list[str | None] = [None] * len(records)
        if self.words is not None:
            classes = [word or None for word in _words(self.words, records)]
        for index in np.flatnonzero(np.isin(records, self.indexed)).tolist():
            classes[index] = INDEXED
        return PartIndex(classes)

    def load(self, indices: NDArray[np.int64]) -> ImageBatch:
        pixels = _read(self.file, RECORD, np.asarray(self.records)[indices], RECORD)
        images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 3, 2, 1)
        return ImageBatch(np.ascontiguousarray(images), indices, [])

    def path(self, index: int) -> str:
        return f"{self.file}, record {self.records[index]}"


def _includes(file: Path) -> bool:
    return file.suffix == ".bin" and not file.name.startswith(("tiny_metadata", *BATCH_NAMES))


def _open(_: Path, files: list[Path], request: SourceRequest) -> Source:
    """Cut a tiny_images.bin, or a sample of it, into parts; its index file excludes classes."""
    if len(files) > 1:
        raise UserError(f"source has {len(files)} .bin files, such as {files[0].name} and {files[1].name}; name one.")
    (file,) = files
    require_side(f"source {file.name!r}", SIDE, request.side)
    tiny, exclude = request.tiny, request.exclude
    total = _records(file, RECORD)
    words = _find_words(file, tiny.words, total)
    indexed = _read_indexes(tiny.indexes, total)
    if words is None and (exclude.named or exclude.listed):
        fix = "give a tiny_metadata.bin or tiny_index.mat with --words, or in place of --exclude give --indexes."
        raise UserError(f"exclude needs the words of {file.name}: {fix}")
    excluded = {INDEXED} if len(indexed) else set()
    if words is not None:
        excluded.update(_words(words, indexed))
    records: range | NDArray[np.int64] = range(total)
    if tiny.images is not None:
        records = _sample(total, tiny.images, words, indexed, exclude.with_listed(excluded), request.seed)
    parts = []
    for start in range(0, len(records), PART_ROWS):
        own = records[start : start + PART_ROWS]
        low, high = np.searchsorted(indexed, [own[0], own[-1] + 1])
        parts.append(TinyPart(file, own, words, indexed[low:high]))
    return Source(parts, frozenset(excluded), (words,) if words else ())


def _sample(
    total: int, number: int, words: Path | None, indexed: NDArray[np.int64], exclude: Exclusions, seed: int
) -> NDArray[np.int64]:
    """Draw records uniformly from those that are not excluded, sorted. Reads the words of drawn records only."""
    if number < 1:
        raise UserError(f"images {number} must be at least 1.")
    drawn = min(total, number + number // 8 + 64)
    while True:
        rng = np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_SAMPLE,)))
        records = rng.choice(total, drawn, replace=False)
        kept = ~np.isin(records, indexed)
        if words is not None:
            kept &= np.array([word not in exclude for word in _words(words, records)], bool)
        if kept.sum() >= number:
            return np.sort(records[kept][:number])
        if drawn == total:
            left = f"{kept.sum()} of {total} that are not excluded"
            raise UserError(f"images {number} is more than the {left}; lower it.")
        drawn = min(total, 2 * drawn)


def _read(file: Path, width: int, records: NDArray[np.int64], wanted: int) -> NDArray[np.uint8]:
    """Read the first bytes of records of a file: neighbors in one go, scattered ones without reading ahead."""
    if len(records) and np.ptp(records) < 2 * len(records):
        first, number = records.min(), np.ptp(records) + 1
        block = np.fromfile(file, np.uint8, number * width, offset=first * width).reshape(-1, width)
        return block[records - first, :wanted]
    table = np.memmap(file, np.uint8, mode="r").reshape(-1, width)
    table._mmap.madvise(mmap.MADV_RANDOM)  # type: ignore[attr-defined]
    return np.asarray(table[records, :wanted])


def _records(file: Path, width: int) -> int:
    size = file.stat().st_size
    if not size or size % width:
        raise UserError(f"source file {str(file)!r} has {size} bytes, not whole records of {width}; copy it again.")
    return size // width


def _find_words(images: Path, requested: str | None, total: int) -> Path | None:
    """Return the file of words, after comparing it with the number of images."""
    usual = [images.parent / name for name in ("tiny_index.mat", "tiny_metadata.bin")]
    file = Path(requested) if requested else next((path for path in usual if path.is_file()), None)
    if file is None:
        return None
    if not file.is_file():
        raise UserError(f"words {str(file)!r} does not exist; give a tiny_metadata.bin or tiny_index.mat.")
    number = int(_read_mat(file)[1].max(initial=0)) if file.suffix == ".mat" else _records(file, _METADATA)
    if number != total:
        counts = f"{number} records, but {images.name} has {total}"
        raise UserError(f"words {str(file)!r} has {counts}; they are not of the same data.")
    return file


def _words(file: Path, records: NDArray[np.int64]) -> list[str]:
    if file.suffix != ".mat":
        return [_word(row.tobytes()) for row in _read(file, _METADATA, records, _WORD)]
    words, ends = _read_mat(file)
    return [words[index] for index in np.searchsorted(ends, records, side="right")]


@lru_cache(maxsize=1)  # a process reads many parts
def _read_mat(file: Path) -> tuple[tuple[str, ...], NDArray[np.int64]]:
    """Read the words and, for each, the number of records up to its last one."""
    from scipy.io import loadmat

    try:
        content: dict[str, Any] = loadmat(file)
        words = tuple(_word(str(np.ravel(cell)[0]).encode("latin1", "replace")) for cell in np.ravel(content["word"]))
        counts = np.ravel(content["num_imgs"]).astype(np.int64)
    except Exception as error:  # scipy fails with anything on damaged files
        raise UserError(f"words {str(file)!r} cannot be read ({error}); it needs 'word' and 'num_imgs'.") from error
    if len(words) != len(counts):
        raise UserError(f"words {str(file)!r} has {len(words)} words, but {len(counts)} counts; copy it again.")
    return words, np.cumsum(counts)


def _word(content: bytes) -> str:
    return content.decode("latin1").replace("\x1a", "").strip(" \0")


def _read_indexes(file: str | None, total: int) -> NDArray[np.int64]:
    """Read the records of an index file: whole numbers from 1; 0 is unknown."""
    if file is None:
        return _NONE
    try:
        lines = Path(file).read_text().split()
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"indexes {file!r} cannot be read ({error}); give a text file of numbers.") from error
    for number, text in enumerate(lines, start=1):
        if not text.isdecimal() or int(text) > total:
            entry = f"{text!r} as its entry {number}"
            raise UserError(f"indexes {file!r} has {entry}; entries are numbers from 0 to {total}.")
    numbers = np.unique(np.array(lines, np.int64)) - 1
    return numbers[numbers >= 0]


FORMATS.append(Format(".bin files", _includes, _open))
