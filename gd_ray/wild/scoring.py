"""Scores a window of the stream with the previous model, in this process."""

from collections.abc import Callable
from functools import reduce
from typing import Protocol

from gd_ray.data.image_set import Statistics
from gd_ray.inference import predict
from gd_ray.network import WideResNet
from gd_ray.wild.sampling import Candidates, SamplingPlan, candidates, merge_candidates
from gd_ray.wild.stream import Stream, Window


class Scorer(Protocol):
    """Finds the candidates of a window; the answer does not depend on how it does so."""

    def __call__(
        self,
        previous: WideResNet,
        statistics: Statistics,
        stream: Stream,
        window: Window,
        plan: SamplingPlan,
        on_images: Callable[[int], None],
    ) -> Candidates: ...


def score_in_process(
    previous: WideResNet,
    statistics: Statistics,
    stream: Stream,
    window: Window,
    plan: SamplingPlan,
    on_images: Callable[[int], None],
) -> Candidates:
    """One block after another. `on_images` is told the number of images of each block."""

    def found(block: tuple) -> Candidates:  # type: ignore[type-arg]
        offsets, images = block
        result = candidates(plan, offsets, predict(previous, images, statistics).cpu().numpy())
        on_images(len(offsets))
        return result

    return reduce(merge_candidates, map(found, stream.blocks(window, plan.skipped)))
