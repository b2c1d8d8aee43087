"""Prepared data sets: images and labels in flat files that every trial maps into memory, described by dataset.json."""

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gd_ray.data import DESCRIPTION
from gd_ray.data.dataset import ImageSet, LabelledData
from gd_ray.data.pixels import Statistics, pixel_statistics
from gd_ray.data.tasks import class_sets
from gd_ray.errors import UserError
from gd_ray.sources.base import PassedOver
from gd_ray.storage import check_writable, disk_full_errors, write_atomic

FORMAT = 1
SPLITS = ("train", "test")
_FILES = ("train.npy", "test.npy", "train-labels.npy", "test-labels.npy", "classes-of-seed-*.txt")
_BLOCK = 4096


@dataclass(frozen=True)
class Description:
    """Contents of dataset.json."""

    side: int
    images: dict[str, int]
    """Number of images of each split."""
    class_names: tuple[str, ...]
    statistics: Statistics
    set_size: int | None
    """Number of classes of one trial, if each seed learns a set of its own."""
    checksums: dict[str, int]
    """CRC-32 of the array of each file."""
    digest: str
    source: str
    seed: int = 0
    unreadable: Sequence[str] = ()
    passed_over: PassedOver = field(default_factory=PassedOver)


class DatasetWriter:
    """Files of a data set under temporary names, until `close` writes its description."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.arrays: dict[str, NDArray[np.uint8]] = {}

    def create(self, split: str, number: int, side: int) -> NDArray[np.uint8]:
        """Create the array of a split's images, mapped from its file."""
        self.arrays[split] = np.lib.format.open_memmap(
            self._temporary(split), mode="w+", dtype=np.uint8, shape=(number, side, side, 3)
        )
        return self.arrays[split]

    def keep(self, split: str, kept: NDArray[np.bool_]) -> None:
        """Remove all other images of a split."""
        if kept.all():
            return
        former, rows = self.arrays[split], np.flatnonzero(kept)
        self._temporary(split).unlink()  # `former` stays mapped
        array = self.create(split, len(rows), former.shape[1])
        for start in range(0, len(rows), _BLOCK):
            array[start : start + _BLOCK] = former[rows[start : start + _BLOCK]]

    def close(
        self,
        labels: Mapping[str, NDArray[np.int64]],
        class_names: tuple[str, ...],
        statistics: Statistics | None,
        set_size: int | None,
        **origin: Any,
    ) -> Description:
        """Move the files to their names and describe them, with further fields of the description in `origin`.

        The statistics are those of the training images, unless given.
        """
        train, test = (ImageSet.from_arrays(self.arrays[split], labels[split]) for split in SPLITS)
        statistics = statistics or pixel_statistics(train.images)
        data = LabelledData("the data set", train, test, statistics, class_names, set_size)
        checksums = {}
        for split in SPLITS:
            self._temporary(split).rename(self.folder / f"{split}.npy")
            np.save(self.folder / f"{split}-labels.npy", labels[split])
            checksums[f"{split}.npy"] = zlib.crc32(self.arrays[split].data)
            checksums[f"{split}-labels.npy"] = zlib.crc32(labels[split].data)
        for seed_of_set, classes in enumerate(class_sets(len(class_names), set_size) if set_size else ()):
            names = sorted(class_names[label] for label in classes)
            (self.folder / f"classes-of-seed-{seed_of_set}.txt").write_text("\n".join(names) + "\n")
        sizes = {"train": len(train), "test": len(test)}
        description = Description(data.side, sizes, class_names, statistics, set_size, checksums, data.digest, **origin)
        content = json.dumps({"format": FORMAT, **asdict(description)}, indent=1)
        write_atomic(str(self.folder / DESCRIPTION), content.encode())
        return description

    def _temporary(self, split: str) -> Path:
        return self.folder / f".{split}.npy.tmp"


def require_no_dataset(out: str) -> None:
    """Fail if `out` is not a local folder or holds files of a data set."""
    if "://" in out:
        raise UserError(f"out {out!r} must be a local folder: trials map its files; prepare it there and copy it.")
    folder = Path(out)
    if (folder / DESCRIPTION).exists():
        raise UserError(f"out {out!r} holds a prepared data set already; choose another folder or delete it.")
    if present := _present(folder):
        raise UserError(f"out {out!r} holds a {present[0].name} of something else; choose another folder or delete it.")


@contextmanager
def new_dataset(out: str) -> Iterator[DatasetWriter]:
    """Open a folder for writing a data set; a failure leaves none of its files."""
    require_no_dataset(out)
    check_writable("out", out)
    folder = Path(out)
    with disk_full_errors("out", out):
        try:
            yield DatasetWriter(folder)
        except BaseException:  # none of these files existed before
            for path in [*folder.glob(".*.npy.tmp"), *_present(folder)]:
                path.unlink(missing_ok=True)
            raise


def _present(folder: Path) -> list[Path]:
    return [path for name in _FILES for path in sorted(folder.glob(name))]


def load_prepared(folder: str | Path, name: str, command: str = "dataset") -> LabelledData:
    """Map a prepared data set into memory after comparing it with its checksums; `command` is what prepares it."""
    root = Path(folder)
    description = _read_description(root, command)
    parts = []
    for split in SPLITS:
        number, side = description.images[split], description.side
        images, labels = (
            _map_array(root / file, shape, description.checksums[file])
            for file, shape in ((f"{split}.npy", (number, side, side, 3)), (f"{split}-labels.npy", (number,)))
        )
        parts.append(ImageSet.from_arrays(images, labels))
    train, test = parts
    return LabelledData(name, train, test, description.statistics, description.class_names, description.set_size)


def _read_description(folder: Path, command: str) -> Description:
    file = folder / DESCRIPTION
    try:
        content = json.loads(file.read_text())
        if (version := content.pop("format")) != FORMAT:
            raise ValueError(f"format {version!r}, expected {FORMAT}")
        content["class_names"] = tuple(content["class_names"])
        content["statistics"] = Statistics.from_json(content["statistics"])
        content["passed_over"] = PassedOver(**content.get("passed_over", {}))
        description = Description(**content)
        _ = [(description.images[split], description.checksums[f"{split}.npy"]) for split in SPLITS]
        return description
    except OSError as error:
        fix = f"make it with 'gd-ray prepare {command} SOURCE FOLDER'."
        raise UserError(f"data folder {str(folder)!r} has no {DESCRIPTION}; {fix}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise UserError(f"{str(file)!r} cannot be read ({error}); prepare it again.") from error
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError(f"{str(file)!r} has a wrong field ({error}); prepare it again.") from error


def _map_array(file: Path, shape: tuple[int, ...], checksum: int) -> NDArray[Any]:
    try:
        array = np.load(file, mmap_mode="c")  # writable in this process alone, as torch requires
    except (OSError, ValueError) as error:
        raise UserError(f"{str(file)!r} cannot be read ({error}); copy it again or prepare it again.") from error
    if array.shape != shape or zlib.crc32(array.data) != checksum:
        raise UserError(f"{str(file)!r} does not match its checksum; copy it again or prepare it again.")
    return np.asarray(array)
