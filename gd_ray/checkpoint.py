"""A stage's checkpoint: the least that continues a trial to the same bytes.

Generators need no saving: each stage makes its own from (seed, stage, purpose).
"""

import io
import json
import pickle
import zlib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.errors import UserError
from gd_ray.fingerprint import Fingerprints
from gd_ray.spec import TrialSpec
from gd_ray.storage import read_file, storage_errors, without_credentials, write_atomic
from gd_ray.trial_result import StageResult
from gd_ray.wild.sampling import Sample

FORMAT = 3
_DAMAGED = (RuntimeError, EOFError, LookupError, TypeError, ValueError, AttributeError, pickle.UnpicklingError)
"""What a damaged checkpoint may raise when it is read."""


@dataclass(frozen=True)
class Checkpoint:
    """The state after a stage: the model M, the coreset, and the results so far."""

    trial_id: str
    first_model_id: str
    fingerprints: Fingerprints
    weights: dict[str, Tensor]
    coreset: NDArray[np.int64]
    """Indices of the coreset's images in the training set, class by class and best first."""
    results: tuple[StageResult, ...]

    @property
    def stage(self) -> int:
        return len(self.results)

    def save(self, address: str | Path) -> None:
        """Write a header line with format and checksum, and the content as torch saves it."""
        content = io.BytesIO()
        values = {
            "trial_id": self.trial_id,
            "first_model_id": self.first_model_id,
            "fingerprints": asdict(self.fingerprints),
            "weights": self.weights,
            "coreset": torch.from_numpy(self.coreset),
            "results": [_converted(asdict(result), np.ndarray, torch.from_numpy) for result in self.results],
        }
        torch.save(values, content)
        # torch compares no checksum when it loads: a flipped bit would be a wrong weight.
        header = json.dumps({"format": FORMAT, "crc": zlib.crc32(content.getbuffer())})
        with storage_errors(f"checkpoint {address} cannot be written"):
            write_atomic(str(address), header.encode() + b"\n" + content.getvalue())

    @staticmethod
    def load(address: str | Path) -> "Checkpoint":
        """Read tensors and plain values only: a checkpoint runs no code."""
        path = without_credentials(str(address))
        with storage_errors(f"checkpoint {path} cannot be opened"):
            header, _, content = read_file(str(address)).partition(b"\n")
        try:
            described = json.loads(header)
            version = described["format"]
            if version == FORMAT:
                if zlib.crc32(content) != described["crc"]:
                    raise ValueError("checksum")
                values = torch.load(io.BytesIO(content), weights_only=True, map_location="cpu")
                return Checkpoint(
                    trial_id=values["trial_id"],
                    first_model_id=values["first_model_id"],
                    fingerprints=Fingerprints(**values["fingerprints"]),
                    weights=values["weights"],
                    coreset=values["coreset"].numpy(),
                    results=tuple(_stage_result(result) for result in values["results"]),
                )
        except _DAMAGED as error:
            reason = type(error).__name__
            raise UserError(f"checkpoint {path} cannot be read ({reason}); delete it to start again.") from error
        raise UserError(f"checkpoint {path} has format {version}, this version reads {FORMAT}; delete it.")

    def check_continues(self, spec: TrialSpec, fingerprints: Fingerprints) -> None:
        """Refuse another spec or other images; the first stage continues every spec that shares its model."""
        shared = self.stage == 1 and self.first_model_id == spec.first_model_id
        if self.trial_id != spec.trial_id and not shared:
            raise UserError(
                f"resume: the checkpoint belongs to trial {self.trial_id}, but the spec is trial {spec.trial_id}; "
                f"use the spec that made it or start without it."
            )
        changed = self.fingerprints.changed(fingerprints)
        if self.stage == 1 and not spec.method.calibrated_first_model:  # it has seen no stream
            changed = [name for name in changed if name != "stream"]
        if changed:
            raise UserError(
                f"resume: the checkpoint was made with other images of {changed[0]} "
                f"{getattr(spec, changed[0])!r} than are there now; give those, or start without it."
            )


def _converted(value: Any, kind: type, convert: Callable[[Any], Any]) -> Any:
    """Convert the values of one kind in a dictionary, and in those that it contains."""
    if isinstance(value, dict):
        return {key: _converted(item, kind, convert) for key, item in value.items()}
    return convert(value) if isinstance(value, kind) else value


def _stage_result(value: dict[str, Any]) -> StageResult:
    values = _converted(value, Tensor, Tensor.numpy)
    return StageResult(**{**values, "samples": Sample(**values["samples"])})
