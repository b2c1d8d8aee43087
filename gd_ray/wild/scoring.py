"""Scores a window of the stream with the previous model, in this process."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import reduce

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.data.augmentation import to_device
from gd_ray.data.pixels import Statistics
from gd_ray.evaluation import in_batches
from gd_ray.networks.classifier import Classifier
from gd_ray.wild.sampling import Candidates, Outputs, SamplingPlan, candidates, merge_candidates
from gd_ray.wild.stream import Stream, Unit, Window


@dataclass(frozen=True)
class ScoringJob:
    """A window of a stream to score with the previous model."""

    model: Classifier
    statistics: Statistics
    stream: Stream
    window: Window
    plan: SamplingPlan
    means: NDArray[np.float32] | None = None
    """Directions of the mean features of each class, previous ones before new ones, for plans that need them."""

    def units(self) -> list[Unit]:
        """Return what is read and scored together, in the order of the window."""
        return self.stream.units(self.window, self.plan.skipped)

    def score_units(self, units: Sequence[Unit]) -> Iterator[Candidates]:
        """Read, score and select one unit after another; while a GPU computes, the next unit is read."""
        if self.model.device.type != "cuda" or len(units) < 2:
            yield from (self.select(unit, self.stream.load(unit)) for unit in units)
            return
        with ThreadPoolExecutor(1) as reader:
            following = reader.submit(self.stream.load, units[0])
            for unit, after in zip(units, [*units[1:], None], strict=True):
                images = following.result()
                if after is not None:
                    following = reader.submit(self.stream.load, after)
                yield self.select(unit, images)

    def select(self, unit: Unit, images: NDArray[np.uint8]) -> Candidates:
        if self.means is None:
            logits = in_batches(self.model.logits, self.model, images, self.statistics)
            return candidates(self.plan, unit.offsets, Outputs(_array(logits)))
        head = self.model.head
        means = to_device(torch.from_numpy(self.means).to(head.weight.dtype), head.weight.device)

        def logits_and_cosines(inputs: Tensor) -> Tensor:
            # Cosines too in batches of one size, so that they do not depend on how the work was cut.
            features = self.model.features(inputs)
            return torch.cat([head(features), F.normalize(features, dim=1) @ means.T], dim=1)

        computed = _array(in_batches(logits_and_cosines, self.model, images, self.statistics))
        outputs = np.split(computed, [self.model.num_classes], axis=1)
        return candidates(self.plan, unit.offsets, Outputs(*outputs))


def _array(values: Tensor) -> NDArray[np.float32]:
    return values.float().cpu().numpy()


Scorer = Callable[[ScoringJob, Callable[[int], None]], Candidates]
"""Returns the candidates of a window, which do not depend on how it finds them; reports images as they are scored."""


def score_in_process(job: ScoringJob, on_images: Callable[[int], None]) -> Candidates:
    units = job.units()

    def score() -> Iterator[Candidates]:
        for unit, selected in zip(units, job.score_units(units), strict=True):
            on_images(len(unit))
            yield selected

    return reduce(merge_candidates, score())
