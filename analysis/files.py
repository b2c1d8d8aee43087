"""The files of a results folder: one Parquet file per trial and kind, read many at a time."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from analysis import cached
from analysis.trial_file import TrialFile
from gd_ray.errors import unknown_name
from gd_ray.filesystems import answering, filesystem_of, listed
from gd_ray.results import ROW
from gd_ray.spec import YOUNGER_FIELDS

_BLOCK = 64
"""Files that a thread reads at a time."""
Filters = Sequence[tuple[str, str, Any]]
"""Conditions as pyarrow takes them, such as [("method", "=", "gd"), ("seed", "in", [0, 1])]; all must hold."""


def trial_files(results: str, kind: str, experiment: str | None = None) -> list[TrialFile]:
    """The finished files of a kind. Temporary files of a writer begin with a dot and are left out."""
    files = []
    for info in sorted(listed(results, kind, recursive=True), key=lambda info: str(info.path)):
        _, folder, name = info.path.rsplit("/", 2)
        if name.endswith(".parquet") and not name.startswith("."):
            stamp = f"{info.size}-{info.mtime_ns}"
            files.append(TrialFile(folder.removeprefix("experiment="), name.removesuffix(".parquet"), info.path, stamp))
    return [file for file in files if experiment in (None, file.experiment)]


def once(files: Iterable[TrialFile], preferred: Mapping[str, str] | None = None) -> list[TrialFile]:
    """Each trial once, from its preferred experiment where that has it.

    Experiments that have finished a trial hold equal copies of its files. One that was stopped before another
    finished the trial holds less, so that the one with the row of the finished trial is to be preferred.
    """
    chosen: dict[str, TrialFile] = {}
    for file in files:
        earlier = chosen.get(file.trial_id)
        if earlier is None or earlier.experiment != (preferred or {}).get(file.trial_id):
            chosen[file.trial_id] = file
    return list(chosen.values())


def read_tables(
    results: str, files: Sequence[TrialFile], columns: Sequence[str] | None = None, filters: Filters | None = None
) -> tuple[pd.DataFrame, list[TrialFile]]:
    """The rows of these files as one frame, text as categories, and the files that cannot be read.

    Which trial and experiment a row belongs to comes from its file, not from text repeated in every row. What was read
    before of many files is taken from the cache.
    """
    cache = None if filters or len(files) < cached.LEAST else cached.place(results, files[0].path, columns)
    known, table = cached.read(cache, files) if cache else ({}, None)
    others = [file for file in files if file not in known]
    lengths, new = _read(results, others, columns, filters)
    kept = [file for file, length in zip(others, lengths, strict=True) if length is not None]
    unreadable = [file for file, length in zip(others, lengths, strict=True) if length is None]
    tables = [part for part in (table, new) if part is not None]
    if not tables:
        return pd.DataFrame(), unreadable
    whole = _joined(tables)
    del table, new, tables
    owners = [*known, *kept]
    rows = [*known.values(), *(length for length in lengths if length is not None)]
    if cache and len(kept) > len(owners) // 10:
        cached.write(cache, dict(zip(owners, rows, strict=True)), whole)
    frame: pd.DataFrame = whole.to_pandas(strings_to_categorical=True, split_blocks=True, self_destruct=True)
    del whole
    index = np.repeat(np.arange(len(owners)), rows)
    for name, values in {
        "experiment": [file.experiment for file in owners],
        "trial_id": [file.trial_id for file in owners],
    }.items():
        frame.insert(0, name, pd.Series(pd.Categorical(values).take(index), frame.index))
    return frame, unreadable


def _read(
    results: str, files: Sequence[TrialFile], columns: Sequence[str] | None, filters: Filters | None
) -> tuple[list[int | None], pa.Table | None]:
    """The rows of each file, None for those that cannot be read, and all of them as one table.

    A dataset scan spends more than twice the time on so many small files.
    """
    filesystem, _ = filesystem_of(results)
    local = isinstance(filesystem, fs.LocalFileSystem)
    wanted = None if columns is None else [*columns, *(name for name, _, _ in filters or ())]

    def content_of(file: TrialFile) -> bytes:
        """Empty where it is gone. Python opens a small local file in a third of pyarrow's time."""
        with (
            answering(f"{file.path} cannot be opened"),
            suppress(FileNotFoundError),
            open(file.path, "rb") if local else filesystem.open_input_stream(file.path) as stream,
        ):
            return bytes(stream.read())
        return b""

    def read(content: bytes) -> pa.Table | None:
        try:
            table = pq.ParquetFile(pa.BufferReader(content)).read(columns=wanted, use_threads=False)
        except (OSError, pa.ArrowException):
            return None
        return _chosen(table, filters)

    def read_block(block: Sequence[TrialFile]) -> tuple[list[int | None], pa.Table | None]:
        """Joined at once, for thousands of small tables hold ten times their content."""
        contents = [content_of(file) for file in block]
        if wanted is None and not filters and (table := _from_metadata(contents)) is not None:
            return [1] * len(table), _chosen(table)
        tables = [read(content) for content in contents]
        found = [table for table in tables if table is not None]
        return [None if table is None else len(table) for table in tables], _joined(found) if found else None

    blocks = [files[start : start + _BLOCK] for start in range(0, len(files), _BLOCK)]
    with ThreadPoolExecutor(os.cpu_count() if local else 32) as pool:
        parts = list(pool.map(read_block, blocks))
    tables = [table for _, table in parts if table is not None]
    return [length for lengths, _ in parts for length in lengths], _joined(tables) if tables else None


