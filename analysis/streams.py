"""The streams that results name, for showing single images of them."""

from collections.abc import Callable, Mapping

from analysis.results import Results
from gd_ray.errors import UserError
from gd_ray.wild.stream import WildStream

FindStream = Callable[[str], WildStream | None]


def stream_finder(results: Results, places: Mapping[str, str]) -> FindStream:
    """Opens streams by name: where `places` says, or in the storage of the run, or in streams/NAME; None if nowhere."""

    def find(name: str) -> WildStream | None:
        if name in places:
            found = _opened(places[name])
            if found is None:
                raise UserError(f"--stream {name}={places[name]} holds no prepared stream; check the folder.")
            return found
        candidates = [f"{storage}/streams/{name.replace(':', '-')}" for storage in results.storage]
        return next((found for place in [*candidates, f"streams/{name}"] if (found := _opened(place))), None)

    return find


def _opened(address: str) -> WildStream | None:
    try:
        return WildStream.open(address)
    except UserError:
        return None
