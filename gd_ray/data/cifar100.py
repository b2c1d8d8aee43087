"""CIFAR-100 in the forms people hold it: torchvision's folder, or Hugging Face-style Parquet."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from gd_ray.data.image_set import ImageSet, LabelledData
from gd_ray.data.pixels import SIDE, Statistics
from gd_ray.errors import UserError
from gd_ray.wild.sources import label_names

STATISTICS = Statistics((0.5070752, 0.4865489, 0.4409178), (0.2673343, 0.2564385, 0.2761505))


def load_cifar100(root: str | Path, *, download: bool = False) -> LabelledData:
    """Reads a folder with `cifar-100-python` (downloaded and checked by torchvision) or with Parquet files."""
    folder = Path(root)
    if folder.is_file():
        raise UserError(f"data folder {str(folder)!r} is a file; name the folder of the data set.")
    if sorted(folder.glob("train*.parquet")) and sorted(folder.glob("test*.parquet")):
        return _from_parquet(folder)
    return _from_torchvision(folder, download)


def _from_torchvision(folder: Path, download: bool) -> LabelledData:
    from torchvision.datasets import CIFAR100

    try:
        parts = [CIFAR100(folder, train=train, download=download) for train in (True, False)]
    except PermissionError as error:
        raise UserError(f"{error.filename!r} cannot be opened ({error.strerror}); change its permissions.") from error
    except (RuntimeError, OSError) as error:  # OSError: no connection
        if (folder / CIFAR100.base_folder).is_dir():
            raise UserError(
                f"data folder {str(folder)!r} has a {CIFAR100.base_folder} with a wrong checksum: {_damaged(folder)}; "
                f"delete it and fetch it again with 'gd-ray prepare cifar100 FOLDER'."
            ) from error
        if download:
            raise UserError(f"CIFAR-100 cannot be downloaded to {str(folder)!r} ({error}); try again later.") from error
        raise UserError(
            f"data folder {str(folder)!r} holds neither {CIFAR100.base_folder} nor train*.parquet and test*.parquet; "
            f"point it at one of these, or fetch it with 'gd-ray prepare cifar100 FOLDER'."
        ) from error
    train, test = (ImageSet.from_arrays(part.data, np.asarray(part.targets)) for part in parts)
    return LabelledData("cifar100", train, test, STATISTICS, tuple(parts[0].classes))


def _damaged(folder: Path) -> str:
    """Those of torchvision's files that are missing or not as they should be."""
    from torchvision.datasets import CIFAR100
    from torchvision.datasets.utils import check_integrity

    sums = [*CIFAR100.train_list, *CIFAR100.test_list, (CIFAR100.meta["filename"], CIFAR100.meta["md5"])]
    base = folder / CIFAR100.base_folder
    return ", ".join(name for name, md5 in sums if not check_integrity(base / name, md5))


def _from_parquet(folder: Path) -> LabelledData:
    try:
        tables = {
            split: pa.concat_tables([pq.read_table(file) for file in sorted(folder.glob(f"{split}*.parquet"))])
            for split in ("train", "test")
        }
        train, test = (_image_set(table, folder, split) for split, table in tables.items())
    except (OSError, pa.ArrowInvalid) as error:  # Pillow's errors are OSErrors too
        raise UserError(f"Parquet in {str(folder)!r} cannot be read ({error}); download it again.") from error
    names = label_names(tables["train"].schema, "fine_label") or tuple(str(label) for label in range(100))
    return LabelledData("cifar100", train, test, STATISTICS, names)


def _image_set(table: pa.Table, folder: Path, split: str) -> ImageSet:
    for column in ("img", "fine_label"):
        if column not in table.column_names:
            raise UserError(f"Parquet in {str(folder)!r} has no column {column!r}; it needs img and fine_label.")
    if not len(table):
        raise UserError(f"Parquet in {str(folder)!r} has no {split} images; download it again.")
    encoded = [value.get("bytes") if isinstance(value, dict) else value for value in table["img"].to_pylist()]
    if None in encoded or not isinstance(encoded[0], bytes):
        raise UserError(
            f"Parquet in {str(folder)!r} has no image in {split} row {encoded.index(None) if None in encoded else 0}; "
            f"the column img must hold encoded images, as Hugging Face's files do."
        )
    with ThreadPoolExecutor() as threads:  # decoding leaves Python's lock
        images = list(threads.map(_decoded, encoded))
    for row, image in enumerate(images):
        if image.shape != (SIDE, SIDE, 3):
            size = f"{image.shape[1]}x{image.shape[0]}"
            raise UserError(
                f"Parquet in {str(folder)!r} has an image of {size} in {split} row {row}, not {SIDE}x{SIDE}."
            )
    return ImageSet.from_arrays(np.stack(images), table["fine_label"].to_numpy())


def _decoded(content: bytes) -> Any:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"))
