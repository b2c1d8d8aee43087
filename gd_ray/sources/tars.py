"""Tar archives of images: WebDataset shards, tars named after a WordNet id, and tars of such tars."""

import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from gd_ray.errors import UserError
from gd_ray.sources.base import (
    FORMATS,
    PART_ROWS,
    Format,
    ImageBatch,
    PartIndex,
    PassedOver,
    Source,
    SourceRequest,
    printable,
)
from gd_ray.sources.decoding import IMAGE_ENDINGS, decode_batch
from gd_ray.wordnet.hierarchy import innermost_id

_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError)
_END = bytes(1024)
_SAMPLED = 16  # archives and images per archive from which the mean size of an image is estimated


@dataclass(frozen=True)
class Archive:
    """A tar: a file, or a byte range of a tar of tars."""

    file: Path
    name: str
    start: int
    size: int

    def __str__(self) -> str:
        return str(self.file) if self.file.name == self.name else f"{self.file}/{self.name}"


@dataclass(frozen=True)
class _Member:
    archive: Archive
    name: str
    start: int
    """Byte offset in the file."""
    size: int
    label: str | None


@dataclass(frozen=True)
class _Contents:
    """Images of archives, what is broken in them, and their other members."""

    images: list[_Member] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    passed_over: PassedOver = field(default_factory=PassedOver)

    def add(self, archive: Archive) -> None:
        """List the members of an archive."""
        images: list[tarfile.TarInfo] = []
        labels: dict[str, str] = {}
        problems = []
        try:
            with _open_tar(archive) as tar:
                for member in filter(tarfile.TarInfo.isfile, tar):
                    if _is_image(member):
                        images.append(member)
                    elif member.name.endswith((".cls", ".json")):
                        try:
                            labels |= _labels(member.name, tar.extractfile(member).read())  # type: ignore[union-attr]
                        except ValueError as error:
                            problems.append(f"{archive}/{printable(member.name)}: {type(error).__name__}: {error}")
                    else:
                        self.passed_over.add_files([f"{archive}/{printable(member.name)}"])
            _check_end(archive)
        except _BROKEN as error:
            problems.append(f"{archive}: the rest of the archive is lost: {type(error).__name__}: {error}")
            images = [member for member in images if member.offset_data + member.size <= archive.size]
        if not images and not problems:
            problems.append(f"{archive}: it holds no image")
        self.broken.extend(problems)
        stem = archive.name.removesuffix(".tar")
        own_class = stem if re.fullmatch(r"n\d+", stem) else None
        for image in images:
            label = labels.get(_key(image.name)) or innermost_id(image.name.split("/")[:-1]) or own_class
            start = archive.start + image.offset_data
            self.images.append(_Member(archive, printable(image.name), start, image.size, label))


@dataclass(frozen=True)
class TarPart:
    """Archives that are read together. The class is an image's label file, or the WordNet id of a folder or archive."""

    archives: tuple[Archive, ...]
    expected: int
    side: int
    piece: tuple[_Member, ...] = ()
    """Images of a part that is a piece of one large archive; empty for a part of whole archives."""

    def index(self) -> PartIndex:
        images = self._contents.images
        names = [PurePosixPath(image.name).name for image in images]
        return PartIndex([image.label for image in images], names, self._contents.broken, self._contents.passed_over)

    def load(self, indices: NDArray[np.int64]) -> ImageBatch:
        chosen = indices.tolist()
        encoded = _read(self._contents.images[index] for index in chosen)
        return decode_batch(chosen, encoded, self.path, self.side)

    def path(self, index: int) -> str:
        image = self._contents.images[index]
        return f"{image.archive}/{image.name}"

    @cached_property
    def _contents(self) -> _Contents:
        contents = _Contents(list(self.piece))
        for archive in () if self.piece else self.archives:
            contents.add(archive)
        return contents


def _read(members: Iterable[_Member]) -> Iterator[bytes]:
    for file, group in groupby(members, key=lambda member: member.archive.file):
        with file.open("rb") as source:
            for member in group:
                source.seek(member.start)
                yield source.read(member.size)


