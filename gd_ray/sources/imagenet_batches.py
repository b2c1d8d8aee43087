"""Downsampled ImageNet: pickled or npz batches of rows in channel order, with labels from 1 to 1000."""

import math
import pickle
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gd_ray.errors import UserError
from gd_ray.sources.base import FORMATS, Format, ImageBatch, PartIndex, Source, require_side
from gd_ray.wordnet.ilsvrc2012 import BATCH_LABELS

BATCH_NAMES = ("train_data_batch", "val_data", "data_batch")


@dataclass(frozen=True)
class BatchPart:
    """One batch file. Its images are not resized: `side` must be theirs."""

    file: Path
    side: int

    @property
    def expected(self) -> int:
        return self.file.stat().st_size // (self.side * self.side * 3)

    def index(self) -> PartIndex:
        _, classes, broken = self._content()
        return PartIndex(classes, broken=broken)

    def load(self, indices: NDArray[np.int64]) -> ImageBatch:
        rows = self._content()[0][indices]
        images = rows.reshape(-1, 3, self.side, self.side).transpose(0, 2, 3, 1)
        return ImageBatch(np.ascontiguousarray(images), indices, [])

    def path(self, index: int) -> str:
        return f"{self.file}, row {index}"

    def _content(self) -> tuple[NDArray[np.uint8], list[str | None], list[str]]:
        try:
            with self.file.open("rb") as source:
                npz = self.file.suffix == ".npz"
                content = np.load(source) if npz else ArrayUnpickler(source, encoding="latin1").load()
                rows, numbers = np.asarray(content["data"]), np.asarray(content["labels"])
        except Exception as error:  # a damaged pickle may fail with anything
            nothing = np.empty((0, self.side * self.side * 3), np.uint8)
            return nothing, [], [f"{self.file}: {type(error).__name__}: {error}"]
        file = f"source file {str(self.file)!r}"
        if rows.dtype != np.uint8:
            raise UserError(f"{file} has pixels of type {rows.dtype}; they must be uint8.")
        side = math.isqrt(rows.shape[1] // 3) if rows.ndim == 2 else 0
        if not side or rows.shape[1] != side * side * 3:
            raise UserError(f"{file} has rows of shape {rows.shape}; they must hold square RGB images, as 3072 bytes.")
        require_side(file, side, self.side)
        if numbers.shape != (len(rows),) or not np.issubdtype(numbers.dtype, np.integer):
            labels_are = f"labels of shape {numbers.shape} and type {numbers.dtype}"
            raise UserError(f"{file} has {len(rows)} rows, but {labels_are}; it needs a whole number for each.")
        if len(wrong := np.flatnonzero((numbers < 1) | (numbers > len(BATCH_LABELS)))):
            label = f"label {numbers[wrong[0]]} in row {wrong[0]}"
            raise UserError(f"{file} has {label}, outside 1 to {len(BATCH_LABELS)}, ILSVRC's classes; correct it.")
        return rows, [BATCH_LABELS[label - 1] for label in numbers], []


class ArrayUnpickler(pickle.Unpickler):
    """Unpickle arrays and plain values, and run no other code."""

    _ALLOWED = frozenset(
        (module, name)
        for module in ("numpy", "numpy.core.multiarray", "numpy._core.multiarray", "_codecs")
        for name in ("ndarray", "dtype", "_reconstruct", "scalar", "encode")
    )

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in self._ALLOWED:
            raise pickle.UnpicklingError(f"it contains {module}.{name}, which is not an array")
        return super().find_class(module, name)


FORMATS.append(
    Format(
        "batches of downsampled ImageNet",
        lambda file: file.name.startswith(BATCH_NAMES),
        lambda _, files, request: Source([BatchPart(file, request.side) for file in files]),
    )
)
