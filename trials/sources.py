"""Where the data sets and streams that specs name really lie."""

import os
import shutil
from contextlib import suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from gd_ray.errors import UserError, unknown_name

if TYPE_CHECKING:
    from gd_ray.data.image_set import LabelledData
    from gd_ray.wild.stream import WildStream

DATASETS = ("cifar100", "imagenet32", "glyphs")


@dataclass(frozen=True)
class Places:
    """Folders by name; what is not named lies in `data/NAME` and `streams/NAME` below `base`."""

    data: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    storage: str = "storage"
    base: str = field(default_factory=os.getcwd)
    """The user's working directory; a trial has another one."""

    def load_data(self, name: str, train_per_class: int | None, test_per_class: int | None) -> "LabelledData":
        """A data set; of glyphs only the images asked for are drawn."""
        if name not in DATASETS:
            raise unknown_name("dataset", name, DATASETS)
        place = self._place(self.data.get(name, f"data/{name}"))
        drawn = (train_per_class, test_per_class) if name == "glyphs" else (None, None)
        try:
            return _loaded(name, place, *drawn)
        except UserError as error:
            raise UserError(f"{error} If it lies elsewhere, name its folder with --data {name}=FOLDER.") from error

    def stream_address(self, name: str) -> str:
        """Where a stream lies; glyphs:N is made on demand, in the storage or another folder."""
        made = f"{self.storage}/streams/{name.replace(':', '-')}"
        return self._place(self.streams.get(name, made if name.startswith("glyphs:") else f"streams/{name}"))

    def _place(self, address: str) -> str:
        return address if "://" in address else os.path.join(self.base, address)

    def open_stream(self, name: str) -> "WildStream":
        from gd_ray.wild.stream import WildStream

        address = self.stream_address(name)
        if name.startswith("glyphs:") and "://" not in address and not Path(address, "manifest.json").exists():
            _make(name, address)
        try:
            return WildStream.open(address)
        except UserError as error:
            raise UserError(f"{error} Name its folder with --stream {name}=FOLDER.") from error


@lru_cache(maxsize=1)
def _loaded(name: str, place: str, train_per_class: int | None, test_per_class: int | None) -> "LabelledData":
    """Kept for the next trial of this process: decoding all of CIFAR-100 takes twenty seconds. Nobody changes it."""
    if name == "glyphs":
        from gd_ray.data.glyphs import TEST_PER_CLASS, TRAIN_PER_CLASS, load_glyphs

        return load_glyphs(train_per_class or TRAIN_PER_CLASS, test_per_class or TEST_PER_CLASS)
    if name == "cifar100":
        from gd_ray.data.cifar100 import load_cifar100

        return load_cifar100(place)
    from gd_ray.data.imagenet32 import load_imagenet32

    return load_imagenet32(place)


def _make(source: str, address: str) -> None:
    """Prepares a stream under a name of its own and moves it: two runs may want it at the same time."""
    from gd_ray.wild.prepare import prepare

    temporary = f"{address}.{uuid4().hex}"
    try:
        prepare(source, temporary)
        with suppress(OSError):  # the other one was faster
            os.replace(temporary, address)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
