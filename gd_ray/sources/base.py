"""Sources of images: the formats, and a source as parts that any process can index and load."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gd_ray.errors import UserError
from gd_ray.wordnet.exclusions import Exclusions

PART_ROWS = 4096
"""Maximum number of images per part, in formats that can be cut anywhere."""
_EXAMPLES = 3
_TEST_NAMES = ("test", "val", "validation")


@dataclass(frozen=True)
class PassedOver:
    """Files that a source holds but does not use, by reason."""

    counts: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)

    def add(self, reason: str, paths: Sequence[str], number: int | None = None) -> None:
        """Count files, `number` of them or as many as there are paths, and keep the first paths as examples."""
        self.counts[reason] = self.counts.get(reason, 0) + (len(paths) if number is None else number)
        self.examples[reason] = [*self.examples.get(reason, ()), *paths][:_EXAMPLES]

    def add_files(self, paths: Iterable[str]) -> None:
        """Count files that have no format of images, by the ends of their names."""
        for path in paths:
            ending = os.path.splitext(path)[1].lower()
            self.add(f"unknown format {ending}" if ending else "name without an ending", [path])

    def update(self, other: "PassedOver") -> None:
        for reason, number in other.counts.items():
            self.add(reason, other.examples[reason], number)


@dataclass(frozen=True)
class PartIndex:
    """Contents of a part, known without decoding its images."""

    classes: list[str | None]
    """Class of each image; None if the source has none."""
    names: Sequence[str] = ()
    """File name of each image; none where a format has no names."""
    broken: Sequence[str] = ()
    """Contents that are missing or damaged, and why."""
    passed_over: PassedOver = field(default_factory=PassedOver)


@dataclass(frozen=True)
class ImageBatch:
    """Decoded images of a part, and their indices in it."""

    images: NDArray[np.uint8]
    indices: NDArray[np.int64]
    unreadable: list[str]
    """Images that could not be read, and why."""


class SourcePart(Protocol):
    """Part of a source. Holds neither images nor open files, so that it can be sent to another process."""

    @property
    def expected(self) -> int:
        """Approximate number of images."""

    def index(self) -> PartIndex: ...

    def load(self, indices: NDArray[np.int64]) -> ImageBatch:
        """Read the images at these indices, in this order, except unreadable ones."""

    def path(self, index: int) -> str:
        """Return where an image comes from: its file, and its member or row there, counted from 0."""


@dataclass(frozen=True)
class TinyRequest:
    """Options of a tiny_images.bin."""

    images: int | None = None
    """Size of a uniform sample; None for all images."""
    words: str | None = None
    """tiny_metadata.bin or tiny_index.mat; None to search in the folder of the images."""
    indexes: str | None = None
    """CIFAR-100's index file."""


@dataclass(frozen=True)
class SourceRequest:
    """Options that a format may need to cut a source into parts."""

    side: int
    """Side of the decoded images, in pixels."""
    exclude: Exclusions
    tiny: TinyRequest
    seed: int


@dataclass(frozen=True)
class Source:
    """Parts of a source, and the classes that its own files exclude."""

    parts: Sequence[SourcePart]
    exclude: frozenset[str] = frozenset()
    read_too: tuple[Path, ...] = ()
    """Files that are no images, but belong to them."""
    passed_over: PassedOver = field(default_factory=PassedOver)


@dataclass(frozen=True)
class Format:
    """A file format of sources."""

    name: str
    includes: Callable[[Path], bool]
    """Whether a file has this format."""
    open: Callable[[Path, list[Path], SourceRequest], Source]
    """Cut the files below a folder into parts."""


FORMATS: list[Format] = []


def open_source(
    address: str, *, side: int = 32, exclude: Exclusions | None = None, tiny: TinyRequest | None = None, seed: int = 0
) -> Source:
    """Open a folder, a file, a pattern such as data/train-*.parquet, or glyphs:N, whose images decode to `side`.

    The seed draws the sample that `tiny` may request from the images that are not excluded.
    """
    if side < 1:
        raise UserError(f"side {side} must be at least 1.")
    request = SourceRequest(side, exclude or Exclusions(), tiny or TinyRequest(), seed)
    if address.startswith("glyphs:"):
        from gd_ray.sources.glyph_images import open_glyphs

        kind, source = "glyphs", open_glyphs(address, request)
    else:
        root, files, passed_over = _files(address)
        format, chosen = _format(address, files, passed_over)
        kind, source = format.name, format.open(root, chosen, request)
        used = {*chosen, *source.read_too}
        passed_over.add_files(printable(str(file)) for file in files if file not in used)
        source.passed_over.update(passed_over)
    if request.tiny != TinyRequest() and kind != ".bin files":
        raise UserError(f"source {address!r} is not a tiny_images.bin; remove --images, --words and --indexes.")
    if not source.parts:
        raise UserError(f"source {address!r} has {kind}, but they are empty.")
    return source


