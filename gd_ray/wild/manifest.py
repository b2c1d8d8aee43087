"""manifest.json, the description of a prepared stream. A folder without one is not a stream."""

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from gd_ray.data.pixels import Statistics
from gd_ray.errors import Unreachable, UserError
from gd_ray.sources.base import PassedOver
from gd_ray.storage import filesystem_of, is_remote, without_credentials

FORMAT = 1
NAME = "manifest.json"


@dataclass(frozen=True)
class Shard:
    """One Parquet file of the stream."""

    file: str
    rows: int
    bytes: int
    group_rows: Sequence[int]
    group_crcs: Sequence[int]
    """CRC-32 of the image bytes of each row group."""


@dataclass(frozen=True)
class Manifest:
    """Contents and origin of a stream."""

    side: int
    images: int
    shards: Sequence[Shard]
    source: str
    seed: int
    """Seed of the shuffle."""
    statistics: Statistics
    classes: int
    """Number of classes in the stream; 0 if the source has none."""
    excluded: dict[str, int] = field(default_factory=dict)
    """Number of excluded images of each excluded class."""
    unreadable: int = 0
    unreadable_examples: Sequence[str] = ()
    split: str = ""
    """Distances of this stream, if it was cut from another one."""
    passed_over: PassedOver = field(default_factory=PassedOver)

    def to_json(self) -> str:
        return json.dumps({"format": FORMAT, **asdict(self)}, indent=1)


def read_manifest(address: str) -> Manifest:
    """Read and check the manifest, and the presence and size of its shards."""
    filesystem, root = filesystem_of(address)
    try:
        with filesystem.open_input_stream(f"{root}/{NAME}") as source:
            content = json.loads(source.read())
    except FileNotFoundError as error:
        problem = "it does not exist or was not finished; make it with 'gd-ray prepare stream'."
        raise UserError(f"stream {address!r} has no {NAME}: {problem}") from error
    except (OSError, ValueError) as error:
        raise unreadable(f"stream {address!r} has a {NAME} that cannot be read", address, error) from error
    manifest = _checked(address, content)
    sizes = {info.path: info.size for info in filesystem.get_file_info([f"{root}/{s.file}" for s in manifest.shards])}
    for shard in manifest.shards:
        size = sizes[f"{root}/{shard.file}"]
        if size != shard.bytes:
            has = f"has a shard {shard.file} of {size} bytes, expected {shard.bytes}"
            problem = has if size is not None else f"lacks its shard {shard.file}"
            raise UserError(f"stream {address!r} {problem}; copy it again or prepare it again.")
    return manifest


def unreadable(failure: str, address: str, error: Exception) -> UserError:
    """Return the error for a file of a stream that cannot be read; a store may answer the next time."""
    kind = Unreachable if is_remote(address) and isinstance(error, OSError) else UserError
    return kind(without_credentials(f"{failure} ({error}); if this persists, prepare it again."))


def _checked(address: str, content: Any) -> Manifest:
    version = content.pop("format", None) if isinstance(content, dict) else None
    if version != FORMAT:
        raise UserError(f"stream {address!r} has format {version!r}, this program reads {FORMAT}; prepare it again.")
    try:
        content["shards"] = shards = [Shard(**shard) for shard in content["shards"]]
        content["statistics"] = Statistics.from_json(content["statistics"])
        content["passed_over"] = PassedOver(**content.get("passed_over", {}))
        if not isinstance(content["side"], int) or content["side"] < 1:
            raise TypeError(f"side {content['side']!r}")
        manifest = Manifest(**content)
        whole = [len(s.group_rows) == len(s.group_crcs) and sum(s.group_rows) == s.rows for s in shards]
    except (KeyError, TypeError) as error:
        raise UserError(f"stream {address!r} has a {NAME} with a wrong field ({error}); prepare it again.") from error
    if manifest.images != sum(shard.rows for shard in shards) or not shards or not all(whole):
        raise UserError(f"stream {address!r} has a {NAME} whose counts do not add up; prepare it again.")
    return manifest
