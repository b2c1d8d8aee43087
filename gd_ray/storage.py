"""Local paths and addresses of object stores, and the one way in which files are written."""

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from uuid import uuid4

from pyarrow import ArrowException, NativeFile, fs

from gd_ray.errors import Unreachable, UserError


def filesystem_of(address: str) -> tuple[fs.FileSystem, str]:
    """Return the filesystem of a local path or of an address such as s3://bucket/folder, and the path in it."""
    if "://" in address:
        try:
            filesystem, path = fs.FileSystem.from_uri(address)
        except (OSError, ArrowException) as error:
            kind = Unreachable if isinstance(error, OSError) else UserError
            raise kind(f"address {address!r} cannot be opened ({_reason(error)}); check it and the network.") from error
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), address.rstrip("/") or "/"


def list_files(address: str, folder: str, *, recursive: bool = False) -> list[fs.FileInfo]:
    """List files and folders in a folder below an address; an absent folder is empty."""
    filesystem, root = filesystem_of(address)
    selector = fs.FileSelector(f"{root}/{folder}", recursive=recursive, allow_not_found=True)
    with storage_errors(f"{folder} of {address!r} cannot be listed"):
        infos: list[fs.FileInfo] = filesystem.get_file_info(selector)
        return infos


def read_bytes(filesystem: fs.FileSystem, path: str) -> bytes:
    """Read a whole file. Python opens a small local file in a third of pyarrow's time."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return Path(path).read_bytes()
    with filesystem.open_input_stream(path) as stream:
        return bytes(stream.read())


def read_files(address: str, folder: str, suffix: str) -> Iterator[tuple[PurePosixPath, bytes]]:
    """Read the files below a folder in the order of their paths, without a writer's temporary ones."""
    filesystem, _ = filesystem_of(address)
    for path in sorted(PurePosixPath(info.path) for info in list_files(address, folder, recursive=True)):
        if path.suffix == suffix and not path.name.startswith("."):
            # Storage that refuses is not an absent file: a trial that failed would count as waiting.
            with storage_errors(f"{path} cannot be read"), suppress(FileNotFoundError):
                yield path, read_bytes(filesystem, str(path))


def write_atomic(address: str, content: bytes) -> None:
    """Write a file that is whole or absent, also for readers at the same time; create its folder."""
    with open_atomic(address) as stream:
        stream.write(content)


@contextmanager
def open_atomic(address: str) -> Iterator[NativeFile]:
    """Open a file for writing under a hidden temporary name, and rename it at the end unless that failed."""
    filesystem, path = filesystem_of(address if "://" in address else os.path.abspath(address))
    folder, name = os.path.split(path)
    temporary = f"{folder}/.{name}.{uuid4().hex}.tmp"
    filesystem.create_dir(folder, recursive=True)
    try:
        with filesystem.open_output_stream(temporary) as stream:
            yield stream
        filesystem.move(temporary, path)
    except BaseException:
        with suppress(OSError):
            filesystem.delete_file(temporary)
        raise


def delete_file(address: str) -> None:
    """Delete a file, unless it is absent already."""
    filesystem, path = filesystem_of(address)
    with suppress(FileNotFoundError):
        filesystem.delete_file(path)


@contextmanager
def storage_errors(failure: str) -> Iterator[None]:
    """Convert an OSError into Unreachable: one sentence that begins with `failure`."""
    try:
        yield
    except OSError as error:
        raise Unreachable(f"{failure} ({_reason(error)}); check the address, its access and the network.") from error


def _reason(error: Exception) -> str:
    """Return the system's few words where there are any; an object store's first line."""
    return getattr(error, "strerror", None) or str(error).split("\n")[0].rstrip(".")


@contextmanager
def disk_full_errors(name: str, address: str) -> Iterator[None]:
    """Convert the error of a full disk, which may be wrapped by Ray, into one sentence."""
    try:
        yield
    except Exception as error:
        cause: BaseException | None = error
        while cause is not None:
            if isinstance(cause, OSError) and (cause.errno == errno.ENOSPC or "No space left" in str(cause)):
                sentence = f"{name} {address!r} has no space left; free some or choose another folder."
                raise UserError(sentence) from error
            cause = cause.__cause__ or getattr(cause, "cause", None)
        raise


def join(address: str, path: str) -> str:
    """Return the address of a path below another address, which may end with options, as in s3://bucket/a?region=b."""
    folder, options = _split_options(address)
    return f"{folder}/{path}{options}"


def sibling(address: str, suffix: str) -> str:
    """Return the address with -suffix after its last name."""
    folder, options = _split_options(address)
    return f"{folder}-{suffix}{options}"


def _split_options(address: str) -> tuple[str, str]:
    folder, mark, options = address.partition("?") if "://" in address else (address, "", "")
    return folder.rstrip("/"), f"{mark}{options}"


def check_writable(name: str, address: str) -> None:
    """Create a local folder and write a probe; an object store is not probed, its first write fails instead."""
    if "://" in address:
        return
    try:
        Path(address).mkdir(parents=True, exist_ok=True)
        probe = Path(address, f".probe-{os.getpid()}")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{name} {address!r} cannot be written ({error.strerror}); choose another folder.") from error
