"""The external set of a stage: planned, scored, sampled by Algorithm 2, and only then read."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.conventions import convention_named
from gd_ray.data.pixels import Statistics
from gd_ray.evaluation import class_means, unit_features
from gd_ray.networks.classifier import Classifier
from gd_ray.progress import ProgressCallback
from gd_ray.seeding import Purpose, numpy_generator
from gd_ray.spec import TrialSpec
from gd_ray.wild.sampling import Sample, finish, plan_sampling
from gd_ray.wild.scoring import Scorer, ScoringJob
from gd_ray.wild.stream import Stream, stage_window


@dataclass(frozen=True)
class ExternalSet:
    """What was sampled, and its pixels."""

    sample: Sample
    images: NDArray[np.uint8]
    scored: int
    """Stream images that were scored to find it."""


def sample_external_set(
    spec: TrialSpec,
    stage: int,
    size: int,
    previous: Classifier | None,
    statistics: Statistics,
    stream: Stream | None,
    scorer: Scorer,
    progress: ProgressCallback,
    labelled: tuple[Tensor, NDArray[np.int64]],
) -> ExternalSet | None:
    """Sample D_t^ext of about `size` stream images. None where the stage learns from none.

    Rankings by class means compare with the previous model's features of the stage's labelled images.
    """
    method = spec.method
    # The first model has nothing to learn from external images but to be unsure about them.
    if stream is None or not method.external or (previous is None and not method.confidence):
        return None
    window = stage_window(spec.seed, stage, spec.num_tasks, len(stream), spec.window)
    num_prev = 0 if previous is None else previous.num_classes
    convention = convention_named(spec.convention)
    plan = plan_sampling(method, convention, size=size, ood_ratio=spec.ood_ratio, num_classes=num_prev)
    candidates, scored = None, 0
    if previous is not None and plan.scores:

        def on_images(images: int) -> None:
            nonlocal scored
            scored += images
            progress(stage, "score", scored, window.length - plan.skipped)

        means = None
        if plan.needs_means:
            images, labels = labelled
            features = unit_features(previous, images, statistics)
            means = class_means(features, labels, int(labels.max()) + 1).astype(np.float32)
        candidates = scorer(ScoringJob(previous, statistics, stream, window, plan, means), on_images)
    sample = finish(plan, candidates, window.length, numpy_generator(spec.seed, stage, Purpose.OOD_SAMPLE))
    sample = replace(sample, positions=window.positions(sample.positions))
    return ExternalSet(sample, stream.read(sample.positions), scored)
