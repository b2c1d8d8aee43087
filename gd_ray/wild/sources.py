"""Where a wild stream's images come from: each kind of source as a list of tasks that any process can load."""

import io
import json
import pickle
import tarfile
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from PIL import Image

from gd_ray.data.image_set import SIDE
from gd_ray.errors import UserError

IMAGE_ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff"}
TINY_RECORD = SIDE * SIDE * 3
_CHUNK = 4096


@dataclass(frozen=True)
class Chunk:
    """The images of one task, 32x32; `classes` has a name for each, or None where the source has none."""

    images: NDArray[np.uint8]
    classes: list[str | None]
    unreadable: list[str]
    """What could not be read, and why."""


@dataclass(frozen=True)
class Task:
    """A part of a source. `load` is a function of this module, so that a task can be sent to another process."""

    load: Callable[..., Chunk]
    arguments: tuple[Any, ...]
    expected: int
    """About how many images it has."""

    def run(self) -> Chunk:
        return self.load(*self.arguments)


def tasks_of(source: str) -> list[Task]:
    """The tasks of a source: its kind is seen from what lies there."""
    if source.startswith("glyphs:"):
        return _glyph_tasks(source)
    path = Path(source)
    if not path.exists():
        raise UserError(f"source {source!r} does not exist; give a folder or file of images, or glyphs:N.")
    files = [path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file())
    for tasks in (_parquet_tasks, _tar_tasks, _batch_tasks, _tiny_tasks, _image_tasks):
        found = tasks(path, files)
        if found:
            return found
    raise UserError(
        f"source {source!r} holds no images; it may be a folder of images, Parquet, tar files, downsampled-ImageNet "
        f"batches, or a tiny_images.bin."
    )


def to_rgb32(image: Image.Image) -> NDArray[np.uint8]:
    """Any picture as 32x32 RGB: transparency over white, greyscale repeated, box filter."""
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    if image.size != (SIDE, SIDE):
        image = image.resize((SIDE, SIDE), Image.Resampling.BOX)
    return np.asarray(image)


def _decoded(records: Iterable[tuple[str, bytes, str | None]]) -> Chunk:
    """Decodes (name, bytes, class); what is corrupt is listed, never fatal."""
    images, classes, unreadable = [], [], []
    for name, content, label in records:
        try:
            with Image.open(io.BytesIO(content)) as picture:
                images.append(to_rgb32(picture))
            classes.append(label)
        except Exception as error:  # a decoder may fail with anything
            unreadable.append(f"{name}: {type(error).__name__}: {error}")
    array = np.stack(images) if images else np.empty((0, SIDE, SIDE, 3), np.uint8)
    return Chunk(array, classes, unreadable)


# Glyphs, made on the fly.


def _glyph_tasks(source: str) -> list[Task]:
    text = source.removeprefix("glyphs:")
    if not text.isdigit() or int(text) == 0:
        raise UserError(f"source {source!r} needs a number of images after the colon, such as glyphs:100000.")
    starts = range(0, int(text), _CHUNK)
    return [Task(_load_glyphs, (start, min(_CHUNK, int(text) - start)), _CHUNK) for start in starts]


def _load_glyphs(start: int, number: int) -> Chunk:
    from gd_ray.data.glyphs import wild_glyphs

    return Chunk(wild_glyphs(number, start), [None] * number, [])


# A folder of images: the class is the folder they lie in, below the source.


def _image_tasks(root: Path, files: list[Path]) -> list[Task]:
    pictures = [file for file in files if file.suffix.lower() in IMAGE_ENDINGS]
    step = 512
    return [Task(_load_images, (root, pictures[k : k + step]), step) for k in range(0, len(pictures), step)]


def _load_images(root: Path, files: list[Path]) -> Chunk:
    unreadable = []

    def records() -> Iterable[tuple[str, bytes, str | None]]:
        for file in files:
            try:
                content = file.read_bytes()
            except OSError as error:
                unreadable.append(f"{file}: {type(error).__name__}: {error}")
                continue
            yield str(file), content, file.parent.name if file.parent != root and root.is_dir() else None

    chunk = _decoded(records())
    return Chunk(chunk.images, chunk.classes, unreadable + chunk.unreadable)


# Hugging Face-style Parquet: a struct column with `bytes`, and perhaps a label.


def _parquet_tasks(_root: Path, files: list[Path]) -> list[Task]:
    tasks = []
    for file in files:
        if file.suffix != ".parquet":
            continue
        try:
            metadata = pq.read_metadata(file)
        except (OSError, pa.ArrowInvalid) as error:
            raise UserError(f"source file {str(file)!r} is no whole Parquet file ({error}); copy it again.") from error
        for group in range(metadata.num_row_groups):
            rows = metadata.row_group(group).num_rows
            tasks += [
                Task(_load_parquet, (file, group, k, min(_CHUNK, rows - k)), _CHUNK) for k in range(0, rows, _CHUNK)
            ]
    return tasks


