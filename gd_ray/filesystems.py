"""Local paths and addresses of object stores, told apart in one place."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from pyarrow import ArrowException, fs

from gd_ray.errors import Unreachable, UserError


def filesystem_of(address: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a local path or of an address such as s3://bucket/folder, and the path in it."""
    if "://" in address:
        try:
            filesystem, path = fs.FileSystem.from_uri(address)
        except (OSError, ArrowException) as error:
            kind = Unreachable if isinstance(error, OSError) else UserError
            raise kind(f"address {address!r} cannot be opened ({_reason(error)}); check it and the network.") from error
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), address.rstrip("/") or "/"


def listed(address: str, folder: str, *, recursive: bool = False) -> list[fs.FileInfo]:
    """What lies in a folder below an address; nothing where there is no such folder."""
    filesystem, root = filesystem_of(address)
    selector = fs.FileSelector(f"{root}/{folder}", recursive=recursive, allow_not_found=True)
    with answering(f"{folder} of {address!r} cannot be listed"):
        infos: list[fs.FileInfo] = filesystem.get_file_info(selector)
        return infos


@contextmanager
def answering(failure: str) -> Iterator[None]:
    """Tells in one sentence that storage did not do what was asked of it."""
    try:
        yield
    except OSError as error:
        raise Unreachable(f"{failure} ({_reason(error)}); check the address, its access and the network.") from error


def _reason(error: Exception) -> str:
    """The system's few words where there are any; an object store's first line."""
    return getattr(error, "strerror", None) or str(error).split("\n")[0].rstrip(".")


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