def find_splits(address: str) -> tuple[str, str] | None:
    """Return the training and test part of a folder with train/ and test/, or with files that are named so."""
    root = Path(address)
    for name in _TEST_NAMES:
        if (root / "train").is_dir() and (root / name).is_dir():
            return str(root / "train"), str(root / name)
        for train, test in (("train*.parquet", f"{name}*.parquet"), ("train_data_batch*", f"{name}_data*")):
            for folder in (root, root / "data"):
                if any(folder.glob(train)) and any(folder.glob(test)):
                    return str(folder / train), str(folder / test)
    return None


def require_apart(address: str, out: str) -> None:
    """Refuse to write into the folder that the images come from."""
    source = Path(address)
    folder = source if source.is_dir() else source.parent
    if "://" not in out and not address.startswith("glyphs:") and Path(out).resolve() == folder.resolve():
        raise UserError(f"out {out!r} is the folder of the source's own files; choose another folder.")


def require_side(source: str, side: int, requested: int) -> None:
    """Refuse another side than the one that the images of this source have."""
    if side != requested:
        sides = f"{side}x{side}, which cannot become {requested}x{requested}"
        raise UserError(f"{source} has images of {sides}; use --side {side}.")


def printable(name: str) -> str:
    """Escape the bytes of a file name that are not Unicode."""
    return name.encode("utf-8", "backslashreplace").decode()


def _files(address: str) -> tuple[Path, list[Path], PassedOver]:
    """Return the root of a source, its files, sorted, and what cannot be read."""
    path, passed_over = Path(address), PassedOver()
    if path.is_file():
        return path, [path], passed_over
    if path.is_dir():
        return path, _walk(path, passed_over), passed_over
    if "*" in path.name and (matching := sorted(path.parent.glob(path.name))):
        files = [file for file in matching if file.is_file()]
        if folders := [printable(str(folder)) for folder in matching if folder.is_dir()]:
            passed_over.add("folder that the pattern matches", folders)
        return path.parent, files, passed_over
    raise UserError(f"source {address!r} does not exist; give a folder or file of images, or glyphs:N.")


def _walk(folder: Path, passed_over: PassedOver) -> list[Path]:
    """List all files below a folder; a folder that several links lead to is listed once."""

    def on_error(error: OSError) -> None:
        passed_over.add(f"folder that cannot be read ({error.strerror})", [printable(str(error.filename))])

    files, seen = [], set()
    for place, folders, names in os.walk(folder, followlinks=True, onerror=on_error):
        status = os.stat(place)
        if (status.st_dev, status.st_ino) in seen:
            folders.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        folders.sort()
        files += [Path(place, name) for name in names]
    return sorted(files)


def _format(address: str, files: list[Path], passed_over: PassedOver) -> tuple[Format, list[Path]]:
    """Return the only format of a source and its files: with two of them, one would be ignored silently."""
    present = [(format, chosen) for format in FORMATS if (chosen := [file for file in files if format.includes(file)])]
    if len(present) > 1:
        examples = " and ".join(f"{format.name} ({printable(own[0].name)})" for format, own in present)
        raise UserError(f"source {address!r} holds {examples}; put one kind of them into a folder of its own.")
    if present:
        return present[0]
    for file in files:
        if file.suffix == ".parquet":
            raise UserError(f"source file {str(file)!r} has no image column (a struct with 'bytes').")
    kinds = "images, Parquet, tar files, downsampled-ImageNet batches, or a tiny_images.bin"
    unread = "".join(f" ({reason}: {paths[0]})" for reason, paths in passed_over.examples.items())
    raise UserError(f"source {address!r} holds no images{unread}; give a folder of {kinds}.")
