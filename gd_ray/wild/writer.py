"""Write a stream: its shards, and its manifest last."""

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pyarrow import fs

from gd_ray.data.pixels import PixelSums
from gd_ray.errors import UserError
from gd_ray.storage import check_writable, disk_full_errors, filesystem_of, join, write_atomic
from gd_ray.wild.manifest import NAME, Manifest, Shard
from gd_ray.wild.stream import WildStream, image_column

SHARD_ROWS = 32_768
GROUP_ROWS = 4_096
SCRATCH = "preparing"
_UNFINISHED = ".unfinished"
_EXAMPLES = 100


Written = tuple[Shard, PixelSums]
"""A shard and the sums of its pixels."""


def write_shard(
    out: str, number: int, first: int, images: NDArray[np.uint8], texts: Mapping[str, Any], group_rows: int
) -> Written:
    """Write images, and the columns 'class' and 'path', as a shard whose first position in the stream is `first`."""
    positions = pa.array(np.arange(first, first + len(images)))
    table = pa.table({"position": positions, "image": image_column(images), **texts})
    filesystem, root = filesystem_of(out)
    file = f"shard-{number:05d}.parquet"
    with filesystem.open_output_stream(f"{root}/{file}") as target:
        pq.write_table(table, target, row_group_size=group_rows, compression={"path": "zstd"}, use_dictionary=["class"])
    size = filesystem.get_file_info(f"{root}/{file}").size
    groups = [images[start : start + group_rows] for start in range(0, len(images), group_rows)]
    shard = Shard(file, len(images), size, list(map(len, groups)), [zlib.crc32(group.data) for group in groups])
    return shard, PixelSums.of(images)


def require_no_stream(out: str) -> tuple[fs.FileSystem, str]:
    """Fail if `out` already holds a stream; return its filesystem and path."""
    filesystem, root = filesystem_of(out)
    if filesystem.get_file_info(f"{root}/{NAME}").type != fs.FileType.NotFound:
        raise UserError(f"out {out!r} holds a stream already; choose another folder or delete it.")
    return filesystem, root


@contextmanager
def clean_on_failure(out: str) -> Iterator[None]:
    """Remove the files of unfinished runs, and of this one if it fails, but no other files.

    A mark in the folder, written first and removed last, proves that files with our names are ours.
    """
    check_writable("out", out)
    filesystem, root = filesystem_of(out)
    mark = f"{root}/{_UNFINISHED}"
    like_ours = _like_ours(filesystem, root)
    if like_ours and filesystem.get_file_info(mark).type == fs.FileType.NotFound:
        raise UserError(f"out {out!r} holds a {like_ours[0].base_name} of something else; choose another folder.")
    _clear(filesystem, root)
    with disk_full_errors("out", out):
        with filesystem.open_output_stream(mark) as file:
            file.write(b"gd-ray prepare is running here or was interrupted; the same command starts again.\n")
        try:
            yield
        except BaseException:
            _clear(filesystem, root)
            raise
        filesystem.delete_file(mark)


def close_stream(out: str, written: list[Written], unreadable: Sequence[str] = (), **about: Any) -> WildStream:
    """Make a folder of shards a stream by writing its manifest, with further fields of it in `about`."""
    shards = sorted((shard for shard, _ in written), key=lambda shard: shard.file)
    manifest = Manifest(
        shards=shards,
        images=sum(shard.rows for shard in shards),
        statistics=reduce(add, (sums for _, sums in written)).statistics(),
        unreadable=len(unreadable),
        unreadable_examples=unreadable[:_EXAMPLES],
        **about,
    )
    write_atomic(join(out, NAME), manifest.to_json().encode())
    return WildStream(out, manifest)


def _like_ours(filesystem: fs.FileSystem, root: str) -> list[fs.FileInfo]:
    """List the files whose names an unfinished run uses."""
    infos = filesystem.get_file_info(fs.FileSelector(root, allow_not_found=True))
    return [info for info in infos if re.fullmatch(rf"{SCRATCH}|shard-\d{{5,}}\.parquet", info.base_name)]


def _clear(filesystem: fs.FileSystem, root: str) -> None:
    """Remove the files of an unfinished run, its mark last."""
    for info in _like_ours(filesystem, root):
        delete = filesystem.delete_dir if info.type == fs.FileType.Directory else filesystem.delete_file
        delete(info.path)
    with suppress(FileNotFoundError):
        filesystem.delete_file(f"{root}/{_UNFINISHED}")
