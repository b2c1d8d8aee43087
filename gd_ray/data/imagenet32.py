"""ImageNet at 32x32 under the paper's protocol: 500 training and 100 test images of each class, drawn once for all.

`prepare_imagenet32` draws them from a source of any form and keeps them in two flat files, sorted by class, that
every trial maps into memory; a trial's seed then takes its own 100 of the classes (`gd_ray.data.tasks`). The draw is
the authors': classes in the order of their names, and of each a permutation of its images in the order of theirs.
"""

import json
import zlib
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gd_ray.data.ilsvrc2012 import WORDNET_IDS
from gd_ray.data.image_set import ImageSet, LabelledData
from gd_ray.data.pixels import SIDE, Statistics, pixel_statistics
from gd_ray.data.tasks import class_sets
from gd_ray.errors import UserError
from gd_ray.filesystems import check_writable
from gd_ray.progress import OnProgress, counted
from gd_ray.spec import check_seed
from gd_ray.wild.exclusions import Exclusions
from gd_ray.wild.on_ray import Mapper, map_with_ray
from gd_ray.wild.parts import Chunk, Listing, Part
from gd_ray.wild.shards import plain_errors
from gd_ray.wild.sources import open_source

NAME = "imagenet32"
MANIFEST = "imagenet32.json"
_WRITTEN = ("train.npy", "test.npy", "classes-of-seed-*.txt")
"""What lies beside the manifest."""
FORMAT = 1
TRAIN_PER_CLASS, TEST_PER_CLASS, SET_SIZE = 500, 100, 100
STATISTICS = Statistics((0.4814872, 0.4577173, 0.4082078), (0.2606994, 0.2536456, 0.2685610))
"""The published ones, of ILSVRC's 1000 classes."""
_SPLITS = ("train", "test")


@dataclass(frozen=True)
class Numbers:
    """How much is drawn; the paper's numbers unless a source has less."""

    train_per_class: int = TRAIN_PER_CLASS
    test_per_class: int = TEST_PER_CLASS
    set_size: int = SET_SIZE
    """Classes of one trial: as many sets as there are whole ones, one for each seed."""

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if value < 1:
                raise UserError(f"{name} {value} must be at least 1.")

    @property
    def per_class(self) -> int:
        return self.train_per_class + self.test_per_class


@dataclass(frozen=True)
class Manifest:
    """What the files beside it hold and where it came from."""

    numbers: Numbers
    class_names: tuple[str, ...]
    statistics: Statistics
    """Of the training images."""
    checksums: dict[str, int]
    """CRC-32 of the pixels of each file."""
    source: str
    seed: int
    """Of the draw."""
    unreadable: tuple[str, ...]
    """Images that were drawn but could not be read; others of their class stand in."""


def prepare_imagenet32(
    source: str,
    out: str,
    *,
    numbers: Numbers | None = None,
    exclude: Exclusions | None = None,
    seed: int = 0,
    mapper: Mapper = map_with_ray,
    on_progress: OnProgress = lambda *_: None,
) -> Manifest:
    """Draws the images of every class of a source and writes them to the folder `out`."""
    if "://" in out:
        raise UserError(f"out {out!r} must be a folder: trials map its files; prepare it there and copy it.")
    wanted, folder = numbers or Numbers(), Path(out)
    if (folder / MANIFEST).exists():
        raise UserError(f"out {out!r} holds a prepared {NAME} already; choose another folder or delete it.")
    if taken := _taken(folder):
        raise UserError(f"out {out!r} holds a {taken[0].name} of something else; choose another folder or delete it.")
    check_seed(seed)
    with plain_errors(out):
        return _prepared(source, folder, wanted, exclude or Exclusions(), seed, mapper, on_progress)


def _taken(folder: Path) -> list[Path]:
    """Files with names that lie beside a manifest."""
    return [path for name in _WRITTEN for path in sorted(folder.glob(name))]


