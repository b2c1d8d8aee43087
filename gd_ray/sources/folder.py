"""Image files in folders; the class of an image is the name of its folder."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gd_ray.sources.base import FORMATS, Format, ImageBatch, PartIndex, Source, SourceRequest, printable
from gd_ray.sources.decoding import IMAGE_ENDINGS, decode_batch
from gd_ray.wordnet.hierarchy import innermost_id

_PART_FILES = 512


@dataclass(frozen=True)
class FolderPart:
    """Image files below a root folder."""

    root: Path
    files: tuple[Path, ...]
    side: int

    @property
    def expected(self) -> int:
        return len(self.files)

    def index(self) -> PartIndex:
        return PartIndex([self._class(file) for file in self.files], [printable(file.name) for file in self.files])

    def load(self, indices: NDArray[np.int64]) -> ImageBatch:
        chosen = indices.tolist()
        contents = (_read(self.files[index]) for index in chosen)
        return decode_batch(chosen, contents, self.path, self.side)

    def path(self, index: int) -> str:
        return printable(str(self.files[index]))

    def _class(self, file: Path) -> str | None:
        if self.root == file or file.parent == self.root:
            return None
        return innermost_id(file.relative_to(self.root).parts[:-1]) or printable(file.parent.name)


def _open(root: Path, files: list[Path], request: SourceRequest) -> Source:
    starts = range(0, len(files), _PART_FILES)
    return Source([FolderPart(root, tuple(files[k : k + _PART_FILES]), request.side) for k in starts])


def _read(file: Path) -> bytes | OSError:
    try:
        return file.read_bytes()
    except OSError as error:
        return error


FORMATS.append(Format("image files", lambda file: file.suffix.lower() in IMAGE_ENDINGS, _open))
