"""Local paths and addresses of object stores, told apart in one place."""

from pyarrow import fs


def filesystem_of(address: str) -> tuple[fs.FileSystem, str]:
    """The filesystem of a local path or of an address such as s3://bucket/folder, and the path in it."""
    if "://" in address:
        filesystem, path = fs.FileSystem.from_uri(address)
        return filesystem, path.rstrip("/")
    return fs.LocalFileSystem(), address.rstrip("/") or "/"
