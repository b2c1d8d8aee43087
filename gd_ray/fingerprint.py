"""Fingerprints of a trial's data: a spec refers to data by name, a fingerprint detects that the data changed."""

from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gd_ray.spec import TrialSpec

if TYPE_CHECKING:
    from gd_ray.data.dataset import LabelledData
    from gd_ray.wild.stream import Stream


@dataclass(frozen=True)
class Fingerprints:
    """Digests of the data set and of the stream; None where a trial uses none."""

    data: str | None = None
    stream: str | None = None

    @staticmethod
    def of(spec: TrialSpec, data: "LabelledData", stream: "Stream | None") -> "Fingerprints":
        return Fingerprints(data.digest, stream.digest if stream is not None and spec.method.external else None)

    def changed(self, now: "Fingerprints") -> list[str]:
        """Return which of 'dataset' and 'stream' differ now."""
        pairs = {"dataset": (self.data, now.data), "stream": (self.stream, now.stream)}
        return [name for name, pair in pairs.items() if None not in pair and pair[0] != pair[1]]


def digest_of(*parts: "str | NDArray[np.generic]") -> str:
    """Hash words and arrays, in this order; all of CIFAR-100 takes a tenth of a second."""
    digest = sha256()
    for part in parts:
        digest.update(f"{part}\n".encode() if isinstance(part, str) else np.ascontiguousarray(part).data)
    return digest.hexdigest()[:16]
