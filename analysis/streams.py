"""The streams that results name, to show single images of them."""

from collections.abc import Callable, Mapping

from analysis.results import Results
from gd_ray.errors import UserError, unused_name
from gd_ray.storage import join
from gd_ray.wild.stream import WildStream

FindStream = Callable[[str, int], WildStream | None]
"""Takes the name of a stream and the number of images that it must have at least."""


def stream_finder(results: Results, locations: Mapping[str, str]) -> FindStream:
    """Return a function that opens streams by name: from `locations`, the storage of the runs, or streams/NAME."""
    trials = results.trials
    names = sorted(results.specs["stream"].unique())
    for name, folder in locations.items():
        if names and name not in names:
            raise unused_name("--stream", name, folder, names)
    digests = {name: set(trials.loc[trials["stream"] == name, "stream_digest"].dropna()) for name in names}

    def is_same(stream: WildStream, name: str) -> bool:
        return not digests.get(name) or stream.digest in digests[name]

    def find(name: str, least: int) -> WildStream | None:
        if name not in locations:
            folders = [join(storage, f"streams/{name.replace(':', '-')}") for storage in results.storage]
            opened = (_open(folder) for folder in [*folders, f"streams/{name}"])
            return next((s for s in opened if s is not None and len(s) >= least and is_same(s, name)), None)
        option, stream = f"--stream {name}={locations[name]}", _open(locations[name])
        if stream is None:
            raise UserError(f"{option} is not a prepared stream; check the folder.")
        if len(stream) < least or not is_same(stream, name):
            wrong = f"has {len(stream)} images, but trials took image {least - 1}"
            wrong = wrong if len(stream) < least else "holds other images than the trials learned from"
            raise UserError(f"{option} {wrong}; give the stream that they were run with.")
        return stream

    return find


def _open(address: str) -> WildStream | None:
    try:
        return WildStream.open(address)
    except UserError:
        return None
