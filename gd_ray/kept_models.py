"""Models that outlive their trial: RESULTS/models/ID-STAGE.safetensors, weights with all that predicting needs.

The header of a file describes the model as JSON, so that neither the data set nor the trial's checkpoint, which is
deleted when it finishes, is needed to use it. Only `keep_model` imports torch.
"""

import json
import re
from contextlib import suppress
from importlib.metadata import version
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from gd_ray.errors import UserError
from gd_ray.plugins import loaded_plugins, plugin_of
from gd_ray.spec import TrialSpec
from gd_ray.storage import filesystem_of, join, list_files, read_bytes, storage_errors, write_atomic

if TYPE_CHECKING:
    from gd_ray.checkpoint import Checkpoint
    from gd_ray.data.dataset import LabelledData

_NAME = re.compile(r"([0-9a-f]+)-(\d+)\.safetensors")


def keep_model(
    results: str, spec: TrialSpec, data: "LabelledData", checkpoint: "Checkpoint", revision: str | None
) -> None:
    from safetensors.torch import save

    weights = {name: value.contiguous() for name, value in sorted(checkpoint.weights.items())}
    description = _description(spec, data, checkpoint, revision)
    address = join(results, f"models/{spec.trial_id}-{checkpoint.stage}.safetensors")
    with storage_errors(f"the model of trial {spec.trial_id} cannot be written to {results!r}"):
        # One entry only: safetensors writes several in an order that changes from process to process.
        write_atomic(address, save(weights, {"gd_ray": json.dumps(description)}))


def _description(
    spec: TrialSpec, data: "LabelledData", checkpoint: "Checkpoint", revision: str | None
) -> dict[str, Any]:
    import torch

    from gd_ray.data.tasks import class_order
    from gd_ray.learners import LEARNERS
    from gd_ray.networks.classifier import Classifier
    from gd_ray.networks.nearest_mean import NearestMeanClassifier

    sizes = spec.task_sizes[: checkpoint.stage]
    tasks = [task for task, size in enumerate(sizes, start=1) for _ in range(size)]
    kind = type(LEARNERS.named(spec.method.learner)(spec).new_model(1, torch.Generator()))
    own_code = plugin_of("network", spec.network) or kind not in (Classifier, NearestMeanClassifier)
    return {
        "trial_id": spec.trial_id,
        "stage": checkpoint.stage,
        "task_sizes": spec.task_sizes,
        "network": spec.network,
        "predicts_by": "nearest mean" if kind is NearestMeanClassifier else "head",
        "side": data.side,
        "mean": data.statistics.mean,
        "std": data.statistics.std,
        "classes": [
            {"name": data.class_names[number], "number": int(number), "task": task}
            for number, task in zip(class_order(data, spec.seed), tasks, strict=False)
        ],
        "spec": spec.flat(),
        "digests": {"data": checkpoint.fingerprints.data, "stream": checkpoint.fingerprints.stream},
        "revision": revision,
        "versions": {name: version(name) for name in ("gd_ray", "torch")},
        "plugin": next((p.source for p in loaded_plugins() if p.digest == spec.plugin), None) if own_code else None,
    }


def kept_stages(results: str) -> dict[str, list[int]]:
    """Return the stages whose models are kept, in order, by trial id."""
    kept: dict[str, list[int]] = {}
    for info in list_files(results, "models"):
        if name := _NAME.fullmatch(PurePosixPath(info.path).name):
            kept.setdefault(name[1], []).append(int(name[2]))
    return {trial_id: sorted(stages) for trial_id, stages in kept.items()}


def read_model(results: str, trial_id: str, stage: int) -> tuple[bytes, dict[str, Any]]:
    """Read a kept model: the file as it is, and its description."""
    filesystem, path = filesystem_of(join(results, f"models/{trial_id}-{stage}.safetensors"))
    with storage_errors(f"{path} cannot be read"):
        content = read_bytes(filesystem, path)
    with suppress(ValueError, LookupError, TypeError):
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])  # the format of safetensors
        description: dict[str, Any] = json.loads(header["__metadata__"]["gd_ray"])
        return content, description
    raise UserError(f"{path} is not a kept model; restore it from a copy.")
