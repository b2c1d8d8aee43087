"""Scores a window of the stream with the previous model, in this process."""

from collections.abc import Callable
from functools import reduce
from typing import Protocol

from gd_ray.data.pixels import Statistics
from gd_ray.inference import predict
from gd_ray.network import WideResNet
from gd_ray.wild.sampling import Candidates, SamplingPlan, candidates, merge_candidates
from gd_ray.wild.stream import Stream, Unit, Window


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
    """One unit after another. `on_images` is told the number of images of each."""

    def found(unit: Unit) -> Candidates:
        result = unit_candidates(previous, statistics, stream, plan, unit)
        on_images(len(unit))
        return result

    return reduce(merge_candidates, map(found, stream.units(window, plan.skipped)))


def unit_candidates(
    previous: WideResNet, statistics: Statistics, stream: Stream, plan: SamplingPlan, unit: Unit
) -> Candidates:
    """The candidates of one unit: read, scored, selected."""
    logits = predict(previous, stream.load(unit), statistics)
    return candidates(plan, unit.offsets, logits.float().cpu().numpy())
