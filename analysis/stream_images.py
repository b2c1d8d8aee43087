"""Single images of a prepared stream, read by position, without the machinery that scores it."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analysis.results import Results
from gd_ray.errors import UserError
from gd_ray.filesystems import filesystem_of


@dataclass(frozen=True)
class StreamImages:
    """A stream folder and its manifest."""

    address: str
    manifest: Mapping[str, Any]

    def read(self, positions: NDArray[np.int64]) -> NDArray[np.uint8]:
        """The images at these positions, of shape (n, side, side, 3); only their row groups are read."""
        side = int(self.manifest["side"])
        groups = [
            (shard["file"], group, rows)
            for shard in self.manifest["shards"]
            for group, rows in enumerate(shard["group_rows"])
        ]
        starts = np.cumsum([0, *(rows for _, _, rows in groups)])
        owners = np.searchsorted(starts, positions, side="right") - 1
        images = np.empty((len(positions), side, side, 3), np.uint8)
        filesystem, root = filesystem_of(self.address)
        for owner in np.unique(owners):
            file, group, _ = groups[owner]
            with filesystem.open_input_file(f"{root}/{file}") as source:
                column = pq.ParquetFile(source).read_row_group(group, columns=["image"]).column(0)
            here = np.flatnonzero(owners == owner)
            rows = column.take(pa.array(positions[here] - starts[owner])).to_pylist()
            images[here] = [np.frombuffer(row, np.uint8).reshape(side, side, 3) for row in rows]
        return images


def stream_finder(results: Results, places: Mapping[str, str]) -> Callable[[str], StreamImages | None]:
    """Opens streams by name: where `places` says, or in the storage of the run, or in streams/NAME; None if nowhere."""

    def find(name: str) -> StreamImages | None:
        if name in places:
            found = _opened(places[name])
            if found is None:
                raise UserError(f"--stream {name}={places[name]} holds no prepared stream; check the folder.")
            return found
        candidates = [f"{storage}/streams/{name.replace(':', '-')}" for storage in results.storage]
        return next((found for place in [*candidates, f"streams/{name}"] if (found := _opened(place))), None)

    return find


def _opened(address: str) -> StreamImages | None:
    filesystem, root = filesystem_of(address)
    try:
        with filesystem.open_input_stream(f"{root}/manifest.json") as source:
            return StreamImages(address, json.loads(source.read()))
    except (OSError, ValueError):
        return None
