"""Where images come from: each kind of source as a list of parts. Its kind is seen from what lies there."""

import json
import os
import pickle
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gd_ray.data.ilsvrc2012 import BATCH_LABELS
from gd_ray.data.pixels import SIDE
from gd_ray.errors import UserError
from gd_ray.wild.exclusions import Exclusions
from gd_ray.wild.parts import IMAGE_ENDINGS, ROWS, Chunk, Listing, Part, decoded, printable, wordnet_class
from gd_ray.wild.tars import tar_parts
from gd_ray.wild.tiny_images import TinyRequest, tiny_parts

_BATCH_NAMES = ("train_data_batch", "val_data", "data_batch")
_FILES_TOGETHER = 512
_ROW = SIDE * SIDE * 3
_BUFFER = 1 << 20
"""Bytes of a column read at a time, where pyarrow would read all of a row group's at once."""


@dataclass(frozen=True)
class Source:
    """The parts of a source, and what is left out of it besides what was asked for."""

    parts: list[Part]
    exclude: frozenset[str] = field(default_factory=frozenset)


def open_source(
    source: str, *, exclude: Exclusions | None = None, tiny: TinyRequest | None = None, seed: int = 0
) -> Source:
    """A source by its address. The seed draws the sample that `tiny` may ask for, of what is not excluded."""
    if source.startswith("glyphs:"):
        found = Source(_glyph_parts(source))
    else:
        path = Path(source)
        if not path.exists():
            raise UserError(f"source {source!r} does not exist; give a folder or file of images, or glyphs:N.")
        kind, files = _kind(source, [path] if path.is_file() else _files(path))
        if kind == ".bin files":
            drawn, words = tiny_parts(files, exclude or Exclusions(), tiny or TinyRequest(), seed)
            return Source(list(drawn), words)
        found = Source(_PARTS[kind](path, files))
        if not found.parts:
            raise UserError(f"source {source!r} has {kind}, but nothing is in them.")
    if tiny is not None and tiny != TinyRequest():
        raise UserError(f"source {source!r} is no tiny_images.bin; leave out --images, --words and --indexes.")
    return found


def _files(folder: Path) -> list[Path]:
    """All files below a folder, sorted by their path; of folders that links lead to more than once, the first."""
    found, seen = [], set()
    for place, folders, names in os.walk(folder, followlinks=True):
        own = os.stat(place)
        if (own.st_dev, own.st_ino) in seen:
            folders.clear()
            continue
        seen.add((own.st_dev, own.st_ino))
        folders.sort()
        found += [Path(place, name) for name in names]
    return sorted(found)


def _kind(source: str, files: list[Path]) -> tuple[str, list[Path]]:
    """What a source is made of, and the files of that kind; others beside them would be passed over in silence."""
    parquet = [file for file in files if file.suffix == ".parquet"]
    kinds = {
        "Parquet files": [file for file in parquet if _image_column(file) is not None],
        "tar files": [file for file in files if file.suffix == ".tar"],
        "batches of downsampled ImageNet": [file for file in files if file.name.startswith(_BATCH_NAMES)],
        "image files": [file for file in files if file.suffix.lower() in IMAGE_ENDINGS],
        ".bin files": [
            file
            for file in files
            if file.suffix == ".bin" and not file.name.startswith(("tiny_metadata", *_BATCH_NAMES))
        ],
    }
    found = {kind: own for kind, own in kinds.items() if own}
    if len(found) > 1:
        examples = " and ".join(f"{kind} ({printable(own[0].name)})" for kind, own in found.items())
        raise UserError(f"source {source!r} holds {examples}; put one kind of them into a folder of its own.")
    if not found and parquet:
        raise UserError(f"source file {str(parquet[0])!r} has no image column (a struct with 'bytes').")
    if not found:
        raise UserError(
            f"source {source!r} holds no images; it may be a folder of images, Parquet, tar files, "
            f"downsampled-ImageNet batches, or a tiny_images.bin."
        )
    return next(iter(found.items()))


# Glyphs, made on the fly.


