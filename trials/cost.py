"""What trials cost, from their specs alone: images of every step of every stage, and `gd-ray plan`."""

import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from time import perf_counter

from rich.console import Console

from gd_ray.conventions import convention_named
from gd_ray.errors import UserError
from gd_ray.learners import LEARNERS
from gd_ray.naming import counted
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step, distillation_steps, teacher_step
from gd_ray.store import finished, read_rows
from gd_ray.wild.sampling import plan_sampling
from trials.registry import DataLocations, Sizes


@dataclass(frozen=True)
class StepCost:
    """One step of one stage."""

    stage: int
    step: str
    images: int
    passes: float
    """Cost of one image, in forward passes of the network."""
    trains: bool = False

    @property
    def work(self) -> float:
        return self.images * self.passes


def spec_cost(spec: TrialSpec, sizes: Sizes | None = None) -> tuple[StepCost, ...]:
    """Return every step of a trial."""
    return _spec_cost(replace(spec, seed=0), sizes or Sizes())  # all seeds cost the same


@cache
def _spec_cost(spec: TrialSpec, data: Sizes) -> tuple[StepCost, ...]:
    steps = []
    for stage in range(1, spec.num_tasks + 1):
        steps += _stage_cost(spec, stage, data)
    return tuple(steps)


def _stage_cost(spec: TrialSpec, stage: int, data: Sizes) -> list[StepCost]:
    method, num_prev, num_new = spec.method, sum(spec.task_sizes[: stage - 1]), spec.task_sizes[stage - 1]
    per_class = spec.train_per_class or data.train_per_class
    current, earlier = num_new * per_class, num_prev * per_class
    exemplars = earlier if method.replay_all else min(spec.coreset_size, earlier)
    # Learners need torch, which takes seconds to import; most methods need none of them to be planned.
    learner = None if method.learner == "distillation" else LEARNERS.named(method.learner)(spec)
    external = 0
    if method.external and (stage > 1 or method.confidence):
        external = learner.external_size(current + exemplars) if learner else current + exemplars
    sizes = StageSizes(stage, num_prev, num_new, current, exemplars, external)
    costs = []
    plan = plan_sampling(
        method, convention_named(spec.convention), size=external, ood_ratio=spec.ood_ratio, num_classes=num_prev
    )
    if plan.scores:
        window = spec.window if data.stream is None else min(spec.window, data.stream)
        scored = max(0, window - plan.skipped)
        with_means = current + exemplars if plan.needs_means else 0
        costs.append(StepCost(stage, "score", scored, 1 + with_means / max(1, scored)))
    if stage == 1 and method.shares_first_model:
        steps: Sequence[Step] = [teacher_step(spec, sizes)]
    else:
        steps = learner.steps(sizes) if learner else distillation_steps(spec, sizes)
    for step in steps:
        trains = step.training is not None
        costs.append(StepCost(stage, step.name, step.images_looked_at(spec), step.passes, trains))
    # Of classes seen, both are tested: the head, and what the model predicts by if that is something else.
    both = (num_prev + num_new) / spec.num_classes if learner and learner.kind.has_own_scores() else 0
    teacher = int(stage > 1 and any(step.name == "teacher" for step in steps))
    test_images = spec.num_classes * (spec.test_per_class or data.test_per_class)
    return [*costs, StepCost(stage, "evaluate", test_images, 1 + both + teacher)]


