"""What trials cost, from their specs alone: images of every step of every stage, and `gd-ray plan`."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter

from rich.console import Console

from gd_ray.conventions import convention_named
from gd_ray.errors import UserError
from gd_ray.schedule import schedule
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step
from gd_ray.wild.sampling import plan_sampling


@dataclass(frozen=True)
class StepCost:
    """One step of one stage."""

    stage: int
    step: str
    images: int
    passes: float
    """Cost of one image, in forward passes of the network."""

    @property
    def work(self) -> float:
        return self.images * self.passes


@cache
def spec_cost(spec: TrialSpec) -> tuple[StepCost, ...]:
    """Return every step of a trial; data have CIFAR-100's images per class and a full window unless the spec says."""
    steps = []
    for stage in range(1, spec.num_tasks + 1):
        steps += _stage_cost(spec, stage, spec.train_per_class or 500)
        steps.append(StepCost(stage, "evaluate", stage * spec.task_size * (spec.test_per_class or 100), 1))
    return tuple(steps)


def _stage_cost(spec: TrialSpec, stage: int, per_class: int) -> list[StepCost]:
    from gd_ray.learners import LEARNERS
    from gd_ray.learners.distillation import teacher_step

    method, num_prev = spec.method, (stage - 1) * spec.task_size
    current, earlier = spec.task_size * per_class, num_prev * per_class
    exemplars = earlier if method.replay_all else min(spec.coreset_size, earlier)
    learner = LEARNERS.named(method.learner)(spec)
    has_external = method.external and (stage > 1 or method.confidence)
    external = learner.external_size(current + exemplars) if has_external else 0
    sizes = StageSizes(stage, num_prev, spec.task_size, current, exemplars, external)
    costs = []
    plan = plan_sampling(
        method, convention_named(spec.convention), size=external, ood_ratio=spec.ood_ratio, num_classes=num_prev
    )
    if plan.scores:
        costs.append(StepCost(stage, "score", spec.window - plan.skipped, 1))
    if stage == 1 and method.shares_first_model:
        steps: Sequence[Step] = [teacher_step(spec, sizes)]
    else:
        steps = learner.steps(sizes)
    for step in steps:
        updates = schedule(
            step.training,
            images=step.epoch_images or step.images,
            batch_size=spec.batch_size,
            epoch_factor=spec.factor_of(step.training),
            learning_rate=spec.learning_rate,
        ).updates
        costs.append(StepCost(stage, step.name, updates * min(spec.batch_size, step.images), step.passes))
    return costs


@cache
def multiply_adds(network: str, side: int = 32) -> int:
    """Count the multiply-adds of one image through a network's convolutions and products, as torch counts them."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from gd_ray.networks import backbone_builder

    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone_builder(network)(0.0)(torch.empty(1, 3, side, side))
    return int(counter.get_total_flops()) // 2


def total_work(cost: Sequence[StepCost]) -> float:
    return sum(step.work for step in cost)


def spec_work(spec: TrialSpec) -> float:
    """Return the work of a trial in multiply-adds, comparable with that of trials with other networks."""
    return total_work(spec_cost(replace(spec, seed=0))) * multiply_adds(spec.network)


def shares_done(cost: Sequence[StepCost]) -> list[float]:
    """Return the share of a trial's work that is done after each of its stages."""
    stages = range(1, cost[-1].stage + 1)
    return [total_work([step for step in cost if step.stage <= stage]) / total_work(cost) for stage in stages]


def share_done(cost: Sequence[StepCost], stage: int, step: str, done: int, total: int) -> float:
    """Return the share of a trial's work that is done in the middle of a step."""
    before = 0.0
    for part in cost:
        if (part.stage, part.step) == (stage, step):
            return (before + part.work * done / total) / total_work(cost)
        before += part.work
    return before / total_work(cost)


def steps_to_compute(specs: Sequence[TrialSpec]) -> dict[str, list[StepCost]]:
    """Return every step of the trials by network; a first stage that several of them share, once."""
    first = {spec.first_model_id: spec.trial_id for spec in reversed(specs)}
    steps: dict[str, list[StepCost]] = {}
    for spec in specs:
        steps.setdefault(spec.network, []).extend(
            step
            for step in spec_cost(replace(spec, seed=0))  # all seeds cost the same
            if step.stage > 1 or first[spec.first_model_id] == spec.trial_id
        )
    return steps


def print_plan(
    name: str, specs: list[TrialSpec], done: set[str], at_once: int, images_per_second: float | None
) -> None:
    """Print what the trials of an experiment that are not done cost."""
    from trials.console import duration

    if at_once < 1:
        raise UserError(f"--at-once {at_once} must be at least 1.")
    if images_per_second is not None and not 0 < images_per_second < math.inf:
        raise UserError(
            f"--images-per-second {images_per_second} must be a number above 0; without it, it is measured."
        )
    console = Console(soft_wrap=True, highlight=False)
    left = [spec for spec in specs if spec.trial_id not in done]
    by_network = steps_to_compute(left)
    steps = [step for cost in by_network.values() for step in cost]
    scored = sum(step.images for step in steps if step.step == "score")
    trained = sum(step.images for step in steps if step.step not in ("score", "evaluate"))
    console.print(f"{name}: {len(specs)} trials, {len(specs) - len(left)} finished, {len(left)} to run.")
    console.print(f"Images to train on: {trained / 1e6:.1f} million; to score: {scored / 1e6:.1f} million.")
    if not left:
        return
    rate, source = images_per_second, "as given"
    if rate is None:
        rate, source = measure_rate(left[0].network), "measured just now with one thread of this machine"
    network = left[0].network
    # Counting takes two seconds, mostly imports, and one network needs no comparison.
    weights = {name: multiply_adds(name) / multiply_adds(network) for name in by_network} if len(by_network) > 1 else {}
    work = sum(total_work(cost) * weights.get(name, 1.0) for name, cost in by_network.items())
    seconds = work / rate / at_once
    console.print(
        f"About {duration(seconds)} with {at_once} trials at once, at {rate:.0f} forward passes"
        f"{f' of {network}' if len(by_network) > 1 else ''} per second ({source})."
    )


def measure_rate(network: str, seconds: float = 0.3) -> float:
    """Measure forward passes per second with one thread on this machine."""
    import torch

    from gd_ray.malloc import keep_freed_memory
    from gd_ray.networks.classifier import new_classifier

    keep_freed_memory()
    torch.set_num_threads(1)
    model = new_classifier(network, 0.0, 10, torch.Generator().manual_seed(0)).eval()
    batch = torch.zeros(64, 3, 32, 32).contiguous(memory_format=torch.channels_last)
    with torch.inference_mode():
        model(batch)
        images, started = 0, perf_counter()
        while perf_counter() - started < seconds:
            model(batch)
            images += len(batch)
        return images / (perf_counter() - started)
