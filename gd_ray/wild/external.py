"""The external set of a stage: planned, scored, sampled by Algorithm 2, and only then read."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gd_ray.data.pixels import Statistics
from gd_ray.network import WideResNet
from gd_ray.progress import Report
from gd_ray.seeding import Purpose, numpy_generator
from gd_ray.spec import TrialSpec
from gd_ray.wild.sampling import Sample, finish, plan_sampling
from gd_ray.wild.scoring import Scorer
from gd_ray.wild.stream import Stream, stage_window


@dataclass(frozen=True)
class ExternalSet:
    """What was sampled, where it lies in the stream, and its pixels."""

    sample: Sample
    positions: NDArray[np.int64]
    images: NDArray[np.uint8]
    scored: int
    """Stream images that were scored to find it."""


def sample_external_set(
    spec: TrialSpec,
    stage: int,
    size: int,
    previous: WideResNet | None,
    statistics: Statistics,
    stream: Stream | None,
    scorer: Scorer,
    report: Report,
) -> ExternalSet | None:
    """D_t^ext: as many stream images as there are labelled ones. None where the stage learns from none."""
    method = spec.rules
    # The first model has nothing to learn from external images but to be unsure about them.
    if stream is None or not method.external or (previous is None and not method.confidence):
        return None
    window = stage_window(spec.seed, stage, spec.num_tasks, len(stream), spec.window)
    num_prev = 0 if previous is None else previous.head.out_features
    plan = plan_sampling(method, spec.reading, size=size, ood_ratio=spec.ood_ratio, num_classes=num_prev)
    found, scored = None, 0
    if previous is not None and plan.scores:

        def on_images(images: int) -> None:
            nonlocal scored
            scored += images
            report(stage, "score", scored, window.length - plan.skipped)

        found = scorer(previous, statistics, stream, window, plan, on_images)
    sample = finish(plan, found, window.length, numpy_generator(spec.seed, stage, Purpose.OOD_SAMPLE))
    positions = window.positions(sample.offsets)
    return ExternalSet(sample, positions, stream.read(positions), scored)
