"""The filesystem of a local path or of an address such as s3://bucket/folder, as pyarrow opens it."""

import re
from functools import lru_cache
from urllib.parse import parse_qsl, unquote, urlsplit

from pyarrow import ArrowException, fs

from gd_ray.errors import Unreachable, UserError

ATTEMPTS = 6
"""Times that a request to S3 is sent when it is throttled, times out or loses its connection: some 15 seconds."""
_CONNECT_WITHIN_S = 5.0
_BUCKETS = ("s3", "gs", "gcs")
"""Schemes whose addresses are a bucket and a path in it: one client serves all paths."""
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


def is_remote(address: str) -> bool:
    """Return whether an address is not one of this machine's folders, mounted ones included."""
    return local_path(address) is None


def local_path(address: str) -> str | None:
    """Return the path of a local folder or file; None for an address of another filesystem."""
    if address.startswith("file://"):
        return unquote(address.removeprefix("file://"))
    return None if "://" in address else address


def filesystem_of(address: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a local path or of an address such as s3://bucket/folder, and the path in it."""
    if (local := local_path(address)) is not None:
        return fs.LocalFileSystem(), local.rstrip("/") or "/"
    try:
        parts = urlsplit(address)
        if parts.scheme not in _BUCKETS:
            filesystem, path = fs.FileSystem.from_uri(address)
            return filesystem, path.rstrip("/")
        if not parts.hostname:
            raise ValueError("it names no bucket")
        filesystem, bucket = _open_bucket(parts._replace(path="").geturl(), ATTEMPTS)
        return filesystem, f"{bucket}{unquote(parts.path)}".rstrip("/")
    except (OSError, ValueError, TypeError, ArrowException) as error:
        kind = Unreachable if isinstance(error, OSError) else UserError
        shown = without_credentials(address)
        raise kind(f"address {shown!r} cannot be opened ({reason(error)}); check it and the network.") from error


@lru_cache
def _open_bucket(address: str, attempts: int) -> tuple[fs.FileSystem, str]:
    """Open a bucket with the options of its address; S3 with more patience than an address can ask for."""
    filesystem, bucket = fs.FileSystem.from_uri(address)
    if isinstance(filesystem, fs.S3FileSystem):
        parts = urlsplit(address)
        given = {name: _BOOLEANS.get(value.lower(), value) for name, value in parse_qsl(parts.query)}
        filesystem = fs.S3FileSystem(
            access_key=unquote(parts.username) if parts.username else None,
            secret_key=unquote(parts.password) if parts.password else None,
            **{
                **given,
                "region": filesystem.region or None,
                "allow_delayed_open": True,  # a small object is written by one request instead of three
                "connect_timeout": _CONNECT_WITHIN_S,
                "retry_strategy": fs.AwsStandardS3RetryStrategy(max_attempts=attempts),
            },
        )
    return filesystem, bucket


def puts_whole_objects(filesystem: fs.FileSystem) -> bool:
    """Return whether an object appears as a whole when it is closed; such a store has no rename, only copies."""
    return filesystem.type_name in ("s3", "gcs")


def without_credentials(text: str) -> str:
    """Return a text without the key and secret of the addresses in it, as in s3://key:secret@bucket."""
    return re.sub(r"://[^/@\s'\"]*@", "://", text)


def reason(error: Exception) -> str:
    """Return the system's few words where there are any; an object store's first line."""
    return getattr(error, "strerror", None) or str(error).split("\n")[0].rstrip(".")
