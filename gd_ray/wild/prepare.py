"""Any source of images becomes a WildStream: 32x32, shuffled once for good, in Parquet shards.

Two passes, each in parallel with Ray Data, neither holding the stream in memory. The first decodes the source's tasks
and deals every image to a bucket by a random key; the second sorts each bucket by key and writes it as a shard. Keys
depend on the seed and the image's place in the source alone, so the result does not depend on the parallelism. The
manifest is written last: an interrupted run leaves nothing that opens.
"""

import errno
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from gd_ray.data.image_set import SIDE, Statistics
from gd_ray.errors import UserError
from gd_ray.wild.manifest import NAME, Manifest, Shard, filesystem_of
from gd_ray.wild.ray_data import Mapper, map_with_ray
from gd_ray.wild.sources import Task, tasks_of
from gd_ray.wild.stream import PIXELS, WildStream, image_array, image_column

SHARD_ROWS = 32_768
GROUP_ROWS = 4_096
_EXAMPLES = 100
_SCRATCH = "preparing"

OnProgress = Callable[[str, int, int], None]
"""Told the pass, and how many of its tasks are done of how many."""


@dataclass(frozen=True)
class Prepared:
    """A finished stream and what a person should hear about it."""

    stream: WildStream
    warnings: tuple[str, ...]


def prepare(
    source: str,
    out: str,
    *,
    exclude: Iterable[str] = (),
    seed: int = 0,
    shard_rows: int = SHARD_ROWS,
    group_rows: int = GROUP_ROWS,
    mapper: Mapper = map_with_ray,
    on_progress: OnProgress = lambda *_: None,
) -> Prepared:
    """Writes the source's images to a new stream at `out`. Classes to exclude are names or WordNet ids."""
    filesystem, root = filesystem_of(out)
    if filesystem.get_file_info(f"{root}/{NAME}").type != fs.FileType.NotFound:
        raise UserError(f"out {out!r} holds a stream already; choose another folder or delete it.")
    tasks, excluded = tasks_of(source), frozenset(exclude)
    buckets = max(1, -(-sum(task.expected for task in tasks) // shard_rows))
    scratch = f"{root}/{_SCRATCH}"
    try:
        _clear(filesystem, root)
        filesystem.create_dir(scratch, recursive=True)
        dealt = _passed(
            "read",
            mapper(_Deal(out, buckets, excluded, seed), list(enumerate(tasks))),
            len(tasks),
            on_progress,
        )
        images = sum(sum(part.counts) for part in dealt)
        if not images:
            raise UserError(_nothing_left(source, dealt))
        rows = np.sum([part.counts for part in dealt], axis=0)
        places = [(bucket, int(rows[:bucket].sum())) for bucket in np.flatnonzero(rows).tolist()]
        gathered = _passed("write", mapper(_Gather(out, len(tasks), group_rows), places), len(places), on_progress)
        manifest = _manifest(source, seed, dealt, gathered)
        with filesystem.open_output_stream(f"{root}/.{NAME}.tmp") as target:
            target.write(manifest.to_json().encode())
        filesystem.delete_dir(scratch)
        filesystem.move(f"{root}/.{NAME}.tmp", f"{root}/{NAME}")
    except BaseException as error:
        _clear(filesystem, root)
        if _cause(error, _no_space):
            raise UserError(f"out {out!r} has no space left; free some or choose another folder.") from error
        told = _cause(error, lambda cause: isinstance(cause, UserError))
        if told is not None:
            raise UserError(str(told)) from error
        raise
    unmatched = sorted(excluded - set(manifest.excluded))
    warnings = (f"exclude: no image of class {', '.join(map(repr, unmatched))} was found.",) if unmatched else ()
    return Prepared(WildStream(out, manifest), warnings)


def read_exclusions(entries: Iterable[str]) -> list[str]:
    """Class names from entries that are names themselves or files with a name on each line."""
    names: list[str] = []
    for entry in entries:
        file = Path(entry)
        if file.is_file():
            names += [line.split("#")[0].strip() for line in file.read_text().splitlines()]
        else:
            names.append(entry)
    return [name for name in names if name]


@dataclass(frozen=True)
class _Dealt:
    """What one task gave to the buckets."""

    task: int
    counts: list[int]
    classes: frozenset[str]
    excluded: Counter[str]
    unreadable: list[str]


@dataclass(frozen=True)
class _Deal:
    """First pass: one task's images, sorted into buckets, in one scratch file with a record batch per bucket."""

    out: str
    buckets: int
    exclude: frozenset[str]
    seed: int

    def __call__(self, item: tuple[int, Task]) -> _Dealt:
        number, task = item
        chunk = task.run()
        # Drawn before anything is left out: an image's key does not depend on the exclusions.
        numbers = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number,)))
        keys = numbers.integers(0, 2**62, len(chunk.images))
        out_of = np.array([name in self.exclude for name in chunk.classes], bool)
        excluded = Counter(str(name) for name, out in zip(chunk.classes, out_of, strict=True) if out)
        kept = np.flatnonzero(~out_of)
        kept = kept[np.argsort(keys[kept] % self.buckets, kind="stable")]
        counts = np.bincount(keys[kept] % self.buckets, minlength=self.buckets)
        columns = {
            "key": pa.array(keys[kept]),
            "image": image_column(chunk.images[kept]),
            "class": pa.array([chunk.classes[k] for k in kept], pa.string()),
        }
        table = pa.table(columns)
        filesystem, root = filesystem_of(self.out)
        with (
            filesystem.open_output_stream(f"{root}/{_SCRATCH}/{number}.arrow") as target,
            pa.ipc.new_file(target, table.schema) as writer,
        ):
            start = 0
            for count in counts.tolist():
                batch = table.slice(start, count).combine_chunks()
                empty = pa.RecordBatch.from_pylist([], schema=table.schema)
                writer.write_batch(batch.to_batches()[0] if count else empty)
                start += count
        classes = frozenset(name for name, out in zip(chunk.classes, out_of, strict=True) if name and not out)
        return _Dealt(number, counts.tolist(), classes, excluded, chunk.unreadable)


