"""Hugging Face-style Parquet: a struct column with `bytes`, and optionally a label column."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from gd_ray.errors import UserError
from gd_ray.sources.base import FORMATS, PART_ROWS, Format, ImageBatch, PartIndex, Source, SourceRequest
from gd_ray.sources.decoding import decode_batch

_LABELS = ("label", "fine_label", "class")
_BUFFER = 1 << 20
"""Bytes of a column read at a time; pyarrow's default is the whole row group."""


@dataclass(frozen=True)
class ParquetPart:
    """Rows of one row group."""

    file: Path
    group: int
    start: int
    expected: int
    side: int

    def index(self) -> PartIndex:
        schema = pq.read_schema(self.file)
        label = next((name for name in _LABELS if name in schema.names), None)
        values = self._column(label).to_pylist() if label else [None] * self.expected
        names = label_names(schema, label)
        if names is None:
            return PartIndex([None if value is None else str(value) for value in values])
        for index, value in enumerate(values):
            if value is not None and not -1 <= value < len(names):
                place = f"row group {self.group}, row {self.start + index}, outside 0 to {len(names) - 1}"
                raise UserError(f"source file {str(self.file)!r} has label {value} in {place}; correct it.")
        return PartIndex([None if value in (None, -1) else names[value] for value in values])  # -1: a missing label

    def load(self, indices: NDArray[np.int64]) -> ImageBatch:
        rows = self._column(_image_column(self.file) or "")  # only files with one are parts
        contents = (rows[index]["bytes"].as_py() for index in indices.tolist())
        return decode_batch(indices.tolist(), contents, self.path, self.side)

    def path(self, index: int) -> str:
        return f"{self.file}, row group {self.group}, row {self.start + index}"

    def _column(self, name: str) -> pa.ChunkedArray:
        """Read the rows of this part only: a row group may have a million images."""
        pieces, passed = [], 0
        try:
            file = pq.ParquetFile(self.file, buffer_size=_BUFFER, pre_buffer=False)
            for batch in file.iter_batches(PART_ROWS, row_groups=[self.group], columns=[name], use_threads=False):
                first, last = max(0, self.start - passed), min(len(batch), self.start + self.expected - passed)
                pieces += [batch.column(0).slice(first, last - first)] if first < last else []
                passed += len(batch)
                if passed >= self.start + self.expected:
                    break
        except (OSError, pa.ArrowInvalid) as error:
            problem = f"cannot be read in row group {self.group} ({error})"
            raise UserError(f"source file {str(self.file)!r} {problem}; copy it again.") from error
        return pa.chunked_array(pieces)


def label_names(schema: pa.Schema, label: str | None) -> tuple[str, ...] | None:
    """Return the names of a label column's values from Hugging Face's metadata; None without them."""
    try:
        return tuple(json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"])
    except (KeyError, TypeError, ValueError):
        return None


def _image_column(file: Path) -> str | None:
    try:
        schema = pq.read_schema(file)
    except (OSError, pa.ArrowInvalid) as error:
        raise UserError(f"source file {str(file)!r} is not a whole Parquet file ({error}); copy it again.") from error
    images = (f.name for f in schema if pa.types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0)
    return next(images, None)


def _includes(file: Path) -> bool:
    return file.suffix == ".parquet" and _image_column(file) is not None


def _open(_: Path, files: list[Path], request: SourceRequest) -> Source:
    parts = []
    for file in files:
        metadata = pq.read_metadata(file)
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            for start in range(0, rows, PART_ROWS):
                parts.append(ParquetPart(file, group, start, min(PART_ROWS, rows - start), request.side))
    return Source(parts)


FORMATS.append(Format("Parquet files", _includes, _open))