def _open(_: Path, files: list[Path], request: SourceRequest) -> Source:
    """Join small archives to parts of a few thousand images, and cut large ones into such parts."""
    passed_over = PassedOver()
    archives = [archive for file in files for archive in _archives(file, passed_over)]
    per_image = _bytes_per_image(archives)
    parts: list[TarPart] = []
    together: list[Archive] = []
    expected = 0
    for archive in archives:
        number = max(1, int(archive.size / per_image))
        if number > 2 * PART_ROWS:
            contents = _Contents()
            contents.add(archive)
            if not contents.broken:  # a broken archive stays whole: its index lists what is broken
                pieces = [tuple(contents.images[k : k + PART_ROWS]) for k in range(0, len(contents.images), PART_ROWS)]
                parts += [TarPart((archive,), len(piece), request.side, piece) for piece in pieces]
                passed_over.update(contents.passed_over)
                continue
        if together and expected + number > PART_ROWS:
            parts.append(TarPart(tuple(together), expected, request.side))
            together, expected = [], 0
        together.append(archive)
        expected += number
    if together:
        parts.append(TarPart(tuple(together), expected, request.side))
    return Source(parts, passed_over=passed_over)


def _archives(file: Path, passed_over: PassedOver) -> list[Archive]:
    """Return the tar itself, or the tars inside it."""
    whole = Archive(file, file.name, 0, file.stat().st_size)
    inner: list[Archive] = []
    others: list[str] = []
    try:
        with _open_tar(whole) as tar:
            for member in tar:
                if _is_image(member):
                    return [whole]
                if member.isfile() and member.name.endswith(".tar"):
                    inner.append(Archive(file, PurePosixPath(member.name).name, member.offset_data, member.size))
                elif member.isfile():
                    others.append(f"{whole}/{printable(member.name)}")
        if inner:
            passed_over.add_files(others)
            _check_end(whole)
    except _BROKEN as error:
        if inner:
            problem = f"is a truncated tar: after {len(inner)} tars inside it, {error}"
            raise UserError(f"source file {str(file)!r} {problem}; copy it again.") from error
    return inner or [whole]


def _is_image(member: tarfile.TarInfo) -> bool:
    return member.isfile() and PurePosixPath(member.name).suffix.lower() in IMAGE_ENDINGS


def _check_end(archive: Archive) -> None:
    """Check the two blocks of zeros that end a tar: without them it was truncated, if only between two members."""
    with archive.file.open("rb") as file:
        file.seek(archive.start + max(0, archive.size - len(_END)))
        if file.read(len(_END)) != _END:
            raise tarfile.ReadError("unexpected end of data")


@contextmanager
def _open_tar(archive: Archive) -> Iterator[tarfile.TarFile]:
    with tarfile.open(archive.file, "r:") as outer:
        if archive.start == 0:
            yield outer
            return
        member = tarfile.TarInfo(archive.name)
        member.size, member.offset_data = archive.size, archive.start
        with tarfile.open(fileobj=outer.extractfile(member), mode="r:") as inner:
            yield inner


def _labels(name: str, content: bytes) -> dict[str, str]:
    """Return the label of a WebDataset sample by its key; empty if the file has none."""
    if name.endswith(".cls"):
        return {_key(name): content.decode().strip()}
    value = json.loads(content)
    return {_key(name): str(value["label"])} if isinstance(value, dict) and "label" in value else {}


def _key(name: str) -> str:
    """Return the name that the files of one WebDataset sample share."""
    folder, _, file = name.rpartition("/")
    return f"{folder}/{file.split('.')[0]}"


def _bytes_per_image(archives: list[Archive]) -> float:
    """Estimate the mean size of an image from the first ones of a few archives."""
    sizes = []
    for archive in archives[:: max(1, len(archives) // _SAMPLED)]:
        with suppress(*_BROKEN), _open_tar(archive) as tar:
            for member in islice(tar, _SAMPLED):
                if _is_image(member):
                    sizes.append(member.size + 1024)  # its header and padding
    return max(1024.0, float(np.mean(sizes))) if sizes else 4096.0


FORMATS.append(Format("tar files", lambda file: file.suffix == ".tar", _open))
