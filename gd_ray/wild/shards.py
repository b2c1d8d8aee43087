"""Writing a stream: its shards, what their pixels add up to, and its manifest last of all."""

import errno
import re
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from gd_ray.data.pixels import PixelSums
from gd_ray.errors import UserError
from gd_ray.filesystems import check_writable, filesystem_of
from gd_ray.wild.manifest import NAME, Manifest, Shard
from gd_ray.wild.stream import PIXELS, WildStream, image_column

SHARD_ROWS = 32_768
GROUP_ROWS = 4_096
SCRATCH = "preparing"
_UNFINISHED = ".unfinished"
_EXAMPLES = 100
_SCHEMA = pa.schema([("position", pa.int64()), ("image", pa.binary(PIXELS)), ("class", pa.string())])


@dataclass(frozen=True)
class Written:
    """One shard, and its pixels added up."""

    number: int
    shard: Shard
    sums: PixelSums


def write_shard(
    out: str, number: int, first: int, images: NDArray[np.uint8], classes: pa.ChunkedArray, group_rows: int
) -> Written:
    """Writes images as a shard whose first position in the stream is `first`."""
    filesystem, root = filesystem_of(out)
    file = f"shard-{number:05d}.parquet"
    groups = [(k, min(k + group_rows, len(images))) for k in range(0, len(images), group_rows)]
    with (
        filesystem.open_output_stream(f"{root}/{file}") as target,
        pq.ParquetWriter(target, _SCHEMA, compression="none", use_dictionary=["class"]) as writer,
    ):
        for start, stop in groups:
            columns = [pa.array(np.arange(first + start, first + stop)), image_column(images[start:stop])]
            group = pa.table([*columns, classes.slice(start, stop - start)], schema=_SCHEMA)
            writer.write_table(group, row_group_size=stop - start)
    size = filesystem.get_file_info(f"{root}/{file}").size
    crcs = tuple(zlib.crc32(images[start:stop].data) for start, stop in groups)
    shard = Shard(file, len(images), size, tuple(stop - start for start, stop in groups), crcs)
    return Written(number, shard, PixelSums.of(images))


def fresh_place(out: str) -> tuple[fs.FileSystem, str]:
    """Where a stream goes, which has none yet."""
    filesystem, root = filesystem_of(out)
    if filesystem.get_file_info(f"{root}/{NAME}").type != fs.FileType.NotFound:
        raise UserError(f"out {out!r} holds a stream already; choose another folder or delete it.")
    return filesystem, root


@contextmanager
def cleared_on_failure(out: str) -> Iterator[None]:
    """Removes what earlier runs left unfinished, and what this one leaves if it fails; never another's files.

    A mark in the folder, made before anything else and removed last, says that what looks like ours is.
    """
    check_writable("out", out)
    filesystem, root = filesystem_of(out)
    mark = f"{root}/{_UNFINISHED}"
    like_ours = _like_ours(filesystem, root)
    if like_ours and filesystem.get_file_info(mark).type == fs.FileType.NotFound:
        raise UserError(f"out {out!r} holds a {like_ours[0].base_name} of something else; choose another folder.")
    _clear(filesystem, root)
    with plain_errors(out):
        with filesystem.open_output_stream(mark) as file:
            file.write(b"gd-ray prepare is at work here, or was stopped; the same command clears up and starts anew.\n")
        try:
            yield
        except BaseException:
            _clear(filesystem, root)
            raise
        filesystem.delete_file(mark)


@contextmanager
def plain_errors(out: str) -> Iterator[None]:
    """A full disk as one sentence."""
    try:
        yield
    except Exception as error:
        if _no_space(error):
            raise UserError(f"out {out!r} has no space left; free some or choose another folder.") from error
        raise


def close_stream(
    out: str,
    written: list[Written],
    *,
    source: str,
    seed: int,
    classes: int,
    excluded: dict[str, int] | None = None,
    unreadable: Sequence[str] = (),
    split: str = "",
) -> WildStream:
    """Makes a folder of shards a stream: writes its manifest, last of all."""
    in_order = sorted(written, key=lambda part: part.number)
    manifest = Manifest(
        images=sum(part.shard.rows for part in in_order),
        shards=tuple(part.shard for part in in_order),
        source=source,
        seed=seed,
        statistics=reduce(add, (part.sums for part in in_order)).statistics(),
        classes=classes,
        excluded=excluded or {},
        unreadable=len(unreadable),
        unreadable_examples=tuple(unreadable[:_EXAMPLES]),
        split=split,
    )
    filesystem, root = filesystem_of(out)
    with filesystem.open_output_stream(f"{root}/.{NAME}.tmp") as target:
        target.write(manifest.to_json().encode())
    filesystem.move(f"{root}/.{NAME}.tmp", f"{root}/{NAME}")
    return WildStream(out, manifest)


def _like_ours(filesystem: fs.FileSystem, root: str) -> list[fs.FileInfo]:
    """What has the name of something that an unfinished run leaves."""
    infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
    names = re.compile(rf"{SCRATCH}|\.{re.escape(NAME)}\.tmp|shard-\d{{5,}}\.parquet")
    return [info for info in infos if names.fullmatch(info.base_name)]


def _clear(filesystem: fs.FileSystem, root: str) -> None:
    """Removes what an unfinished run has written, its mark last."""
    for info in _like_ours(filesystem, root):
        if info.type == fs.FileType.Directory:
            filesystem.delete_dir(info.path)
        else:
            filesystem.delete_file(info.path)
    if filesystem.get_file_info(f"{root}/{_UNFINISHED}").type != fs.FileType.NotFound:
        filesystem.delete_file(f"{root}/{_UNFINISHED}")


def _no_space(error: BaseException | None) -> bool:
    """Whether a full disk is among the causes; Ray wraps what a worker raised."""
    while error is not None:
        if isinstance(error, OSError) and (error.errno == errno.ENOSPC or "No space left" in str(error)):
            return True
        error = error.__cause__ or getattr(error, "cause", None)
    return False
