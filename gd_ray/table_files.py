"""Tables of a results folder: a Parquet file per trial and kind, or packed ones with the rows of many trials."""

import hashlib
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from gd_ray.errors import UserError, unknown_name
from gd_ray.storage import delete_file, filesystem_of, join, list_files, open_atomic, read_bytes, storage_errors

KINDS = ("trials", "stages", "confusions", "confidences", "teacher_confidences", "samples")
Filters = Sequence[tuple[str, str, Any]]
"""Conditions as pyarrow takes them, such as [("method", "=", "gd"), ("seed", "in", [0, 1])]; all must hold."""

_BLOCK = 64
"""Files that a thread reads at a time."""
_ROW_GROUP = 256
"""Trials in a row group of a packed file: the least that is read of it."""


def write_table(results: str, kind: str, trial_id: str, table: pa.Table) -> None:
    """Write the rows of one trial."""
    with open_atomic(join(results, f"{kind}/{trial_id}.parquet")) as stream:
        # Small files are read twice as fast without dictionaries, statistics and Arrow's own copy of the schema.
        compression = "none" if len(table) == 1 else "snappy"
        options = {"use_dictionary": False, "write_statistics": False, "store_schema": False}
        pq.write_table(table, stream, compression=compression, **options)


def finished(results: str) -> set[str]:
    """Return the ids of the finished trials."""
    single, packed = _list(results, "trials")
    return set(single).union(*(_packed_ids(results, path) for path in packed.values()))


def read_rows(
    results: str,
    kind: str,
    trials: Collection[str] | None = None,
    *,
    columns: Sequence[str] | None = None,
    filters: Filters | None = None,
) -> tuple[pa.Table, list[str]]:
    """Read the rows of all trials, or of some, as one table with a column trial_id, and list the unreadable files.

    Columns that a file lacks are null. Files of other trials are not opened.
    """
    wanted = None if trials is None else set(trials)
    needed = None if columns is None else list(dict.fromkeys(["trial_id", *columns, *(f[0] for f in filters or ())]))
    for attempt in range(3):
        try:
            table, unreadable = _read_all(results, kind, wanted, needed)
            break
        except FileNotFoundError as error:  # packed in this moment
            if attempt == 2:
                raise UserError(f"results {results!r} lose files while they are read ({error}); try again.") from error
    if filters and table.num_columns > 1:
        for name, _, _ in filters:
            if name not in table.column_names:
                raise unknown_name("column of a filter", name, table.column_names)
        table = table.filter(pq.filters_to_expression([list(filters)]))
    if columns is not None:
        table = table.select([name for name in dict.fromkeys(["trial_id", *columns]) if name in table.column_names])
    return table, unreadable


def _read_all(
    results: str, kind: str, wanted: set[str] | None, columns: Sequence[str] | None
) -> tuple[pa.Table, list[str]]:
    """Read single files in threads and then, of the packed ones, the trials that are wanted and not yet known."""
    filesystem, _ = filesystem_of(results)
    single, packed = _list(results, kind)
    paths = [path for name, path in single.items() if wanted is None or name in wanted]
    blocks = [paths[start : start + _BLOCK] for start in range(0, len(paths), _BLOCK)]
    with ThreadPoolExecutor(os.cpu_count() if isinstance(filesystem, fs.LocalFileSystem) else 32) as pool:
        read = list(pool.map(lambda block: _read_block(filesystem, block, columns), blocks))
    tables = [table for table, _ in read if table is not None]
    unreadable = [path for _, broken in read for path in broken]
    known = {PurePosixPath(path).stem for path in paths} - {PurePosixPath(path).stem for path in unreadable}
    for path in packed.values():
        chosen = ~_is_one_of(known) if known else None
        if wanted is not None:
            chosen = _is_one_of(wanted - known)
        try:
            import pyarrow.dataset as ds  # a third of a second, which single files need not wait for

            file = ds.dataset(path, filesystem=filesystem, format="parquet")
            names = [name for name in file.schema.names if columns is None or name in columns]
            tables.append(file.to_table(names, filter=chosen))
        except FileNotFoundError:
            raise
        except (OSError, pa.ArrowException):
            unreadable.append(path)
            continue
        known |= set(tables[-1]["trial_id"].unique().to_pylist())
    table = _concatenate(tables or [pa.table({"trial_id": pa.array([], pa.string())})]).combine_chunks()
    position = table.schema.get_field_index("trial_id")
    encoded = table["trial_id"].dictionary_encode().combine_chunks()
    return table.set_column(position, "trial_id", encoded), unreadable


def _is_one_of(trials: set[str]) -> pc.Expression:
    return pc.field("trial_id").isin(pa.array(list(trials), pa.string()))