@dataclass(frozen=True)
class _Gathered:
    """One shard, and its pixels added up."""

    bucket: int
    shard: Shard
    sums: tuple[list[int], list[int]]
    """Of pixels and of their squares, per channel."""


@dataclass(frozen=True)
class _Gather:
    """Second pass: a bucket of all scratch files, sorted by key, as one shard."""

    out: str
    tasks: int
    group_rows: int

    def __call__(self, place: tuple[int, int]) -> _Gathered:
        bucket, first_position = place
        filesystem, root = filesystem_of(self.out)
        parts = []
        for task in range(self.tasks):
            with filesystem.open_input_file(f"{root}/{_SCRATCH}/{task}.arrow") as source:
                parts.append(pa.ipc.open_file(source).get_batch(bucket))
        table = pa.Table.from_batches(parts)
        order = np.argsort(table["key"].to_numpy(), kind="stable")  # equal keys keep the order of the source
        images = np.concatenate([image_array(chunk) for chunk in table["image"].chunks])[order]
        classes = table["class"].take(pa.array(order))
        shard = self._write(filesystem, root, f"shard-{bucket:05d}.parquet", first_position, images, classes)
        pixels = images.reshape(-1, 3)
        counts = [np.bincount(pixels[:, channel], minlength=256) for channel in range(3)]
        values = np.arange(256)
        return _Gathered(bucket, shard, ([int(c @ values) for c in counts], [int(c @ values**2) for c in counts]))

    def _write(
        self,
        filesystem: fs.FileSystem,
        root: str,
        file: str,
        first: int,
        images: NDArray[np.uint8],
        classes: pa.ChunkedArray,
    ) -> Shard:
        schema = pa.schema([("position", pa.int64()), ("image", pa.binary(PIXELS)), ("class", pa.string())])
        groups = [(k, min(k + self.group_rows, len(images))) for k in range(0, len(images), self.group_rows)]
        with (
            filesystem.open_output_stream(f"{root}/{file}") as target,
            pq.ParquetWriter(target, schema, compression="none", use_dictionary=["class"]) as writer,
        ):
            for start, stop in groups:
                columns = [pa.array(np.arange(first + start, first + stop)), image_column(images[start:stop])]
                group = pa.table([*columns, classes.slice(start, stop - start)], schema=schema)
                writer.write_table(group, row_group_size=stop - start)
        size = filesystem.get_file_info(f"{root}/{file}").size
        crcs = tuple(zlib.crc32(images[start:stop].data) for start, stop in groups)
        return Shard(file, len(images), size, tuple(stop - start for start, stop in groups), crcs)