@dataclass(frozen=True)
class GlyphPart:
    """Drawn characters."""

    start: int
    expected: int

    def listing(self) -> Listing:
        return Listing([None] * self.expected, [""] * self.expected, [])

    def load(self, places: NDArray[np.int64]) -> Chunk:
        from gd_ray.data.glyphs import wild_glyphs

        return Chunk(wild_glyphs(self.expected, self.start)[places], places, [])


def _glyph_parts(source: str) -> list[Part]:
    text = source.removeprefix("glyphs:")
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"source {source!r} needs a number of images after the colon, such as glyphs:100000.")
    return [GlyphPart(start, min(ROWS, int(text) - start)) for start in range(0, int(text), ROWS)]


# A folder of images: the class is the folder they lie in, below the source.


@dataclass(frozen=True)
class FilePart:
    """Image files."""

    root: Path
    files: tuple[Path, ...]

    @property
    def expected(self) -> int:
        return len(self.files)

    def listing(self) -> Listing:
        classes = [self._class(file) for file in self.files]
        return Listing(classes, [printable(file.name) for file in self.files], [])

    def load(self, places: NDArray[np.int64]) -> Chunk:
        chosen = places.tolist()
        contents = (_content(self.files[k]) for k in chosen)
        return decoded(chosen, contents, lambda place: printable(str(self.files[place])))

    def _class(self, file: Path) -> str | None:
        if self.root == file or file.parent == self.root:
            return None
        return wordnet_class(file.relative_to(self.root).parts[:-1]) or printable(file.parent.name)


def _image_parts(root: Path, files: list[Path]) -> list[Part]:
    starts = range(0, len(files), _FILES_TOGETHER)
    return [FilePart(root, tuple(files[start : start + _FILES_TOGETHER])) for start in starts]


def _content(file: Path) -> bytes | OSError:
    try:
        return file.read_bytes()
    except OSError as error:
        return error


# Hugging Face-style Parquet: a struct column with `bytes`, and perhaps a label.


@dataclass(frozen=True)
class ParquetPart:
    """Rows of one row group."""

    file: Path
    group: int
    start: int
    expected: int

    def listing(self) -> Listing:
        schema = pq.read_schema(self.file)
        label = next((name for name in ("label", "fine_label", "class") if name in schema.names), None)
        values = self._column(label).to_pylist() if label else [None] * self.expected
        return Listing(self._named(values, label_names(schema, label)), [""] * self.expected, [])

    def load(self, places: NDArray[np.int64]) -> Chunk:
        column = _image_column(self.file)
        assert column is not None, "only files with one are parts"
        rows = self._column(column)
        contents = (rows[place]["bytes"].as_py() for place in places.tolist())
        return decoded(places.tolist(), contents, self._row)

    def _column(self, name: str) -> pa.ChunkedArray:
        """Its own rows only: a row group may hold a million pictures, and those before the part are passed over."""
        found, passed = [], 0
        try:
            file = pq.ParquetFile(self.file, buffer_size=_BUFFER, pre_buffer=False)
            for batch in file.iter_batches(ROWS, row_groups=[self.group], columns=[name], use_threads=False):
                first, last = max(0, self.start - passed), min(len(batch), self.start + self.expected - passed)
                found += [batch.column(0).slice(first, last - first)] if first < last else []
                passed += len(batch)
                if passed >= self.start + self.expected:
                    break
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(
                f"source file {str(self.file)!r} cannot be read in row group {self.group} ({error}); copy it again."
            ) from error
        return pa.chunked_array(found)

    def _row(self, place: int) -> str:
        return f"{self.file.name}, row group {self.group}, row {self.start + place}"

    def _named(self, values: list[Any], names: tuple[str, ...] | None) -> list[str | None]:
        """The classes' names; a label of -1 is Hugging Face's way to say that there is none."""
        if names is None:
            return [None if value is None else str(value) for value in values]
        for place, value in enumerate(values):
            if value is not None and not -1 <= value < len(names):
                raise UserError(
                    f"source file {str(self.file)!r} has label {value} in row group {self.group}, row "
                    f"{self.start + place}, outside 0 to {len(names) - 1}; correct it or its list of names."
                )
        return [None if value is None or value == -1 else names[value] for value in values]