def _load_parquet(file: Path, group: int, start: int, rows: int) -> Chunk:
    schema = pq.read_schema(file)
    column = next((f.name for f in schema if pa.types.is_struct(f.type) and f.type.get_field_index("bytes") >= 0), None)
    if column is None:
        raise UserError(f"source file {str(file)!r} has no image column (a struct with 'bytes').")
    label = next((name for name in ("label", "fine_label", "class") if name in schema.names), None)
    table = pq.ParquetFile(file).read_row_group(group, columns=[column, *([label] if label else [])])
    table = table.slice(start, rows)
    names = _label_names(schema, label)
    labels = table[label].to_pylist() if label else [None] * len(table)
    pictures = table[column].combine_chunks().field("bytes")
    return _decoded(
        (f"{file.name}, row group {group}, row {start + k}", content.as_py() or b"", names(value))
        for k, (content, value) in enumerate(zip(pictures, labels, strict=True))
    )


def _label_names(schema: pa.Schema, label: str | None) -> Callable[[Any], str | None]:
    try:
        known = json.loads(schema.metadata[b"huggingface"])["info"]["features"][label]["names"]
    except (KeyError, TypeError, ValueError):
        return lambda value: None if value is None else str(value)
    return lambda value: known[value] if value is not None and 0 <= value < len(known) else None


# WebDataset tars; also tars named after a WordNet id, whose images are all of that class.


def _tar_tasks(_root: Path, files: list[Path]) -> list[Task]:
    return [Task(_load_tar, (file,), max(1, file.stat().st_size // 4096)) for file in files if file.suffix == ".tar"]


def _load_tar(file: Path) -> Chunk:
    stem = file.stem
    class_of_file = stem if stem[:1] == "n" and stem[1:].isdigit() else None
    pictures: list[tuple[str, bytes]] = []
    labels: dict[str, str] = {}
    broken = []
    try:
        with tarfile.open(file) as archive:
            for member in archive:
                name = Path(member.name)
                if not member.isfile():
                    continue
                content = archive.extractfile(member)
                assert content is not None
                key = str(name.parent / name.name.split(".")[0])
                if name.suffix.lower() in IMAGE_ENDINGS:
                    pictures.append((member.name, content.read()))
                elif name.suffix == ".cls":
                    labels[key] = content.read().decode().strip()
                elif name.suffix == ".json":
                    value = json.loads(content.read())
                    if isinstance(value, dict) and "label" in value:
                        labels[key] = str(value["label"])
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        broken.append(f"{file}: the rest of the archive is lost: {type(error).__name__}: {error}")

    def label(member: str) -> str | None:
        name = Path(member)
        return labels.get(str(name.parent / name.name.split(".")[0]), class_of_file)

    chunk = _decoded((f"{file.name}/{name}", content, label(name)) for name, content in pictures)
    return Chunk(chunk.images, chunk.classes, broken + chunk.unreadable)


# Downsampled ImageNet: pickled or npz batches of rows in channel order, labels from 1.


def _batch_tasks(_root: Path, files: list[Path]) -> list[Task]:
    names = ("train_data_batch", "val_data", "data_batch")
    return [Task(_load_batch, (file,), file.stat().st_size // 3072) for file in files if file.name.startswith(names)]


def _load_batch(file: Path) -> Chunk:
    try:
        if file.suffix == ".npz":
            with np.load(file, allow_pickle=False) as arrays:
                data, labels = arrays["data"], arrays["labels"]
        else:
            with file.open("rb") as source:
                content = ArrayUnpickler(source, encoding="latin1").load()
            data, labels = content["data"], content["labels"]
    except (OSError, KeyError, ValueError, EOFError, pickle.UnpicklingError) as error:
        return Chunk(np.empty((0, SIDE, SIDE, 3), np.uint8), [], [f"{file}: {type(error).__name__}: {error}"])
    rows = np.asarray(data, np.uint8)
    if rows.ndim != 2 or rows.shape[1] != SIDE * SIDE * 3:
        raise UserError(f"source file {str(file)!r} has rows of shape {rows.shape}; take the 32x32 version, 3072 wide.")
    images = rows.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
    return Chunk(np.ascontiguousarray(images), [str(label) for label in labels], [])


class ArrayUnpickler(pickle.Unpickler):
    """Reads pickled arrays and plain values, and runs no other code."""

    _ALLOWED = frozenset(
        (module, name)
        for module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs")
        for name in ("ndarray", "dtype", "_reconstruct", "scalar", "encode")
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it holds a {module}.{name}, which is no array")
        return super().find_class(module, name)


# 80 Million Tiny Images: one file of 3072-byte records, each 32x32x3 in column-major order.


def _tiny_tasks(_root: Path, files: list[Path]) -> list[Task]:
    tasks = []
    for file in files:
        if file.suffix != ".bin":
            continue
        size = file.stat().st_size
        if size % TINY_RECORD:
            raise UserError(
                f"source file {str(file)!r} has {size} bytes, not whole records of {TINY_RECORD}; copy it again."
            )
        records = size // TINY_RECORD
        tasks += [Task(_load_tiny, (file, k, min(_CHUNK, records - k)), _CHUNK) for k in range(0, records, _CHUNK)]
    return tasks


def _load_tiny(file: Path, start: int, number: int) -> Chunk:
    records = np.memmap(file, np.uint8, mode="r").reshape(-1, 3, SIDE, SIDE)[start : start + number]
    return Chunk(np.ascontiguousarray(records.transpose(0, 3, 2, 1)), [None] * number, [])