def _prepared(
    source: str,
    folder: Path,
    wanted: Numbers,
    exclude: Exclusions,
    seed: int,
    mapper: Mapper,
    on_progress: OnProgress,
) -> Manifest:
    parts = open_source(source).parts
    # Here and not in other processes: too few images are told before anything starts.
    listings = list(counted("list", (part.listing() for part in parts), len(parts), on_progress))
    candidates = _candidates(source, listings, exclude)
    _check_numbers(source, candidates, wanted)
    permutation = np.random.RandomState(seed).permutation
    drawn = [np.array(candidates[name])[permutation(len(candidates[name]))] for name in sorted(candidates)]
    check_writable("out", str(folder))
    scratch = {split: folder / f".{split}.npy.tmp" for split in _SPLITS}
    try:
        arrays = {
            split: np.lib.format.open_memmap(
                scratch[split], mode="w+", dtype=np.uint8, shape=(len(drawn) * number, SIDE, SIDE, 3)
            )
            for split, number in zip(_SPLITS, (wanted.train_per_class, wanted.test_per_class), strict=True)
        }
        unreadable = _fill(arrays, wanted, sorted(candidates), drawn, parts, mapper, on_progress)
        manifest = Manifest(
            wanted,
            tuple(sorted(candidates)),
            pixel_statistics(arrays["train"]),
            {split: zlib.crc32(array.data) for split, array in arrays.items()},
            source,
            seed,
            tuple(unreadable),
        )
        for split, array in arrays.items():
            array.flush()
            scratch[split].rename(folder / f"{split}.npy")
        _write_sets(folder, manifest)
        temporary = folder / f".{MANIFEST}.tmp"
        temporary.write_text(json.dumps({"format": FORMAT, "side": SIDE, **asdict(manifest)}, indent=1))
        temporary.rename(folder / MANIFEST)
    except BaseException:  # all of these names were free
        for path in [*scratch.values(), folder / f".{MANIFEST}.tmp", *_taken(folder)]:
            path.unlink(missing_ok=True)
        raise
    return manifest


def load_imagenet32(root: str | Path) -> LabelledData:
    """A prepared folder, its images mapped into memory and compared with their checksums."""
    folder = Path(root)
    manifest = _read_manifest(folder)
    numbers, parts = manifest.numbers, []
    for split, number in zip(_SPLITS, (numbers.train_per_class, numbers.test_per_class), strict=True):
        images = _mapped(folder / f"{split}.npy", len(manifest.class_names) * number, manifest.checksums[split])
        parts.append(ImageSet.from_arrays(images, np.repeat(np.arange(len(manifest.class_names)), number)))
    statistics = STATISTICS if manifest.class_names == WORDNET_IDS else manifest.statistics
    return LabelledData(NAME, parts[0], parts[1], statistics, manifest.class_names, numbers.set_size)


def _load(item: tuple[int, Part, NDArray[np.int64]]) -> tuple[int, Chunk]:
    number, part, places = item
    return number, part.load(places)


def _candidates(source: str, listings: list[Listing], exclude: Exclusions) -> dict[str, list[tuple[int, int]]]:
    """Where the images of each class are, as (part, place), in the order of their names."""
    found: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    for number, listing in enumerate(listings):
        if listing.broken:
            raise UserError(f"source {source!r} is not whole: {listing.broken[0]}; copy it again.")
        for place, (name, label) in enumerate(zip(listing.names, listing.classes, strict=True)):
            if label is None:
                what = name or f"image {place} of part {number}"
                raise UserError(f"source {source!r} has no class for {what}; {NAME} needs one for every image.")
            if label not in exclude:
                found[label].append((name, number, place))
    return {label: [place for _, *place in sorted(images)] for label, images in found.items()}  # type: ignore[misc]


def _check_numbers(source: str, candidates: dict[str, list[tuple[int, int]]], wanted: Numbers) -> None:
    if len(candidates) < wanted.set_size:
        raise UserError(
            f"source {source!r} has {len(candidates)} classes, but a trial learns {wanted.set_size}; lower --set-size."
        )
    short = sorted(name for name, places in candidates.items() if len(places) < wanted.per_class)
    if short:
        others = f" ({len(short) - 1} more classes have too few)" if len(short) > 1 else ""
        raise UserError(
            f"class {short[0]!r} of source {source!r} has {len(candidates[short[0]])} images, but "
            f"{wanted.train_per_class} + {wanted.test_per_class} are needed{others}; lower --train-per-class or "
            f"--test-per-class, or leave it out with --exclude."
        )