def _image_column(file: Path) -> str | None:
    try:
        schema = pq.read_schema(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"source file {str(file)!r} is no whole Parquet file ({error}); copy it again.") from error
    pictures = (f.name for f in schema if pa.types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0)
    return next(pictures, None)


def _parquet_parts(_: Path, files: list[Path]) -> list[Part]:
    parts: list[Part] = []
    for file in files:
        metadata = pq.read_metadata(file)
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            parts += [ParquetPart(file, group, k, min(ROWS, rows - k)) for k in range(0, rows, ROWS)]
    return parts


def label_names(schema: pa.Schema, label: str | None) -> tuple[str, ...] | None:
    """The names of a label column's values, where Hugging Face's metadata has them."""
    try:
        return tuple(json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


# Downsampled ImageNet: pickled or npz batches of rows in channel order, labels 1 to 1000.


@dataclass(frozen=True)
class BatchPart:
    """One batch file of downsampled ImageNet."""

    file: Path

    @property
    def expected(self) -> int:
        return self.file.stat().st_size // (_ROW)

    def listing(self) -> Listing:
        _, classes, broken = self._content()
        return Listing(classes, [""] * len(classes), broken)

    def load(self, places: NDArray[np.int64]) -> Chunk:
        rows = self._content()[0][places]
        return Chunk(np.ascontiguousarray(rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)), places, [])

    def _content(self) -> tuple[NDArray[np.uint8], list[str | None], list[str]]:
        try:
            data, labels = _read_batch(self.file)
        except (
            OSError,
            LookupError,
            TypeError,
            AttributeError,
            ValueError,
            EOFError,
            pickle.UnpicklingError,
            BadZipFile,
            zlib.error,
        ) as error:
            return np.empty((0, _ROW), np.uint8), [], [f"{self.file}: {type(error).__name__}: {error}"]
        rows, numbers = np.asarray(data), np.asarray(labels)
        if rows.dtype != np.uint8:
            raise UserError(f"source file {str(self.file)!r} has pixels of type {rows.dtype}; they must be uint8.")
        if rows.ndim != 2 or rows.shape[1] != _ROW:
            raise UserError(
                f"source file {str(self.file)!r} has rows of shape {rows.shape}; take the 32x32 version, 3072 wide."
            )
        if numbers.shape != (len(rows),) or not np.issubdtype(numbers.dtype, np.integer):
            raise UserError(
                f"source file {str(self.file)!r} has {len(rows)} rows, but labels of shape {numbers.shape} and type "
                f"{numbers.dtype}; it needs a whole number for each."
            )
        return rows, [self._named(row, int(label)) for row, label in enumerate(numbers)], []

    def _named(self, row: int, label: int) -> str:
        if not 1 <= label <= len(BATCH_LABELS):
            raise UserError(
                f"source file {str(self.file)!r} has label {label} in row {row}, outside 1 to {len(BATCH_LABELS)}, "
                f"ILSVRC's classes; correct it."
            )
        return BATCH_LABELS[label - 1]


def _batch_parts(_: Path, files: list[Path]) -> list[Part]:
    return [BatchPart(file) for file in files]


def _read_batch(file: Path) -> tuple[Any, Any]:
    if file.suffix == ".npz":
        with np.load(file, allow_pickle=False) as arrays:
            return arrays["data"], arrays["labels"]
    with file.open("rb") as source:
        content = ArrayUnpickler(source, encoding="latin1").load()
    return content["data"], content["labels"]


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickled arrays and plain values, and runs no other code."""

    _ALLOWED = frozenset(
        (module, name)
        for module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs")
        for name in ("ndarray", "dtype", "_reconstruct", "scalar", "encode")
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}, which is no array")
        return super().find_class(module, name)


_PARTS: dict[str, Callable[[Path, list[Path]], list[Part]]] = {
    "Parquet files": _parquet_parts,
    "tar files": lambda _, files: tar_parts(files),
    "batches of downsampled ImageNet": _batch_parts,
    "image files": _image_parts,
}