def _passed(step: str, results: Iterator[Any], total: int, on_progress: OnProgress) -> list[Any]:
    found = []
    on_progress(step, 0, total)
    for result in results:
        found.append(result)
        on_progress(step, len(found), total)
    return found


def _manifest(source: str, seed: int, dealt: list[_Dealt], gathered: list[_Gathered]) -> Manifest:
    gathered = sorted(gathered, key=lambda part: part.bucket)
    dealt = sorted(dealt, key=lambda part: part.task)
    images = sum(part.shard.rows for part in gathered)
    pixels = images * SIDE * SIDE
    total, squares = (np.sum([part.sums[k] for part in gathered], axis=0, dtype=object) for k in (0, 1))
    mean = [float(value) / pixels / 255 for value in total]
    # In whole numbers until the last step: n * sum(x^2) - sum(x)^2 loses nothing.
    std = [(int(pixels * b - a * a) ** 0.5) / pixels / 255 for a, b in zip(total, squares, strict=True)]
    unreadable = [line for part in dealt for line in part.unreadable]
    return Manifest(
        images=images,
        shards=tuple(part.shard for part in gathered),
        source=source,
        seed=seed,
        statistics=Statistics((mean[0], mean[1], mean[2]), (std[0], std[1], std[2])),
        classes=len(frozenset().union(*(part.classes for part in dealt))),
        excluded=dict(sorted(sum((part.excluded for part in dealt), Counter()).items())),
        unreadable=len(unreadable),
        unreadable_examples=tuple(unreadable[:_EXAMPLES]),
    )


def _nothing_left(source: str, dealt: list[_Dealt]) -> str:
    excluded = sum(sum(part.excluded.values()) for part in dealt)
    unreadable = [line for part in dealt for line in part.unreadable]
    if excluded:
        return f"exclude leaves nothing of source {source!r}: all its {excluded} images are of excluded classes."
    if unreadable:
        return f"source {source!r} has no readable image; the first of {len(unreadable)} failures is {unreadable[0]}."
    return f"source {source!r} is empty; give one with images."


def _clear(filesystem: fs.FileSystem, root: str) -> None:
    """Removes what an unfinished run has written, and nothing else."""
    selector = fs.FileSelector(root, allow_not_found=True)
    for info in filesystem.get_file_info(selector):
        if info.base_name == _SCRATCH and info.type == fs.FileType.Directory:
            filesystem.delete_dir(info.path)
        elif info.base_name == f".{NAME}.tmp" or re.fullmatch(r"shard-\d{5,}\.parquet", info.base_name):
            filesystem.delete_file(info.path)


def _cause(error: BaseException | None, wanted: Callable[[BaseException], bool]) -> BaseException | None:
    """The first in a chain of causes that is wanted; Ray wraps what a worker raised."""
    while error is not None and not wanted(error):
        error = error.__cause__ or getattr(error, "cause", None)
    return error


def _no_space(error: BaseException) -> bool:
    return isinstance(error, OSError) and (error.errno == errno.ENOSPC or "No space left" in str(error))
