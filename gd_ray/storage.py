"""Files of local folders and of addresses such as s3://bucket/folder: list, read, write whole, create, delete."""

import errno
import itertools
import os
import random
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any
from uuid import uuid4

import pyarrow as pa
from pyarrow import fs

from gd_ray import filesystems
from gd_ray.errors import Unreachable, UserError
from gd_ray.filesystems import (
    filesystem_of,
    is_remote,
    local_path,
    puts_whole_objects,
    reason,
    without_credentials,
)

__all__ = ["filesystem_of", "is_remote", "without_credentials"]  # beside all that is defined here

_NOT_ALLOWED = ("ACCESS_DENIED", "INVALID_ACCESS_KEY", "SIGNATURE", "TOKEN", "CREDENTIALS")
"""Parts of the names of S3's errors about credentials and rights."""


def list_files(address: str, folder: str = "", *, recursive: bool = False) -> list[fs.FileInfo]:
    """List files and folders in a folder below an address; an absent folder is empty."""
    filesystem, root = filesystem_of(address)
    selector = fs.FileSelector(f"{root}/{folder}".rstrip("/"), recursive=recursive, allow_not_found=True)
    with storage_errors(f"{folder} of {address!r} cannot be listed"):
        infos: list[fs.FileInfo] = filesystem.get_file_info(selector)
        return infos


def read_bytes(filesystem: fs.FileSystem, path: str) -> bytes:
    """Read a whole file. Python opens a small local file in a third of pyarrow's time."""
    if isinstance(filesystem, fs.LocalFileSystem):
        return Path(path).read_bytes()
    for attempt in itertools.count(1):
        try:
            with filesystem.open_input_stream(path) as stream:
                return bytes(stream.read())
        except OSError as error:
            if "NO_SUCH_KEY" in str(error):  # deleted after it was opened
                raise FileNotFoundError(errno.ENOENT, "No such file", path) from error
            # A refusal that is longer than a small object ends like this, and pyarrow does not repeat the request.
            if "INTERNAL_FAILURE" not in str(error) or attempt >= filesystems.ATTEMPTS:
                raise
            time.sleep(random.uniform(0, 2**attempt) / 2)
    raise AssertionError


def read_file(address: str) -> bytes:
    """Read a whole file."""
    return read_bytes(*filesystem_of(address))


def exists(address: str) -> bool:
    """Return whether a file is there."""
    if (path := local_path(address)) is not None:
        return os.path.exists(path)
    filesystem, path = filesystem_of(address)
    with storage_errors(f"{path} cannot be looked up"):
        return bool(filesystem.get_file_info(path).type == fs.FileType.File)


def file_names(address: str, folder: str) -> list[str]:
    """List the names in a folder below an address, without a writer's temporary ones; an absent folder is empty."""
    if (path := local_path(address)) is None:
        names = [info.base_name for info in list_files(address, folder)]
    else:
        names = []
        with (
            storage_errors(f"{folder} of {address!r} cannot be listed"),
            suppress(FileNotFoundError, NotADirectoryError),
        ):
            names = os.listdir(os.path.join(path, folder))
    return [name for name in names if not name.startswith(".")]


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
def open_atomic(address: str) -> Iterator[Any]:
    """Open a file for writing that appears at the end, unless that failed: no reader finds a part of it.

    A folder has it under a hidden temporary name until it is renamed. An object store, which cannot rename, gets it in
    one piece.
    """
    filesystem, path = filesystem_of(absolute(address))
    if puts_whole_objects(filesystem):
        content = pa.BufferOutputStream()
        yield content
        with filesystem.open_output_stream(path) as stream:
            stream.write(content.getvalue())
        return
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


def create_file(address: str, content: bytes) -> bool:
    """Write a file unless it exists; return whether this call made it.

    Two calls at once may both make an object, but only if one has read it back before the other wrote: pyarrow has no
    request that creates.
    """
    if (path := local_path(address)) is None:
        if exists(address):
            return False
        write_atomic(address, content)
        with suppress(FileNotFoundError):
            return read_file(address) == content
        return False
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with suppress(FileExistsError), open(path, "xb") as file:
        file.write(content)
        return True
    return False


def delete_file(address: str) -> None:
    """Delete a file, unless it is absent already."""
    with suppress(FileNotFoundError):
        if (path := local_path(address)) is not None:
            os.unlink(path)
        else:
            filesystem, path = filesystem_of(address)
            filesystem.delete_file(path)


def publish_folder(temporary: str, address: str, last: str) -> None:
    """Rename a folder unless another process was faster; in an object store copy its files, the one named last last."""
    if not is_remote(address):
        with suppress(OSError):
            os.replace(temporary, address)
        return
    filesystem, target = filesystem_of(address)
    for info in sorted(list_files(temporary), key=lambda info: info.base_name == last):
        filesystem.copy_file(info.path, f"{target}/{info.base_name}")


def delete_folder(address: str) -> None:
    """Delete a folder and what it holds, unless that fails or it is absent already."""
    filesystem, path = filesystem_of(address)
    with suppress(OSError):
        filesystem.delete_dir(path)


@contextmanager
def storage_errors(failure: str) -> Iterator[None]:
    """Convert an OSError into Unreachable: one sentence that begins with `failure`."""
    try:
        yield
    except OSError as error:
        sentence = f"{failure} ({reason(error)}); check the address, its access and the network."
        raise Unreachable(without_credentials(sentence)) from error


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


def absolute(address: str) -> str:
    """Return an address as every process understands it, whatever its working directory."""
    path = local_path(address)
    return address if path is None else os.path.abspath(path)


def join(address: str, path: str) -> str:
    """Return the address of a path below another address, which may end with options, as in s3://bucket/a?region=b."""
    folder, options = _split_options(address)
    return f"{folder}/{path}{options}"


def sibling(address: str, suffix: str) -> str:
    """Return the address with -suffix after its last name."""
    folder, options = _split_options(address)
    return f"{folder}-{suffix}{options}"


def _split_options(address: str) -> tuple[str, str]:
    folder, mark, options = address.partition("?") if is_remote(address) else (address, "", "")
    return folder.rstrip("/"), f"{mark}{options}"


def check_writable(name: str, address: str) -> None:
    """Write and delete a probe; create a local folder."""
    if is_remote(address):
        _check_store(name, address)
        return
    path = local_path(address) or "."
    try:
        Path(path).mkdir(parents=True, exist_ok=True)
        probe = Path(path, f".probe-{uuid4().hex}")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{name} {address!r} cannot be written ({error.strerror}); choose another folder.") from error


def _check_store(name: str, address: str) -> None:
    probe = join(address, f".probe-{uuid4().hex}")
    try:
        write_atomic(probe, b"")
        delete_file(probe)
    except OSError as error:
        text, refused = str(error), True
        if "NO_SUCH_BUCKET" in text:
            advice = "create the bucket or choose another address"
        elif any(code in text for code in _NOT_ALLOWED):
            advice = (
                "check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or ~/.aws/credentials) and their "
                "right to write and delete there"
            )
        else:
            advice, refused = "check the address and the network", False
        sentence = f"{name} {without_credentials(address)!r} cannot be written ({reason(error)}); {advice}."
        raise (UserError if refused else Unreachable)(sentence) from error
