"""manifest.json: what a prepared stream holds. A folder without one is no stream."""

import json
from dataclasses import asdict, dataclass
from typing import Any

from gd_ray.data.pixels import SIDE, Statistics
from gd_ray.errors import UserError
from gd_ray.filesystems import filesystem_of

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True)
class Shard:
    """One Parquet file of the stream."""

    file: str
    rows: int
    bytes: int
    group_rows: tuple[int, ...]
    group_crcs: tuple[int, ...]
    """CRC-32 of the image bytes of each row group."""


@dataclass(frozen=True)
class Manifest:
    """What a stream holds and where it came from."""

    images: int
    shards: tuple[Shard, ...]
    source: str
    seed: int
    """Of the shuffle."""
    statistics: Statistics
    classes: int
    """Classes of the source that are in the stream; 0 where it has none."""
    excluded: dict[str, int]
    """Images left out, for each excluded class that occurred."""
    unreadable: int
    unreadable_examples: tuple[str, ...]
    split: str = ""
    """Which part of the source stream this is, where it was cut from one."""

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, "side": SIDE, **asdict(self)}, indent=1)


def read_manifest(address: str) -> Manifest:
    """Reads and checks the manifest and that its shards are there, whole by their size."""
    filesystem, root = filesystem_of(address)
    try:
        with filesystem.open_input_stream(f"{root}/{NAME}") as source:
            content = json.loads(source.read())
    except FileNotFoundError as error:
        raise UserError(
            f"stream {address!r} has no {NAME}: it does not exist or was not finished; make it with 'gd-ray prepare'."
        ) from error
    except (OSError, ValueError) as error:
        raise UserError(
            f"stream {address!r} has a {NAME} that cannot be read ({error}); if it stays so, prepare it anew."
        ) from error
    manifest = _checked(address, content)
    sizes = {info.path: info.size for info in filesystem.get_file_info([f"{root}/{s.file}" for s in manifest.shards])}
    for shard in manifest.shards:
        size = sizes[f"{root}/{shard.file}"]
        if size is None:
            raise UserError(f"stream {address!r} lacks its shard {shard.file}; copy it again or prepare it anew.")
        if size != shard.bytes:
            raise UserError(
                f"stream {address!r} has a shard {shard.file} of {size} bytes where {shard.bytes} belong; copy it "
                f"again or prepare it anew."
            )
    return manifest


def _checked(address: str, content: Any) -> Manifest:
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        version = content.get("format") if isinstance(content, dict) else None
        raise UserError(f"stream {address!r} has format {version!r}, this program reads {FORMAT}; prepare it anew.")
    if content.get("side") != SIDE:
        raise UserError(f"stream {address!r} has images of side {content.get('side')!r}, not {SIDE}; prepare it anew.")
    del content["format"], content["side"]
    try:
        shards = tuple(
            Shard(**{**shard, "group_rows": tuple(shard["group_rows"]), "group_crcs": tuple(shard["group_crcs"])})
            for shard in content.pop("shards")
        )
        numbers = content.pop("statistics")
        statistics = Statistics(tuple(numbers["mean"]), tuple(numbers["std"]))
        examples = tuple(content.pop("unreadable_examples"))
        manifest = Manifest(**content, shards=shards, statistics=statistics, unreadable_examples=examples)
    except (KeyError, TypeError) as error:
        raise UserError(f"stream {address!r} has a {NAME} with a wrong field ({error}); prepare it anew.") from error
    if manifest.images != sum(shard.rows for shard in shards) or not shards:
        raise UserError(f"stream {address!r} has a {NAME} whose counts do not add up; prepare it anew.")
    return manifest
