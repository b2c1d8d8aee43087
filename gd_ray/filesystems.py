"""Local paths and addresses of object stores, told apart in one place."""

import os
from pathlib import Path

from pyarrow import ArrowException, fs

from gd_ray.errors import UserError


def filesystem_of(address: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a local path or of an address such as s3://bucket/folder, and the path in it."""
    if "://" in address:
        try:
            filesystem, path = fs.FileSystem.from_uri(address)
        except (OSError, ArrowException) as error:
            reason = str(error).split("\n")[0].rstrip(".")
            raise UserError(f"address {address!r} cannot be opened ({reason}); check it and the network.") from error
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), address.rstrip("/") or "/"


def inside(address: str, path: str) -> str:
    """The address of a path below another address, which may end with options, as in s3://bucket/a?region=b."""
    folder, options = _parted(address)
    return f"{folder}/{path}{options}"


def beside(address: str, ending: str) -> str:
    """The address with -ending after its last name."""
    folder, options = _parted(address)
    return f"{folder}-{ending}{options}"


def _parted(address: str) -> tuple[str, str]:
    folder, mark, options = address.partition("?") if "://" in address else (address, "", "")
    return folder.rstrip("/"), f"{mark}{options}"


def check_writable(name: str, address: str) -> None:
    """Makes a local folder and tries to write there; object stores tell when they are written to."""
    if "://" in address:
        return
    try:
        Path(address).mkdir(parents=True, exist_ok=True)
        probe = Path(address, f".probe-{os.getpid()}")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{name} {address!r} cannot be written ({error.strerror}); choose another folder.") from error
