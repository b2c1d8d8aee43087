"""Tar archives of images: WebDataset shards, tars named after a WordNet id, and tars of such tars."""

import json
import re
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import groupby, islice, takewhile
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
class Member:
    """A byte range of a file: an image of a tar, a tar inside a tar, or a whole tar."""

    file: Path
    path: str
    """The file's own path, and that of the member in it."""
    start: int
    size: int
    label: str | None = None

    @property
    def name(self) -> str:
        return PurePosixPath(self.path).name


@dataclass(frozen=True)
class _Contents:
    """Images of archives, what is broken in them, and their other members."""

    images: list[Member] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)
    passed_over: PassedOver = field(default_factory=PassedOver)

    def add(self, archive: Member) -> None:
        images: list[tarfile.TarInfo] = []
        labels: dict[str, str] = {}
        problems, end = [], archive.start + archive.size
        try:
            with _open_tar(archive) as tar:
                inside = takewhile(lambda member: member.offset < end, tar)  # a torn tar may go on in the one around it
                for member in filter(tarfile.TarInfo.isfile, inside):
                    path = f"{archive.path}/{printable(member.name)}"
                    if _is_image(member):
                        images.append(member)
                    elif member.name.endswith((".cls", ".json")):
                        try:
                            labels |= _labels(member.name, tar.extractfile(member).read())  # type: ignore[union-attr]
                        except ValueError as error:
                            problems.append(f"{path}: {type(error).__name__}: {error}")
                    else:
                        self.passed_over.add_files([path])
            _check_end(archive)
        except _BROKEN as error:
            problems.append(f"{archive.path}: the rest of the archive is lost: {type(error).__name__}: {error}")
            images = [member for member in images if member.offset_data + member.size <= end]
        if not images and not problems:
            problems.append(f"{archive.path}: it holds no image")
        self.broken.extend(problems)
        stem = archive.name.removesuffix(".tar")
        own_class = stem if re.fullmatch(r"n\d+", stem) else None
        for image in images:
            label = labels.get(_key(image.name)) or innermost_id(image.name.split("/")[:-1]) or own_class
            path = f"{archive.path}/{printable(image.name)}"
            self.images.append(Member(archive.file, path, image.offset_data, image.size, label))


@dataclass(frozen=True)
class TarPart:
    """Archives that are read together. The class is an image's label file, or the WordNet id of a folder or archive."""

    archives: tuple[Member, ...]
    expected: int
    side: int
    piece: tuple[Member, ...] = ()
    """Images of a part that is a piece of one large archive; empty for a part of whole archives."""

    def index(self) -> PartIndex:
        images = self._contents.images
        classes, names = [image.label for image in images], [image.name for image in images]
        return PartIndex(classes, names, self._contents.broken, self._contents.passed_over)

    def load(self, indices: NDArray[np.int64]) -> ImageBatch:
        chosen = indices.tolist()
        encoded = _read(self._contents.images[index] for index in chosen)
        return decode_batch(chosen, encoded, self.path, self.side)

    def path(self, index: int) -> str:
        return self._contents.images[index].path

    @cached_property
    def _contents(self) -> _Contents:
        contents = _Contents(list(self.piece))
        for archive in () if self.piece else self.archives:
            contents.add(archive)
        return contents


def _read(members: Iterable[Member]) -> Iterator[bytes]:
    for file, group in groupby(members, key=lambda member: member.file):
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
    together: list[Member] = []
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


def _archives(file: Path, passed_over: PassedOver) -> list[Member]:
    """Return the tar itself, or the tars inside it."""
    whole = Member(file, str(file), 0, file.stat().st_size)
    inner: list[Member] = []
    others: list[str] = []
    try:
        with _open_tar(whole) as tar:
            for member in tar:
                if _is_image(member):
                    return [whole]
                if member.isfile() and member.name.endswith(".tar"):
                    path = f"{file}/{PurePosixPath(member.name).name}"
                    inner.append(Member(file, path, member.offset_data, member.size))
                elif member.isfile():
                    others.append(f"{file}/{printable(member.name)}")
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


def _check_end(archive: Member) -> None:
    """Check the two blocks of zeros that end a tar: without them it was truncated, if only between two members."""
    with archive.file.open("rb") as file:
        file.seek(archive.start + max(0, archive.size - len(_END)))
        if file.read(len(_END)) != _END:
            raise tarfile.ReadError("unexpected end of data")


@contextmanager
def _open_tar(archive: Member) -> Iterator[tarfile.TarFile]:
    with archive.file.open("rb") as file:
        file.seek(archive.start)
        with tarfile.open(fileobj=file, mode="r:") as tar:  # begins where the file is; a tar ends by itself
            yield tar


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


def _bytes_per_image(archives: list[Member]) -> float:
    """Estimate the mean size of an image from the first ones of a few archives."""
    sizes = []
    for archive in archives[:: max(1, len(archives) // _SAMPLED)]:
        with suppress(*_BROKEN), _open_tar(archive) as tar:
            for member in islice(tar, _SAMPLED):
                if _is_image(member):
                    sizes.append(member.size + 1024)  # its header and padding
    return max(1024.0, float(np.mean(sizes))) if sizes else 4096.0


FORMATS.append(Format("tar files", lambda file: file.suffix == ".tar", _open))
