"""The streams that results name, for showing single images of them."""

from collections.abc import Callable, Mapping

from analysis.results import Results
from gd_ray.errors import UserError
from gd_ray.wild.stream import WildStream

FindStream = Callable[[str, int], WildStream | None]
"""Told the name of a stream and how many images it must have at least."""


def stream_finder(results: Results, places: Mapping[str, str]) -> FindStream:
    """Opens streams by name: where `places` says, or in the storage of the run, or in streams/NAME; None if nowhere."""
    named = sorted(results.trials["stream"].unique())
    for name in places:
        if named and name not in named:
            raise UserError(
                f"--stream {name}={places[name]} is a stream of no trial here; they have {', '.join(named)}."
            )

    trials = results.trials
    digests = {name: set(trials.loc[trials["stream"] == name, "stream_digest"].dropna()) for name in named}

    def is_theirs(stream: WildStream, name: str, least: int) -> bool:
        """Trials from before digests can only be told that an image is missing."""
        return len(stream) >= least and (not digests.get(name) or stream.digest in digests[name])

    def find(name: str, least: int) -> WildStream | None:
        if name in places:
            found = _opened(places[name])
            if found is None:
                raise UserError(f"--stream {name}={places[name]} holds no prepared stream; check the folder.")
            if len(found) < least:
                raise UserError(
                    f"--stream {name}={places[name]} has {len(found)} images, but trials took image {least - 1}; name "
                    f"the stream that they were run with."
                )
            if not is_theirs(found, name, least):
                raise UserError(
                    f"--stream {name}={places[name]} holds other images than the trials learned from; name the stream "
                    f"that they were run with."
                )
            return found
        candidates = [f"{storage}/streams/{name.replace(':', '-')}" for storage in results.storage]
        opened = (_opened(place) for place in [*candidates, f"streams/{name}"])
        return next((found for found in opened if found is not None and is_theirs(found, name, least)), None)

    return find


def _opened(address: str) -> WildStream | None:
    try:
        return WildStream.open(address)
    except UserError:
        return None
