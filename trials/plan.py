"""`gd-ray plan`: what an experiment costs, from its specs and a short measurement."""

import math
from dataclasses import replace
from functools import cache
from time import perf_counter

from rich.console import Console

from gd_ray.errors import UserError
from gd_ray.spec import TrialSpec
from trials.cost import StepCost, multiply_adds, spec_cost, total_work
from trials.results import finished
from trials.view import duration


def print_plan(name: str, specs: list[TrialSpec], results: str, at_once: int, images_per_second: float | None) -> None:
    if at_once < 1:
        raise UserError(f"--at-once {at_once} must be at least 1.")
    if images_per_second is not None and not 0 < images_per_second < math.inf:
        raise UserError(
            f"--images-per-second {images_per_second} must be a number above 0; leave it out to measure it."
        )
    console = Console(soft_wrap=True, highlight=False)
    done = finished(results)
    left = [spec for spec in specs if spec.trial_id not in done]
    costs = by_network(left)
    steps = [step for cost in costs.values() for step in cost]
    trained = sum(step.images for step in steps if step.step in ("teacher", "model", "fine-tune"))
    scored = sum(step.images for step in steps if step.step == "score")
    console.print(f"{name}: {len(specs)} trials, {len(specs) - len(left)} finished, {len(left)} to run.")
    console.print(f"Images to train on: {trained / 1e6:.1f} million; to score: {scored / 1e6:.1f} million.")
    if not left:
        return
    if images_per_second is None:
        rate, source = measured_rate(left[0]), "measured just now with one thread of this machine"
    else:
        rate, source = images_per_second, "as given"
    depth, width = left[0].depth, left[0].width
    seconds = work_of(costs) / multiply_adds(depth, width) / rate / at_once
    of = f" of WRN-{depth}-{width}" if len(costs) > 1 else ""
    console.print(
        f"About {duration(seconds)} with {at_once} trials at once, at {rate:.0f} forward passes{of} per second "
        f"({source})."
    )


def by_network(specs: list[TrialSpec]) -> dict[tuple[int, int], list[StepCost]]:
    """What is to compute with networks of each depth and width, which share nothing."""
    found: dict[tuple[int, int], list[TrialSpec]] = {}
    for spec in specs:
        found.setdefault((spec.depth, spec.width), []).append(spec)
    return {network: to_compute(own) for network, own in found.items()}


def work_of(costs: dict[tuple[int, int], list[StepCost]]) -> float:
    """In multiply-adds."""
    return sum(total_work(steps) * multiply_adds(*network) for network, steps in costs.items())


def to_compute(specs: list[TrialSpec]) -> list[StepCost]:
    """Every step of the trials; a first stage that several of them share, once."""
    first = {spec.first_model_id: spec.trial_id for spec in reversed(specs)}
    return [
        step
        for spec in specs
        for step in _cost(replace(spec, seed=0))
        if step.stage > 1 or first[spec.first_model_id] == spec.trial_id
    ]


_cost = cache(spec_cost)
"""The same for every seed, so worked out once for all of them."""


def measured_rate(spec: TrialSpec, seconds: float = 0.3) -> float:
    """Forward passes of the spec's network per second, one thread, this machine."""
    import torch

    from gd_ray.allocator import keep_freed_memory
    from gd_ray.network import WideResNet
    from gd_ray.seeding import Purpose, generator

    keep_freed_memory()
    torch.set_num_threads(1)
    network = WideResNet(spec.depth, spec.width, 0.0, spec.num_classes, generator(0, 1, Purpose.INITIALISATION)).eval()
    batch = torch.zeros(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        network(batch)
        images, started = 0, perf_counter()
        while perf_counter() - started < seconds:
            network(batch)
            images += len(batch)
        return images / (perf_counter() - started)
