"""Tar archives of images: WebDataset shards, tars named after a WordNet id, and the official tars of such tars."""

import json
import re
import tarfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path, PurePosixPath

import numpy as np
from numpy.typing import NDArray

from gd_ray.errors import UserError
from gd_ray.wild.parts import IMAGE_ENDINGS, ROWS, Chunk, Listing, Part, decoded, printable, wordnet_class

_BROKEN = (tarfile.TarError, OSError, EOFError, ValueError)
_END = bytes(1024)
_SIZED = 16  # archives whose first images tell how large the images of all are


@dataclass(frozen=True)
class Archive:
    """A tar: a file, or a stretch of one that is a tar of tars."""

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
    """In the file."""
    size: int
    label: str | None


@dataclass(frozen=True)
class TarPart:
    """Archives that are read together. The class is the label beside an image, or the WordNet id of the archive."""

    archives: tuple[Archive, ...]
    expected: int
    given: tuple[_Member, ...] = ()
    """Of a part that is a piece of one large archive, its images; without them the archives are listed."""

    def listing(self) -> Listing:
        members, broken = self._members
        return Listing([m.label for m in members], [PurePosixPath(m.name).name for m in members], broken)

    def load(self, places: NDArray[np.int64]) -> Chunk:
        members, _ = self._members
        chosen = places.tolist()
        contents = _contents(members[place] for place in chosen)
        return decoded(chosen, contents, lambda place: f"{members[place].archive}/{members[place].name}")

    @cached_property
    def _members(self) -> tuple[Sequence[_Member], list[str]]:
        if self.given:
            return self.given, []
        members: list[_Member] = []
        broken: list[str] = []
        for archive in self.archives:
            found, problem = _listed(archive)
            members += found
            broken += problem
        return members, broken


def _contents(members: Iterable[_Member]) -> Iterator[bytes]:
    for file, group in groupby(members, key=lambda member: member.archive.file):
        with file.open("rb") as source:
            for member in group:
                source.seek(member.start)
                yield source.read(member.size)


def tar_parts(files: Iterable[Path]) -> list[Part]:
    """Small archives are joined to parts of a few thousand images, large ones are cut into such parts."""
    archives = [archive for file in files for archive in _archives(file)]
    per_image = _bytes_per_image(archives)
    parts: list[Part] = []
    together: list[Archive] = []
    expected = 0
    for archive in archives:
        number = max(1, int(archive.size / per_image))
        if number > 2 * ROWS:
            members, broken = _listed(archive)
            if not broken:  # else as one, which tells what is broken
                pieces = [tuple(members[k : k + ROWS]) for k in range(0, len(members), ROWS)]
                parts += [TarPart((archive,), len(piece), piece) for piece in pieces]
                continue
        if together and expected + number > ROWS:
            parts.append(TarPart(tuple(together), expected))
            together, expected = [], 0
        together.append(archive)
        expected += number
    return [*parts, TarPart(tuple(together), expected)] if together else parts


def _archives(file: Path) -> list[Archive]:
    """The tar itself, or the tars inside it."""
    whole = Archive(file, file.name, 0, file.stat().st_size)
    inner: list[Archive] = []
    try:
        with _opened(whole) as tar:
            for member in tar:
                if _is_picture(member):
                    return [whole]
                if member.isfile() and member.name.endswith(".tar"):
                    inner.append(Archive(file, PurePosixPath(member.name).name, member.offset_data, member.size))
        if inner:
            _check_end(whole)
    except _BROKEN as error:
        if inner:
            raise UserError(
                f"source file {str(file)!r} is a truncated tar: after {len(inner)} tars inside it, {error}; copy it "
                f"again."
            ) from error
    return inner or [whole]


def _is_picture(member: tarfile.TarInfo) -> bool:
    return member.isfile() and PurePosixPath(member.name).suffix.lower() in IMAGE_ENDINGS


def _check_end(archive: Archive) -> None:
    """A tar ends with two blocks of zeros. Without them it was cut, if only between two members."""
    with archive.file.open("rb") as file:
        file.seek(archive.start + max(0, archive.size - len(_END)))
        if file.read(len(_END)) != _END:
            raise tarfile.ReadError("unexpected end of data")


@contextmanager
def _opened(archive: Archive) -> Iterator[tarfile.TarFile]:
    with tarfile.open(archive.file, "r:") as outer:
        if archive.start == 0:
            yield outer
            return
        stretch = tarfile.TarInfo(archive.name)
        stretch.size, stretch.offset_data = archive.size, archive.start
        with tarfile.open(fileobj=outer.extractfile(stretch), mode="r:") as inner:
            yield inner


def _listed(archive: Archive) -> tuple[list[_Member], list[str]]:
    """The images of an archive, and what is wrong with it."""
    stem = archive.name.removesuffix(".tar")
    own_class = stem if re.fullmatch(r"n\d+", stem) else None
    pictures: list[tuple[str, int, int]] = []
    labels: dict[str, str] = {}
    broken = []
    try:
        with _opened(archive) as tar:
            for member in tar:
                name = PurePosixPath(member.name)
                if _is_picture(member):
                    pictures.append((member.name, archive.start + member.offset_data, member.size))
                elif member.isfile() and name.suffix in (".cls", ".json"):
                    content = tar.extractfile(member)
                    assert content is not None
                    text = content.read()
                    try:
                        label = _label(name.suffix, text)
                    except ValueError as error:
                        broken.append(f"{archive}/{printable(member.name)}: {type(error).__name__}: {error}")
                        continue
                    if label is not None:
                        labels[_key(name)] = label
        _check_end(archive)
    except _BROKEN as error:
        broken.append(f"{archive}: the rest of the archive is lost: {type(error).__name__}: {error}")
        end = archive.start + archive.size
        pictures = [(name, start, size) for name, start, size in pictures if start + size <= end]
    if not pictures and not broken:
        broken.append(f"{archive}: it holds no image")
    found: list[_Member] = []
    for picture, start, size in pictures:
        path = PurePosixPath(picture)
        label = labels.get(_key(path)) or wordnet_class(path.parts[:-1]) or own_class
        found.append(_Member(archive, printable(picture), start, size, label))
    return found, broken


def _label(suffix: str, content: bytes) -> str | None:
    if suffix == ".cls":
        return content.decode().strip()
    value = json.loads(content)
    return str(value["label"]) if isinstance(value, dict) and "label" in value else None


def _key(name: PurePosixPath) -> str:
    """What WebDataset's files of one sample have in common."""
    return str(name.parent / name.name.split(".")[0])


def _bytes_per_image(archives: list[Archive]) -> float:
    """From the first images of a few archives: to know how many shards a stream needs."""
    sizes = []
    for archive in archives[:: max(1, len(archives) // _SIZED)]:
        try:
            with _opened(archive) as tar:
                for _, member in zip(range(_SIZED), tar, strict=False):
                    if _is_picture(member):
                        sizes.append(member.size + 1024)  # its header and padding
        except _BROKEN:
            continue
    return max(1024.0, float(np.mean(sizes))) if sizes else 4096.0
