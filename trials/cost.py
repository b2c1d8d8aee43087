"""What a trial costs, from its spec alone: images of every step of every stage."""

from dataclasses import dataclass

from gd_ray.schedule import Training, schedule
from gd_ray.spec import TrialSpec
from gd_ray.wild.sampling import plan_sampling

BACKWARD = 2.0
"""A training step costs one forward pass and about two more for the backward pass."""


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


def trial_cost(spec: TrialSpec, train_per_class: int, test_per_class: int) -> list[StepCost]:
    """Every step of a trial on a data set with so many images of each class."""
    steps = []
    for stage in range(1, spec.num_tasks + 1):
        steps += _stage_cost(spec, stage, train_per_class)
        steps.append(StepCost(stage, "evaluate", stage * spec.task_size * test_per_class, 1))
    return steps


def spec_cost(spec: TrialSpec) -> list[StepCost]:
    """The cost on a data set of the usual size: 500 training and 100 test images of each class."""
    return trial_cost(spec, spec.train_per_class or 500, spec.test_per_class or 100)


def multiply_adds(depth: int, width: int) -> int:
    """Of one 32x32 image through the convolutions of a WideResNet: what networks of different size differ by."""
    side, inputs, total = 32, 16, 32 * 32 * 9 * 3 * 16
    for group in range(3):
        side, outputs = side // (2 if group else 1), 16 * 2**group * width
        for _ in range((depth - 4) // 6):
            shortcut = inputs * outputs if inputs != outputs else 0
            total += side * side * (9 * inputs * outputs + shortcut + 9 * outputs * outputs)
            inputs = outputs
    return total


def spec_work(spec: TrialSpec) -> float:
    """All work of a trial, comparable with that of trials with other networks."""
    return total_work(spec_cost(spec)) * multiply_adds(spec.depth, spec.width)


def total_work(cost: list[StepCost]) -> float:
    return sum(step.work for step in cost)


def shares_done(cost: list[StepCost]) -> list[float]:
    """The share of a trial's work that is done after each of its stages."""
    stages = range(1, cost[-1].stage + 1)
    return [total_work([step for step in cost if step.stage <= stage]) / total_work(cost) for stage in stages]


def share_done(cost: list[StepCost], stage: int, step: str, done: int, total: int) -> float:
    """The share of a trial's work that lies behind it, in the middle of a step."""
    before = 0.0
    for part in cost:
        if (part.stage, part.step) == (stage, step):
            return (before + part.work * done / total) / total_work(cost)
        before += part.work
    return before / total_work(cost)


def _stage_cost(spec: TrialSpec, stage: int, per_class: int) -> list[StepCost]:
    method, num_prev = spec.rules, (stage - 1) * spec.task_size
    current = spec.task_size * per_class
    kept = num_prev * per_class if method.replay_all else min(spec.coreset_size, num_prev * per_class)
    labelled = current + kept
    external = labelled if method.external and (stage > 1 or method.confidence) else 0

    def trained(training: Training, members: int) -> int:
        size = min(spec.batch_size, members)
        updates = schedule(
            training,
            updates_per_epoch=members // size,
            epoch_factor=spec.factor_of(training),
            learning_rate=spec.learning_rate,
        ).updates
        return updates * size

    teacher = trained("whole", labelled + external if method.confidence else current)
    if stage == 1:
        return [StepCost(stage, "teacher", teacher, 1 + BACKWARD)]
    steps = []
    plan = plan_sampling(method, spec.reading, size=external, ood_ratio=spec.ood_ratio, num_classes=num_prev)
    if plan.scores:
        steps.append(StepCost(stage, "score", spec.window - plan.skipped, 1))
    references = (method.previous != "none" or method.ensemble) + spec.trains_teacher
    if spec.trains_teacher:
        steps.append(StepCost(stage, "teacher", teacher, 1 + BACKWARD))
    members = labelled + external
    if method.fine_tuned == "nothing":
        return [*steps, StepCost(stage, "model", trained("whole", members), 1 + BACKWARD + references)]
    model = trained("before fine-tuning", members)
    steps.append(StepCost(stage, "model", model, 1 + BACKWARD + references))
    if method.balancing == "balanced set":
        members = kept + spec.task_size * -(-kept // num_prev)
    backward = 0 if method.fine_tuned == "head" else BACKWARD
    return [*steps, StepCost(stage, "fine-tune", trained("fine-tuning", members), 1 + backward + references)]