@cache
def multiply_adds(network: str) -> int:
    """Count the multiply-adds of an image of 32x32 through a network's convolutions and products, as torch does."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    from gd_ray.networks import backbone_builder

    with torch.device("meta"), FlopCounterMode(display=False) as counter, torch.no_grad():
        backbone_builder(network)(0.0)(torch.empty(1, 3, 32, 32))
    return int(counter.get_total_flops()) // 2


def total_work(cost: Sequence[StepCost]) -> float:
    return sum(step.work for step in cost)


def spec_work(spec: TrialSpec, sizes: Sizes | None = None) -> float:
    """Return the work of a trial in multiply-adds, comparable with that of trials with other networks."""
    return total_work(spec_cost(spec, sizes)) * multiply_adds(spec.network)


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


def steps_to_compute(
    specs: Sequence[TrialSpec], sizes: Callable[[TrialSpec], Sizes] = lambda _: Sizes()
) -> dict[str, list[StepCost]]:
    """Return every step of the trials by network; a first stage that several of them share, once."""
    first = {spec.first_model_id: spec.trial_id for spec in reversed(specs)}
    steps: dict[str, list[StepCost]] = {}
    for spec in specs:
        steps.setdefault(spec.network, []).extend(
            step
            for step in spec_cost(spec, sizes(spec))
            if step.stage > 1 or first[spec.first_model_id] == spec.trial_id
        )
    return steps


def print_plan(
    name: str,
    specs: list[TrialSpec],
    results: str,
    locations: DataLocations,
    at_once: int | None = None,
    images_per_second: float | None = None,
    *,
    measure: bool = False,
) -> None:
    """Print what the trials of an experiment that are not finished cost, and if a speed is known, the time."""
    from trials.console import duration

    if at_once is not None and at_once < 1:
        raise UserError(f"--at-once {at_once} must be at least 1.")
    if images_per_second is not None and not 0 < images_per_second < math.inf:
        raise UserError(f"--images-per-second {images_per_second} must be a number above 0.")
    console, done = Console(soft_wrap=True, highlight=False), finished(results)
    left = [spec for spec in specs if spec.trial_id not in done]
    by_network = steps_to_compute(left, locations.sizes)
    steps = [step for cost in by_network.values() for step in cost]
    scored = sum(step.images for step in steps if step.step == "score")
    trained = sum(step.images for step in steps if step.trains)
    console.print(f"{name}: {counted(len(specs), 'trial')}, {len(specs) - len(left)} finished, {len(left)} to run.")
    console.print(f"Images to train on: {amount(trained)}; to score: {amount(scored)}.")
    for stream in dict.fromkeys(spec.stream for spec in left if spec.method.external):
        if locations.stream_images(stream) is None:
            text = f"Stream {stream!r} is not at {locations.stream_address(stream)}, so full windows are counted; "
            console.print(f"{text}give its folder with --stream {stream}=FOLDER.", markup=False)
    if not left:
        return
    network, rate, source = left[0].network, images_per_second, "as given"
    devices = os.cpu_count() or 1
    if rate is None and measure:
        rate, source, devices = measure_rate(network, left[0].precision)
    elif rate is None:
        rate, source = _recorded_rate([spec for spec in specs if spec.trial_id in done], network, results, locations)
    if rate is None:
        counts = (f"{amount(round(total_work(cost)))} of {name}" for name, cost in by_network.items())
        console.print(f"Forward passes: {', '.join(counts)}. --measure times them on this machine.")
        return
    at_once = at_once or devices
    # Counting takes two seconds, mostly imports, and one network needs no comparison.
    weights = {name: multiply_adds(name) / multiply_adds(network) for name in by_network} if len(by_network) > 1 else {}
    work = sum(total_work(cost) * weights.get(name, 1.0) for name, cost in by_network.items())
    passes = f"forward passes of {network}" if len(by_network) > 1 else "forward passes"
    together = f"with {counted(at_once, 'trial')} at once, at {rate:.0f} {passes} per second ({source})"
    console.print(f"About {duration(work / rate / at_once)} {together}.")


def amount(number: int) -> str:
    """Return a number for people: exact, or in millions."""
    return f"{number / 1e6:,.1f} million" if number >= 1e6 else f"{number:,}"


def _recorded_rate(
    specs: list[TrialSpec], network: str, results: str, locations: DataLocations
) -> tuple[float | None, str]:
    """Return the forward passes per second of finished trials with a network; None without any."""
    own = {spec.trial_id: spec for spec in specs if spec.network == network}
    rows = read_rows(results, "trials", own, columns=["seconds"])[0].to_pylist() if own else []
    seconds = sum(row["seconds"] for row in rows)
    work = sum(total_work(spec_cost(own[row["trial_id"]], locations.sizes(own[row["trial_id"]]))) for row in rows)
    return work / seconds if seconds else None, f"as in {counted(len(rows), 'finished trial')}"


def measure_rate(network: str, precision: str = "float32", seconds: float = 0.3) -> tuple[float, str, int]:
    """Measure forward passes per second on a GPU or with one thread; return also how, and of how many devices."""
    import torch

    from gd_ray.arithmetic import training_arithmetic
    from gd_ray.malloc import keep_freed_memory
    from gd_ray.networks.classifier import new_classifier

    keep_freed_memory()
    torch.set_num_threads(1)
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda" if on_gpu else "cpu")
    model = new_classifier(network, 0.0, 10, torch.Generator().manual_seed(0)).eval().to(device)
    batch = torch.zeros(128 if on_gpu else 64, 3, 32, 32, device=device).contiguous(memory_format=torch.channels_last)

    def passes(number: int) -> int:
        for _ in range(number):
            model.logits(batch, bfloat16=on_gpu and precision == "bfloat16")
        if on_gpu:
            torch.cuda.synchronize()
        return number * len(batch)

    with torch.inference_mode(), training_arithmetic(precision if on_gpu else "float32", device):
        passes(10 if on_gpu else 1)
        images, started = 0, perf_counter()
        while perf_counter() - started < seconds:
            images += passes(10 if on_gpu else 1)
        rate = images / (perf_counter() - started)
    if on_gpu:
        name = torch.cuda.get_device_name()
        return rate, f"measured just now on {name} in {precision}", torch.cuda.device_count()
    return rate, "measured just now with one thread of this machine", os.cpu_count() or 1