def _from_metadata(contents: Sequence[bytes]) -> pa.Table | None:
    """The rows that files of trials hold as JSON in their metadata; None unless all do, alike.

    Decoding fifty columns of one row each takes four times as long.
    """
    rows: list[dict[str, Any]] = []
    schema = None
    try:
        for content in contents:
            metadata = pq.read_metadata(pa.BufferReader(content))
            text = (metadata.metadata or {}).get(ROW.encode())
            rows.append(json.loads(text) if text else {})
            # The id of the trial is a column, but no part of the row.
            if metadata.num_columns != len(rows[-1]) + 1 or rows[-1].keys() != rows[0].keys():
                return None
            schema = schema or metadata.schema.to_arrow_schema()
        return pa.Table.from_pylist(rows, pa.schema([field for field in schema or () if field.name in rows[0]]))
    except (OSError, ValueError, TypeError, pa.ArrowException):
        return None  # a file that cannot be read, or a value of another type than in the first one: the slow way tells


def _chosen(table: pa.Table, filters: Filters | None = None) -> pa.Table:
    """The rows that are asked for; which trial and experiment they belong to, their file tells."""
    for name, _, _ in filters or ():
        if name in YOUNGER_FIELDS and name not in table.column_names:
            table = table.append_column(name, pa.array([YOUNGER_FIELDS[name]] * len(table)))
        if name not in table.column_names:
            raise unknown_name("column of a filter", name, {*table.column_names, *YOUNGER_FIELDS})
    table = table.filter(pq.filters_to_expression([list(filters)])) if filters else table
    return table.drop_columns([name for name in ("trial_id", "experiment") if name in table.column_names])


def _joined(tables: list[pa.Table]) -> pa.Table:
    """One table in one piece; columns that only some have are missing in the others."""
    same = all(table.schema.equals(tables[0].schema) for table in tables)
    return pa.concat_tables(tables, promote_options="none" if same else "permissive").combine_chunks()


def read_json_files(results: str, folder: str) -> dict[str, dict[str, Any]]:
    """The JSON objects of a folder by file name; what cannot be read is left out."""
    return {path.stem: content for path, content in _json_files(results, folder)}


def read_ledgers(results: str) -> dict[str, list[dict[str, Any]]]:
    """What each experiment's runs wrote of themselves, in the order of their starts."""
    runs = sorted(_json_files(results, "ledger"), key=lambda run: float(run[1].get("time", 0)))
    found: dict[str, list[dict[str, Any]]] = {}
    for path, content in runs:
        if path.parent.name.startswith("experiment="):
            found.setdefault(path.parent.name.removeprefix("experiment="), []).append(content)
    return found


def _json_files(results: str, folder: str) -> Iterator[tuple[PurePosixPath, dict[str, Any]]]:
    filesystem, _ = filesystem_of(results)
    for info in listed(results, folder, recursive=True):
        if not info.path.endswith(".json"):
            continue
        with answering(f"{info.path} cannot be opened"):
            try:
                with filesystem.open_input_stream(info.path) as source:
                    content = json.loads(source.read())
            except (FileNotFoundError, ValueError):
                continue
        if isinstance(content, dict):
            yield PurePosixPath(info.path), content