def _read_block(
    filesystem: fs.FileSystem, paths: list[str], columns: Sequence[str] | None
) -> tuple[pa.Table | None, list[str]]:
    """Read files of one trial each as one table, and list the unreadable ones.

    A dataset scan takes more than twice the time for so many small files; their tables hold ten times their content.
    """
    tables, unreadable = [], []
    for path in paths:
        content = None
        with storage_errors(f"{path} cannot be opened"), suppress(FileNotFoundError):
            content = read_bytes(filesystem, path)
        if content is None:
            raise FileNotFoundError(path)
        try:
            tables.append(pq.ParquetFile(pa.BufferReader(content)).read(columns=columns, use_threads=False))
        except (OSError, pa.ArrowException):
            unreadable.append(path)
    return _concatenate(tables).combine_chunks() if tables else None, unreadable


def _concatenate(tables: list[pa.Table]) -> pa.Table:
    """Return one table; columns that only some tables have are null in the others."""
    same = all(table.schema.equals(tables[0].schema) for table in tables)
    return pa.concat_tables(tables, promote_options="none" if same else "permissive")


def pack(results: str) -> dict[str, int]:
    """Move the rows of finished trials into one file of each kind; return the number of trials in each.

    The packed file is complete before the first file that it replaces is deleted, and of a trial that is in both the
    rows are read once, so that an interruption loses nothing.
    """
    done = finished(results)
    return {kind: _pack_kind(results, kind, done) for kind in KINDS}


def _pack_kind(results: str, kind: str, done: set[str]) -> int:
    single, packed = _list(results, kind)
    paths = packed | {name: path for name, path in single.items() if name in done}
    schemas = {name: schema for name, path in paths.items() if (schema := _read_schema(results, path)) is not None}
    ids = sorted({*(schemas.keys() - packed)}.union(*(_packed_ids(results, path) for path in packed.values())))
    if len(schemas) == len(packed) <= 1:
        return len(ids)
    schema = pa.unify_schemas(list(schemas.values()), promote_options="permissive")
    target = f"packed-{hashlib.sha256(' '.join(ids).encode()).hexdigest()[:16]}"
    unreadable = []
    with (
        open_atomic(join(results, f"{kind}/{target}.parquet")) as stream,
        pq.ParquetWriter(stream, schema, compression="zstd", write_statistics=["trial_id"]) as writer,
    ):
        for start in range(0, len(ids), _ROW_GROUP):
            rows, broken = read_rows(results, kind, ids[start : start + _ROW_GROUP])
            unreadable += broken
            if not packed.keys().isdisjoint(PurePosixPath(path).stem for path in broken):
                raise _unreadable_pack(broken[-1])
            missing = {f.name: pa.nulls(len(rows), f.type) for f in schema if f.name not in rows.column_names}
            whole = pa.table(dict(zip(rows.column_names, rows.columns, strict=True)) | missing)
            writer.write_table(whole.select(schema.names).cast(schema).sort_by("trial_id"))
    for name in schemas:
        if name != target and paths[name] not in unreadable:
            delete_file(join(results, f"{kind}/{name}.parquet"))
    return len(ids)


def _list(results: str, kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """List the files of single trials by id, and the packed ones; a writer's temporary files begin with a dot."""
    single: dict[str, str] = {}
    packed: dict[str, str] = {}
    for path in sorted(str(info.path) for info in list_files(results, kind)):
        name = PurePosixPath(path).name
        if name.startswith("experiment="):
            raise former_layout(results)
        if name.endswith(".parquet") and not name.startswith("."):
            (packed if name.startswith("packed-") else single)[name.removesuffix(".parquet")] = path
    return single, packed


def former_layout(results: str) -> UserError:
    command = f"gd-ray convert {results} NEW"
    return UserError(f"results {results!r} have the layout of version 0.1; convert them with '{command}'.")


@lru_cache(maxsize=64)  # the name of a packed file is a digest of its ids
def _packed_ids(results: str, path: str) -> frozenset[str]:
    filesystem, _ = filesystem_of(results)
    try:
        with filesystem.open_input_file(path) as file:  # pq.read_table would import pandas
            return frozenset(pq.ParquetFile(file).read(["trial_id"])["trial_id"].to_pylist())
    except (OSError, pa.ArrowException) as error:
        raise _unreadable_pack(path) from error


def _unreadable_pack(path: str) -> UserError:
    return UserError(f"packed file {path} cannot be read; restore it from a copy, or delete it to run its trials anew.")


def _read_schema(results: str, path: str) -> pa.Schema | None:
    filesystem, _ = filesystem_of(results)
    try:
        return pq.read_schema(path, filesystem=filesystem).remove_metadata()
    except (OSError, pa.ArrowException):
        return None
