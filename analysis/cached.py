"""What was read of thousands of small files before, in one file: a folder `.cache` inside local results.

It may be deleted at any time. Rows are taken from it only for files whose size and time are still the same.
"""

import hashlib
import json
import os
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.trial_file import TrialFile

LEAST = 500
"""Files from which on a cache pays."""
_KEY = b"gd_ray files"


def place(results: str, example: str, columns: Sequence[str] | None) -> Path | None:
    """The cache of one kind of files and columns; None for results that are not in a local folder."""
    if "://" in results:
        return None
    kind = Path(example).parent.parent.name
    chosen = hashlib.sha256(json.dumps(columns).encode()).hexdigest()[:8]
    return Path(results, ".cache", f"{kind}-{chosen}.parquet")


def read(cache: Path, files: Sequence[TrialFile]) -> tuple[dict[TrialFile, int], pa.Table | None]:
    """The files whose rows are known, with their number of rows, and these rows in that order."""
    try:
        table = pq.read_table(cache)
        entries = json.loads(table.schema.metadata[_KEY])
    except (OSError, pa.ArrowException, KeyError, ValueError, TypeError):
        return {}, None
    wanted = {(file.path, file.stamp): file for file in files}
    hits = [wanted.get((path, stamp)) for path, stamp, _ in entries]
    rows = [count for _, _, count in entries]
    if not all(hits):
        table = table.filter(pa.array(np.repeat([hit is not None for hit in hits], rows)))
    known = {hit: count for hit, count in zip(hits, rows, strict=True) if hit is not None}
    return known, table.replace_schema_metadata(None)


def write(cache: Path, rows: dict[TrialFile, int], table: pa.Table) -> None:
    """Keeps the rows of these files, in their order; results that cannot be written to have no cache."""
    entries = json.dumps([(file.path, file.stamp, count) for file, count in rows.items()])
    temporary = cache.with_name(f".{cache.name}.{uuid4().hex}.tmp")
    try:
        cache.parent.mkdir(exist_ok=True)
        pq.write_table(table.replace_schema_metadata({_KEY: entries.encode()}), temporary)
        os.replace(temporary, cache)
    except OSError:
        temporary.unlink(missing_ok=True)
