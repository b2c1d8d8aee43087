"""A stage's checkpoint: the least that continues a trial to the same bytes.

Generators need no saving: each stage makes its own from (seed, stage, purpose).
"""

import io
import pickle
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.errors import UserError
from gd_ray.filesystems import answering
from gd_ray.inputs import Inputs
from gd_ray.results import SampledImages, StageResult
from gd_ray.spec import TrialSpec

FORMAT = 2


@dataclass(frozen=True)
class Checkpoint:
    """The state after a stage: the model M, the coreset, and the results so far."""

    trial_id: str
    first_model_id: str
    inputs: Inputs
    weights: dict[str, Tensor]
    coreset: NDArray[np.int64]
    """Places of the coreset's images in the training set."""
    results: tuple[StageResult, ...]

    @property
    def stage(self) -> int:
        return len(self.results)

    def save(self, path: str | Path) -> None:
        """Writes to a temporary name and renames, so that a checkpoint is whole or absent."""
        target = Path(path)
        temporary = target.with_name(f".{target.name}.{uuid4().hex}.tmp")
        packed = io.BytesIO()
        content = {
            "trial_id": self.trial_id,
            "first_model_id": self.first_model_id,
            "inputs": asdict(self.inputs),
            "weights": self.weights,
            "coreset": torch.from_numpy(self.coreset),
            "results": [_packed(asdict(result)) for result in self.results],
        }
        torch.save(content, packed)
        # torch compares no checksum when it loads: a flipped bit would be a wrong weight.
        whole = torch.frombuffer(packed.getbuffer(), dtype=torch.uint8)
        torch.save({"format": FORMAT, "crc": zlib.crc32(packed.getbuffer()), "content": whole}, temporary)
        temporary.replace(target)

    @staticmethod
    def load(path: str | Path) -> "Checkpoint":
        """Reads tensors and plain values only: a checkpoint runs no code."""
        with answering(f"checkpoint {path} cannot be opened"):
            whole = Path(path).read_bytes()
        try:
            outer = torch.load(io.BytesIO(whole), weights_only=True, map_location="cpu")
            version = outer["format"] if isinstance(outer, dict) else None
            if version == FORMAT:
                packed = outer["content"].numpy().tobytes()
                if zlib.crc32(packed) != outer["crc"]:
                    raise ValueError("checksum")
                content = torch.load(io.BytesIO(packed), weights_only=True)
                return Checkpoint(
                    trial_id=content["trial_id"],
                    first_model_id=content["first_model_id"],
                    inputs=Inputs(**content["inputs"]),
                    weights=content["weights"],
                    coreset=content["coreset"].numpy(),
                    results=tuple(_unpacked(result) for result in content["results"]),
                )
        except (
            RuntimeError,
            EOFError,
            LookupError,
            TypeError,
            ValueError,
            AttributeError,
            pickle.UnpicklingError,
        ) as error:
            reason = type(error).__name__
            raise UserError(f"checkpoint {path} cannot be read ({reason}); delete it to start anew.") from error
        raise UserError(f"checkpoint {path} has format {version}, this program reads {FORMAT}; delete it.")

    def check_continues(self, spec: TrialSpec, inputs: Inputs) -> None:
        """A checkpoint belongs to its own spec and images; the first stage's to every spec that shares its model."""
        shared = self.stage == 1 and self.first_model_id == spec.first_model_id
        if self.trial_id != spec.trial_id and not shared:
            raise UserError(
                f"resume: the checkpoint belongs to trial {self.trial_id}, but the spec is trial {spec.trial_id}; "
                f"use the spec that made it or start without it."
            )
        changed = self.inputs.changed(inputs)
        if self.stage == 1 and not spec.rules.calibrated_first_model:  # it has seen no stream
            changed = [name for name in changed if name != "stream"]
        if changed:
            raise UserError(
                f"resume: the checkpoint was made with other images of {changed[0]} "
                f"{getattr(spec, changed[0])!r} than are there now; give those, or start without it."
            )


def _packed(value: Any) -> Any:
    """Arrays as tensors: what a safe load can read."""
    if isinstance(value, dict):
        return {key: _packed(item) for key, item in value.items()}
    return torch.from_numpy(value) if isinstance(value, np.ndarray) else value


def _unpacked(value: dict[str, Any]) -> StageResult:
    samples = SampledImages(**{key: item.numpy() for key, item in value["samples"].items()})
    return StageResult(**{**value, "confusion": value["confusion"].numpy(), "samples": samples})
