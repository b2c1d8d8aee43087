"""Checks of a trial's inputs: everything that would stop it later on, before it starts."""

import os
import warnings

import numpy as np
import torch

from gd_ray.data.tasks import ClassIncrementalData
from gd_ray.errors import UserError
from gd_ray.hardware import check_gpu
from gd_ray.learners import LEARNERS
from gd_ray.spec import TrialSpec
from gd_ray.wild.sampling import RANKINGS
from gd_ray.wild.stream import Stream


def check_inputs(spec: TrialSpec, data: ClassIncrementalData, stream: Stream | None) -> None:
    """Refuse data or a stream with too few images or of another size; warn where stages will see images again."""
    for part, labels in (("training", data.train_labels), ("test", data.test_labels)):
        counts = np.bincount(labels[labels >= 0], minlength=spec.num_classes)
        fewest, least = int(data.order[counts.argmin()]), int(counts.min())
        if least == 0:
            raise UserError(f"dataset {spec.dataset!r} has no {part} image of class {fewest}; add some.")
        asked = spec.train_per_class if part == "training" else spec.test_per_class
        if asked is not None and least < asked:
            raise UserError(
                f"{part.removesuffix('ing')}_per_class {asked} is more than the {least} {part} images of class "
                f"{fewest}; lower it."
            )
    LEARNERS.named(spec.method.learner)(spec)  # refuses what it cannot learn from
    if spec.method.external:
        _check_ranking(spec)
        _check_stream(spec, data, stream)


def _check_ranking(spec: TrialSpec) -> None:
    """Refuse a coreset without an image of each previous class, if images are ranked by their class means."""
    method, num_prev = spec.method, sum(spec.task_sizes[:-1])
    used = {method.previous_sampling, method.ood_sampling} & set(RANKINGS)
    if any(RANKINGS[name].needs_means for name in used) and not method.replay_all and spec.coreset_size < num_prev:
        raise UserError(
            f"coreset_size {spec.coreset_size} leaves method {method.name!r} no image of some of {num_prev} previous "
            f"classes, by whose means it ranks the stream; raise it to {num_prev} or more."
        )


def _check_stream(spec: TrialSpec, data: ClassIncrementalData, stream: Stream | None) -> None:
    if stream is None:
        raise UserError(
            f"method {spec.method.name!r} learns with external data, but no stream was given; pass one, or use a "
            f"method without external data."
        )
    if stream.side != data.side:
        raise UserError(
            f"stream {spec.stream!r} has images of {stream.side}x{stream.side}, but dataset {spec.dataset!r} of "
            f"{data.side}x{data.side}; prepare one of them again with --side."
        )
    tasks = range(1, spec.num_tasks + 1)
    task_counts = np.array([len(data.indices_of_tasks(task, task, spec.task_sizes)) for task in tasks])
    earlier = np.cumsum(task_counts) - task_counts
    exemplars = earlier if spec.method.replay_all else np.minimum(earlier, spec.coreset_size)
    labelled = int((task_counts + exemplars).max())
    most = LEARNERS.named(spec.method.learner)(spec).external_size(labelled)
    available = min(len(stream), spec.window)
    if available < most:
        name = f"window {spec.window}" if spec.window < len(stream) else f"stream {spec.stream!r}"
        raise UserError(
            f"{name} offers {available} images, but a stage samples up to {most} of them"
            f"{', as many as it has labelled ones; make it longer' if most == labelled else '; lower window'}."
        )
    if spec.num_tasks * spec.window > len(stream):
        warnings.warn(
            f"stream {spec.stream!r} has {len(stream)} images, fewer than {spec.num_tasks} windows of {spec.window}: "
            f"stages of a trial will see some images again.",
            stacklevel=2,
        )


def check_device(spec: TrialSpec, device: torch.device | str) -> None:
    """Refuse a device that torch or this machine does not have, or that lacks the spec's precision."""
    try:
        asked = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"unknown device {str(device)!r}: use 'cpu' or 'cuda'.") from error
    if asked.type == "cpu":
        if spec.precision == "tf32":
            raise UserError("precision tf32 needs a GPU from Ampere on, not a CPU: use precision=float32.")
        return
    if asked.type != "cuda":
        raise UserError(f"unsupported device {str(device)!r}: use 'cpu' or 'cuda'.")
    check_gpu(device)
    if (override := os.environ.get("NVIDIA_TF32_OVERRIDE")) is not None:
        raise UserError(
            f"NVIDIA_TF32_OVERRIDE={override} overrides the precision of a trial: unset it and use precision."
        )
    too_old = spec.precision == "tf32" and torch.cuda.get_device_capability(device)[0] < 8
    if too_old or (spec.precision == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False)):
        name = torch.cuda.get_device_name(device)
        raise UserError(f"{name} does not support {spec.precision}: use precision=float32.")