def _fill(
    arrays: Mapping[str, NDArray[np.uint8]],
    wanted: Numbers,
    names: list[str],
    drawn: list[NDArray[np.int64]],
    parts: list[Part],
    mapper: Mapper,
    on_progress: OnProgress,
) -> list[str]:
    """Loads what is drawn of each class into its rows; returns what could not be read and was replaced."""
    taken = [wanted.per_class] * len(drawn)
    missing = [(label, rank, rank) for label in range(len(drawn)) for rank in range(wanted.per_class)]
    unreadable: list[str] = []
    while missing:
        # (part, place) of the source to (class, rank in it), a part at a time: each is read once.
        rows: dict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for label, rank, candidate in missing:
            part, place = drawn[label][candidate].tolist()
            rows[part][place] = label, rank
        items = [(part, parts[part], np.array(sorted(places))) for part, places in sorted(rows.items())]
        for part, chunk in counted("read", mapper(_load, items), len(items), on_progress):
            for place, image in zip(chunk.places.tolist(), chunk.images, strict=True):
                label, rank = rows[part].pop(place)
                _put(arrays, wanted, label, rank, image)
            unreadable += chunk.unreadable
        missing = []
        for label, rank in sorted(row for places in rows.values() for row in places.values()):
            if taken[label] == len(drawn[label]):
                raise UserError(
                    f"class {names[label]!r} has too few readable images: of {len(drawn[label])}, "
                    f"{wanted.per_class} are needed; the first that cannot be read is {unreadable[0]}."
                )
            missing.append((label, rank, taken[label]))
            taken[label] += 1
    return sorted(unreadable)


def _put(
    arrays: Mapping[str, NDArray[np.uint8]], wanted: Numbers, label: int, rank: int, image: NDArray[np.uint8]
) -> None:
    test = rank - wanted.train_per_class
    if test < 0:
        arrays["train"][label * wanted.train_per_class + rank] = image
    else:
        arrays["test"][label * wanted.test_per_class + test] = image


def _write_sets(folder: Path, manifest: Manifest) -> None:
    """The classes of each seed as a text file, for --exclude."""
    for seed, classes in enumerate(class_sets(len(manifest.class_names), manifest.numbers.set_size)):
        names = sorted(manifest.class_names[label] for label in classes)
        (folder / f"classes-of-seed-{seed}.txt").write_text("\n".join(names) + "\n")


def _read_manifest(folder: Path) -> Manifest:
    try:
        content = json.loads((folder / MANIFEST).read_text())
    except OSError as error:
        raise UserError(
            f"data folder {str(folder)!r} has no {MANIFEST}; make it with 'gd-ray prepare imagenet32 SOURCE FOLDER'."
        ) from error
    except ValueError as error:
        raise UserError(f"{str(folder / MANIFEST)!r} cannot be read ({error}); prepare it anew.") from error
    try:
        if (content.pop("format"), content.pop("side")) != (FORMAT, SIDE):
            raise ValueError("another format or image size")
        numbers, pixels = Numbers(**content.pop("numbers")), content.pop("statistics")
        statistics = Statistics(tuple(pixels["mean"]), tuple(pixels["std"]))
        names, unreadable = tuple(content.pop("class_names")), tuple(content.pop("unreadable"))
        return Manifest(numbers, names, statistics, unreadable=unreadable, **content)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{str(folder / MANIFEST)!r} has a wrong field ({error}); prepare it anew.") from error


def _mapped(file: Path, number: int, checksum: int) -> NDArray[np.uint8]:
    try:
        images = np.load(file, mmap_mode="c")  # writable in this process alone, as torch wants it
    except (OSError, ValueError) as error:
        raise UserError(f"{str(file)!r} cannot be read ({error}); copy it again or prepare it anew.") from error
    if images.shape != (number, SIDE, SIDE, 3) or zlib.crc32(images.data) != checksum:
        raise UserError(f"{str(file)!r} does not match its checksum; copy it again or prepare it anew.")
    return np.asarray(images)
