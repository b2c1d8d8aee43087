"""Locations of the data sets and streams that specs name."""

import json
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import uuid4

from gd_ray.data import DATASETS, DESCRIPTION
from gd_ray.errors import UserError, unknown_name, unused_name
from gd_ray.storage import delete_folder, exists, is_remote, join, publish_folder, sibling, storage_errors
from gd_ray.temporary import remove_abandoned, use_folder

if TYPE_CHECKING:
    from gd_ray.data.dataset import LabelledData
    from gd_ray.spec import TrialSpec
    from gd_ray.wild.stream import WildStream

_DRAWN_AT_ONCE = 20_000
"""Images of glyphs:N that are drawn in this process: two seconds."""


@dataclass(frozen=True)
class Sizes:
    """Numbers of images that a spec leaves to its data; the defaults are CIFAR-100's and an endless stream."""

    train_per_class: int = 500
    test_per_class: int = 100
    stream: int | None = None


@dataclass(frozen=True)
class DataLocations:
    """Folders by name; others are `data/NAME` and `streams/NAME` below `base`."""

    data: dict[str, str] = field(default_factory=dict)
    streams: dict[str, str] = field(default_factory=dict)
    storage: str = "storage"
    base: str = field(default_factory=os.getcwd)
    """The user's working directory; that of a trial is another one."""

    def check_dataset(self, name: str) -> None:
        """Refuse a name that is neither registered, nor given by --data, nor a prepared folder data/NAME."""
        if name not in DATASETS and name not in self.data and not self._is_prepared(name):
            prepared = [path.parent.name for path in Path(self.base, "data").glob(f"*/{DESCRIPTION}")]
            raise unknown_name("data set", name, [*DATASETS, *self.data, *sorted(prepared)])

    def load_data(self, name: str, train_per_class: int | None, test_per_class: int | None) -> "LabelledData":
        """Load a data set by a registered loader or from its prepared folder; repeated loads share one copy."""
        self.check_dataset(name)
        with _hint("--data", name):
            return _load(name, self._folder(name), train_per_class, test_per_class)

    def _folder(self, name: str) -> str:
        return self._absolute(self.data.get(name, f"data/{name}"))

    def _is_prepared(self, name: str) -> bool:
        return Path(self._folder(name), DESCRIPTION).is_file()

    def stream_address(self, name: str) -> str:
        """Return the address of a stream; glyphs:N is made on demand, in the storage unless it has a folder."""
        made = join(self.storage, f"streams/{name.replace(':', '-')}")
        return self._absolute(self.streams.get(name, made if name.startswith("glyphs:") else f"streams/{name}"))

    def stream_images(self, name: str) -> int | None:
        """Return the number of images of a stream, or None where it is not there."""
        if name not in self.streams and (number := name.removeprefix("glyphs:")).isdigit():
            return int(number)
        with suppress(UserError):
            return _stream_images(self.stream_address(name))
        return None

    def sizes(self, spec: "TrialSpec") -> Sizes:
        """Return the numbers of images that the spec leaves to its data, as far as they are known before loading."""
        stream = self.stream_images(spec.stream) if spec.method.external else None
        if spec.dataset in DATASETS or not self._is_prepared(spec.dataset):
            return Sizes(stream=stream)
        return Sizes(*_images_per_class(self._folder(spec.dataset)), stream)

    def check_names(self, specs: Collection["TrialSpec"]) -> None:
        """Refuse data sets that do not exist, and folders given for a name that no trial has."""
        datasets, streams = ({getattr(spec, name): None for spec in specs} for name in ("dataset", "stream"))
        for name in datasets:
            self.check_dataset(name)
        for option, folders, names in (("--data", self.data, datasets), ("--stream", self.streams, streams)):
            for name in folders.keys() - names.keys():
                raise unused_name(option, name, folders[name], names)

    def _absolute(self, address: str) -> str:
        return address if is_remote(address) else os.path.join(self.base, address)

    def open_stream(self, name: str, *, make: bool = True) -> "WildStream":
        """Open a stream; glyphs:N is made first where it is absent, unless that is not wanted."""
        from gd_ray.wild.manifest import NAME as MANIFEST
        from gd_ray.wild.stream import WildStream

        address = self.stream_address(name)
        if make and name.startswith("glyphs:") and not exists(join(address, MANIFEST)):
            _make_glyphs(name, address)
        with _hint("--stream", name):
            return WildStream.open(address)


@contextmanager
def _hint(option: str, name: str) -> Iterator[None]:
    """Add the option that names another folder to an error; storage that did not answer stays a reason to retry."""
    try:
        yield
    except UserError as error:
        raise type(error)(f"{error} If it is elsewhere, give its folder with {option} {name}=FOLDER.") from error


@lru_cache(maxsize=1)
def _load(name: str, folder: str, train_per_class: int | None, test_per_class: int | None) -> "LabelledData":
    """Load a data set and keep it for the next trial of this process. Nothing modifies it."""
    if name in DATASETS:
        return DATASETS[name](folder, train_per_class, test_per_class)
    from gd_ray.data.prepared import load_prepared

    return load_prepared(folder, name)


@lru_cache
def _stream_images(address: str) -> int:
    from gd_ray.wild.manifest import read_manifest

    return read_manifest(address).images


@lru_cache
def _images_per_class(folder: str) -> tuple[int, int]:
    """Return the training and test images per class of a prepared data set, on average."""
    content = json.loads(Path(folder, DESCRIPTION).read_text(encoding="utf-8"))
    classes = max(1, len(content["class_names"]))
    train, test = (max(1, round(content["images"][split] / classes)) for split in ("train", "test"))
    return train, test


def _make_glyphs(source: str, address: str) -> None:
    """Prepare a stream in a folder of its own and move it: two runs may want it at the same time."""
    from gd_ray.ray_utils import map_in_process, map_with_ray
    from gd_ray.wild.manifest import NAME as MANIFEST
    from gd_ray.wild.shuffle import prepare_stream

    number = source.partition(":")[2]
    # A Ray worker takes longer to start than to draw so few.
    mapper = map_in_process if number.isdecimal() and int(number) <= _DRAWN_AT_ONCE else map_with_ray
    temporary = sibling(address, uuid4().hex)
    unfinished = join(temporary, "stream")
    with storage_errors(f"stream {source!r} cannot be written to {address!r}"), ExitStack() as stack:
        stack.callback(delete_folder, temporary)
        if not is_remote(address):
            remove_abandoned(Path(address).parent.glob(f"{Path(address).name}-*"), shutil.rmtree)
            stack.enter_context(use_folder(Path(temporary)))
        prepare_stream(source, unfinished, mapper=mapper)
        publish_folder(unfinished, address, MANIFEST)
