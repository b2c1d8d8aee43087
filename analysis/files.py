"""The files of a results folder: one Parquet file per trial and kind, read many at a time."""

import json
import os
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from gd_ray.filesystems import filesystem_of

_BLOCK = 64
"""Files that a thread reads at a time."""
Filters = Sequence[tuple[str, str, Any]]
"""Conditions as pyarrow takes them, such as [("method", "=", "gd"), ("seed", "in", [0, 1])]; all must hold."""


@dataclass(frozen=True)
class TrialFile:
    """One kind of rows of one trial."""

    experiment: str
    trial_id: str
    path: str


def trial_files(results: str, kind: str, experiment: str | None = None) -> list[TrialFile]:
    """The finished files of a kind. Temporary files of a writer begin with a dot and are left out."""
    filesystem, root = filesystem_of(results)
    infos = filesystem.get_file_info(fs.FileSelector(f"{root}/{kind}", recursive=True, allow_not_found=True))
    files = []
    for path in sorted(info.path for info in infos if info.path.endswith(".parquet")):
        _, folder, name = path.rsplit("/", 2)
        if not name.startswith("."):
            files.append(TrialFile(folder.removeprefix("experiment="), name.removesuffix(".parquet"), path))
    return [file for file in files if experiment in (None, file.experiment)]


def once(files: Iterable[TrialFile]) -> list[TrialFile]:
    """Each trial once: experiments that share a trial hold equal copies of its files."""
    return list({file.trial_id: file for file in files}.values())


def read_tables(
    results: str, files: Sequence[TrialFile], columns: Sequence[str] | None = None, filters: Filters | None = None
) -> tuple[pd.DataFrame, list[TrialFile]]:
    """The rows of these files as one frame, text as categories, and the files that cannot be read.

    A dataset scan spends more than twice the time on so many small files. Which trial and experiment a row belongs to
    comes from its file, not from text repeated in every row.
    """
    filesystem, _ = filesystem_of(results)
    condition = pq.filters_to_expression([list(filters)]) if filters else None
    wanted = None if columns is None else [*columns, *(name for name, _, _ in filters or ())]

    def read(file: TrialFile) -> pa.Table | None:
        try:
            with filesystem.open_input_stream(file.path) as stream:
                content = pq.ParquetFile(pa.BufferReader(stream.read_buffer()))
            table = content.read(columns=wanted, use_threads=False)
            return table.filter(condition) if condition is not None else table
        except (OSError, pa.ArrowException):
            return None

    def read_block(block: Sequence[TrialFile]) -> tuple[pa.Table | None, list[int | None]]:
        """One table, for thousands of small ones hold ten times their content, and the rows of each file."""
        tables = [read(file) for file in block]
        found = [table for table in tables if table is not None]
        return _joined(found) if found else None, [None if table is None else len(table) for table in tables]

    blocks = [files[start : start + _BLOCK] for start in range(0, len(files), _BLOCK)]
    with ThreadPoolExecutor(os.cpu_count() if isinstance(filesystem, fs.LocalFileSystem) else 32) as pool:
        parts = list(pool.map(read_block, blocks))
    lengths = [length for _, block in parts for length in block]
    unreadable = [file for file, length in zip(files, lengths, strict=True) if length is None]
    kept = [file for file, length in zip(files, lengths, strict=True) if length is not None]
    tables = [table for table, _ in parts if table is not None]
    del parts
    if not tables:
        return pd.DataFrame(), unreadable
    owners = np.repeat(np.arange(len(kept)), [length for length in lengths if length is not None])
    whole = _joined(tables)
    del tables
    whole = whole.drop_columns([name for name in ("trial_id", "experiment") if name in whole.column_names])
    frame: pd.DataFrame = whole.to_pandas(strings_to_categorical=True, split_blocks=True, self_destruct=True)
    del whole
    for name, values in {"experiment": [f.experiment for f in kept], "trial_id": [f.trial_id for f in kept]}.items():
        frame.insert(0, name, pd.Series(pd.Categorical(values).take(owners), frame.index))
    return frame, unreadable


def _joined(tables: list[pa.Table]) -> pa.Table:
    """One table in one piece; columns that only some have are missing in the others."""
    same = all(table.schema.equals(tables[0].schema) for table in tables)
    return pa.concat_tables(tables, promote_options="none" if same else "permissive").combine_chunks()


def read_json_files(results: str, folder: str) -> dict[str, dict[str, Any]]:
    """The JSON objects of a folder by file name; what cannot be read is left out."""
    filesystem, root = filesystem_of(results)
    found = {}
    for info in filesystem.get_file_info(fs.FileSelector(f"{root}/{folder}", allow_not_found=True)):
        if not info.path.endswith(".json"):
            continue
        try:
            with filesystem.open_input_stream(info.path) as source:
                content = json.loads(source.read())
        except (OSError, ValueError):
            continue
        if isinstance(content, dict):
            found[PurePosixPath(info.path).stem] = content
    return found
