"""CIFAR-100: a prepared folder, torchvision's folder, or Hugging Face-style Parquet."""

import io
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from gd_ray.data import DESCRIPTION
from gd_ray.data.dataset import ImageSet, LabelledData
from gd_ray.data.pixels import Statistics
from gd_ray.data.prepared import Description, load_prepared, new_dataset, require_no_dataset
from gd_ray.errors import UserError
from gd_ray.sources.parquet import label_names

NAME = "cifar100"
SIDE = 32
_COMMAND = "'gd-ray prepare cifar100 FOLDER'"
STATISTICS = Statistics((0.5070752, 0.4865489, 0.4409178), (0.2673343, 0.2564385, 0.2761505))


def prepare_cifar100(folder: str, source: str | None = None) -> Description:
    """Write the prepared form to a folder, from the files there or in `source`, or else downloaded."""
    require_no_dataset(folder)
    data = load_cifar100(source or folder, download=source is None)
    parts = {"train": data.train, "test": data.test}
    with new_dataset(folder) as writer:
        for split, part in parts.items():
            writer.create(split, len(part), part.side)[:] = part.images.numpy()
        labels = {split: part.labels.numpy() for split, part in parts.items()}
        return writer.close(labels, data.class_names, STATISTICS, None, source=source or "torchvision")


def load_cifar100(root: str | Path, *, download: bool = False) -> LabelledData:
    """Load a prepared folder, or decode one with `cifar-100-python` (which torchvision downloads) or Parquet files."""
    folder = Path(root)
    if folder.is_file():
        raise UserError(f"data folder {str(folder)!r} is a file; give the folder of the data set.")
    if (folder / DESCRIPTION).is_file():
        return load_prepared(folder, NAME, NAME)
    if sorted(folder.glob("train*.parquet")) and sorted(folder.glob("test*.parquet")):
        return _from_parquet(folder)
    return _from_torchvision(folder, download)


def _from_torchvision(folder: Path, download: bool) -> LabelledData:
    from torchvision.datasets import CIFAR100
    from torchvision.datasets.utils import check_integrity

    try:
        parts = [CIFAR100(folder, train=train, download=download) for train in (True, False)]
    except PermissionError as error:
        raise UserError(f"{error.filename!r} cannot be opened ({error.strerror}); change its permissions.") from error
    except (RuntimeError, OSError) as error:  # OSError: no connection
        if (folder / CIFAR100.base_folder).is_dir():
            sums = [*CIFAR100.train_list, *CIFAR100.test_list, (CIFAR100.meta["filename"], CIFAR100.meta["md5"])]
            base = folder / CIFAR100.base_folder
            damaged = ", ".join(name for name, md5 in sums if not check_integrity(base / name, md5))
            problem = f"has a {CIFAR100.base_folder} with a wrong checksum: {damaged}; delete it and fetch it again"
            raise UserError(f"data folder {str(folder)!r} {problem} with {_COMMAND}.") from error
        if download:
            raise UserError(f"CIFAR-100 cannot be downloaded to {str(folder)!r} ({error}); try again later.") from error
        known = f"{CIFAR100.base_folder} nor train*.parquet and test*.parquet nor {DESCRIPTION}"
        fix = f"give a folder that does, or fetch it with {_COMMAND}."
        raise UserError(f"data folder {str(folder)!r} holds neither {known}; {fix}") from error
    train, test = (ImageSet.from_arrays(part.data, np.asarray(part.targets)) for part in parts)
    return LabelledData(NAME, train, test, STATISTICS, tuple(parts[0].classes))


def _from_parquet(folder: Path) -> LabelledData:
    try:
        files = {split: sorted(folder.glob(f"{split}*.parquet")) for split in ("train", "test")}
        tables = {split: pa.concat_tables(map(pq.read_table, own)) for split, own in files.items()}
        train, test = (_decode_table(table, folder, split) for split, table in tables.items())
    except (OSError, pa.ArrowInvalid) as error:  # Pillow's errors are OSErrors too
        raise UserError(f"Parquet in {str(folder)!r} cannot be read ({error}); download it again.") from error
    names = label_names(tables["train"].schema, "fine_label") or tuple(str(label) for label in range(100))
    return LabelledData(NAME, train, test, STATISTICS, names)


def _decode_table(table: pa.Table, folder: Path, split: str) -> ImageSet:
    where = f"Parquet in {str(folder)!r}"
    for column in ("img", "fine_label"):
        if column not in table.column_names:
            raise UserError(f"{where} has no column {column!r}; it needs img and fine_label.")
    if not len(table):
        raise UserError(f"{where} has no {split} images; download it again.")
    encoded = [value.get("bytes") if isinstance(value, dict) else value for value in table["img"].to_pylist()]
    for row, content in enumerate(encoded):
        if not isinstance(content, bytes):
            need = "the column img must hold encoded images, as Hugging Face's files do."
            raise UserError(f"{where} has no image in {split} row {row}; {need}")
    with ThreadPoolExecutor() as threads:  # decoding releases Python's lock
        images = list(threads.map(lambda content: np.asarray(Image.open(io.BytesIO(content)).convert("RGB")), encoded))
    for row, image in enumerate(images):
        if image.shape != (SIDE, SIDE, 3):
            size = f"{image.shape[1]}x{image.shape[0]}"
            raise UserError(f"{where} has an image of {size} in {split} row {row}, not {SIDE}x{SIDE}.")
    return ImageSet.from_arrays(np.stack(images), table["fine_label"].to_numpy())
