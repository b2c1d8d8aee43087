"""A training step of GD+ext against the machine's limit and against a stage in ordinary PyTorch, one thread each.

WRN-16-2, batch 128, task size 10, P and C both distilled, batches drawn from current, coreset and external images in
the paper's proportions (stage 5 of 10). The limit is the rate of a large float32 matrix product, measured in this run.
Both whole stages have a twentieth of the paper's images and epochs (10 for C, 9 for M, 1 for the head), processes of
their own, and one thread of torch; the ordinary one has two DataLoader workers besides.

Run it on a quiet machine with two cores: make bench-train. Takes about ten minutes. With the argument `compile` it
measures torch.compile instead: what it costs, and what it gives.
"""

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from plain_training import Images, model_loss, plain_copy, run_stage, teacher_loss, training_transform
from roofline import counted, expected_on_a100
from torch.utils.data import DataLoader

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script

from gd_ray.data.augmentation import augment, normalize
from gd_ray.evaluation import evaluate
from gd_ray.learners.distillation import Distillation
from gd_ray.malloc import keep_freed_memory
from gd_ray.objective import model_terms, task_labels, teacher_terms
from gd_ray.spec import TrialSpec
from tests.benchmarks.training_setup import SHARE, STATISTICS, TASK, Setup, numbers
from tests.helpers.batches import sample_augmentation, shuffled_batches

BATCH, STAGES = 128, 10
EPOCHS = (10, 9, 1)


def best(function: Callable[[], object], times: int) -> float:
    function()
    seconds = []
    for _ in range(times):
        started = perf_counter()
        function()
        seconds.append(perf_counter() - started)
    return min(seconds)


def matrix_peak() -> float:
    """Floating-point operations per second of the best of some large matrix products."""
    rates = []
    for size in (512, 1024, 2048):
        a, b = torch.rand(size, size), torch.rand(size, size)
        rates.append(2 * size**3 / best(lambda a=a, b=b: a @ b, 5))
    return max(rates)


class Step:
    """One update of M as `gd_ray.training.fit` does it, with a clock between its parts."""

    def __init__(self, setup: Setup, *, head_only: bool = False, references: bool = True) -> None:
        self.setup, self.head_only, self.references = setup, head_only, references
        self.model = copy.deepcopy(setup.model).train()
        trained = self.model.head.parameters() if head_only else self.model.parameters()
        self.optimizer = torch.optim.SGD(trained, lr=1e-3, momentum=0.9, weight_decay=5e-4)
        self.objective = setup.objective(fine_tuning=head_only)
        self.batches = shuffled_batches(torch.arange(len(setup.labels)), BATCH, 10**6, numbers())
        self.augmentation, self.dropout = numbers(1), numbers(2)
        self.seconds: dict[str, float] = {}

    def timed(self, part: str, started: float) -> float:
        now = perf_counter()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - started
        return now

    def __call__(self) -> None:
        setup, clock = self.setup, perf_counter()
        index = next(self.batches)
        pixels = augment(setup.images[index], sample_augmentation(BATCH, 32, self.augmentation))
        inputs, labels = normalize(pixels, setup.statistics), setup.labels[index]
        clock = self.timed("augment", clock)
        with torch.no_grad():
            p_logits, c_logits = (setup.previous(inputs), setup.teacher(inputs)) if self.references else (None, None)
        clock = self.timed("P and C forward", clock)
        with torch.set_grad_enabled(not self.head_only):
            features = self.model.features(inputs, self.dropout)
        logits = self.model.head(features)
        clock = self.timed("M forward", clock)
        if self.references:
            terms = model_terms(self.objective, logits, labels, p_logits, c_logits)
            loss = torch.stack(list(terms.values())).sum()
        else:
            loss = torch.nn.functional.cross_entropy(logits, labels, ignore_index=-1)
        clock = self.timed("losses", clock)
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        clock = self.timed("M backward", clock)
        self.optimizer.step()
        self.timed("optimizer", clock)


def rate(step: Step, times: int) -> float:
    """Images per second, the first update apart."""
    step()
    step.seconds.clear()
    started = perf_counter()
    for _ in range(times):
        step()
    return times * BATCH / (perf_counter() - started)


def show_step(peak: float, operations: float) -> None:
    step = Step(Setup(share=1))
    whole = rate(step, 8)
    total = sum(step.seconds.values())
    print("one update of M, batch 128:")
    for part, seconds in step.seconds.items():
        print(f"  {part:16} {1e3 * seconds / 8:7.1f} ms  {100 * seconds / total:5.1f}%")
    needed = 2 * 5 * operations  # M forward and, twice that, backward; P and C forward
    share = whole * needed / peak
    print(f"  {whole:.1f} images/s: {100 * share:.0f}% of the matrix product's rate; at least 50%")
    inputs = normalize(Setup(share=1).images[:256], STATISTICS)
    network = Setup().previous
    with torch.inference_mode():
        forward = 256 / best(lambda: network(inputs), 5)
    share = forward * 2 * operations / peak
    print(f"inference: {forward:.0f} images/s: {100 * share:.0f}% of the matrix product's rate; at least 85%")


def show_head_only() -> None:
    setup = Setup(share=1)
    full, head = (rate(Step(setup, head_only=head_only), 4) for head_only in (False, True))
    own, own_head = (rate(Step(setup, head_only=head_only, references=False), 4) for head_only in (False, True))
    print(
        f"head-only fine-tuning: {own_head:.0f} images/s against {own:.0f} of training all of M: {own_head / own:.2f} "
        f"times; at least 2 times.\n  With P and C, which both steps run alike: {head:.0f} against {full:.0f}, "
        f"{head / full:.2f} times; a backward pass costs little more "
        f"than two forward ones, so about 1.7 is the most there can be."
    )


def show_stages() -> None:
    second, tenth = Step(Setup(2, share=1)), Step(Setup(STAGES, share=1))
    rates = np.array([[rate(second, 3), rate(tenth, 3)] for _ in range(3)]).max(axis=0)
    print(f"an image of stage 10 costs {rates[0] / rates[1]:.2f} times one of stage 2; at most 1.15 times")


def show_augmentation() -> None:
    setup, made = Setup(share=1), numbers()
    members = torch.arange(len(setup.labels))

    def ours() -> None:
        for index in shuffled_batches(members, BATCH, 50, made):
            normalize(augment(setup.images[index], sample_augmentation(BATCH, 32, made)), STATISTICS)

    quick = 50 * BATCH / best(ours, 3)
    loader = DataLoader(
        Images(setup.images[: 45 * BATCH], setup.labels, training_transform(STATISTICS)), BATCH, num_workers=1
    )
    clocks = []
    for _ in loader:
        clocks.append(perf_counter())
    slow = 40 * BATCH / (clocks[44] - clocks[4])  # the first batches wait for the worker to start
    print(
        f"augment batches: {quick:,.0f} images/s against {slow:,.0f} of a DataLoader's worker: {quick / slow:.1f} "
        f"times; at least 15 times"
    )


def show_equal_losses() -> None:
    """On the same batches, dropout off: its random numbers are drawn in different ways."""
    setup = Setup(share=1)
    worst = 0.0
    model, plain = copy.deepcopy(setup.model).train(), plain_copy(setup.model, dropout=0.0).train()
    own, plain_own = copy.deepcopy(setup.teacher).train(), plain_copy(setup.teacher, dropout=0.0).train()
    p, c = plain_copy(setup.previous).eval(), plain_copy(setup.teacher).eval()
    for index in shuffled_batches(torch.arange(len(setup.labels)), BATCH, 3, numbers()):
        pixels = augment(setup.images[index], sample_augmentation(BATCH, 32, numbers()))
        inputs, labels = normalize(pixels, STATISTICS), setup.labels[index]
        contiguous = inputs.contiguous()
        with torch.no_grad():
            terms = teacher_terms(own(inputs), task_labels(labels, setup.num_prev), calibrate=True)
            pairs = [(sum(terms.values()), teacher_loss(plain_own(contiguous), labels, setup.num_prev))]
            for counts in (None, setup.counts):
                logits, references = model(inputs), (setup.previous(inputs), setup.teacher(inputs))
                terms = model_terms(setup.objective(fine_tuning=counts is not None), logits, labels, *references)
                plain_loss = model_loss(plain(contiguous), labels, p(contiguous), c(contiguous), counts)
                pairs.append((sum(terms.values()), plain_loss))
        worst = max(worst, *(abs(float(ours) / float(theirs) - 1) for ours, theirs in pairs))
    print(f"losses of C, M and fine-tuning on the same batches differ by {worst:.1e} of their value; at most 1e-5")
    assert worst <= 1e-5


def our_stage() -> None:
    """In a process of its own: prints images and seconds."""
    keep_freed_memory()
    setup = Setup()
    spec = TrialSpec(method="gd+ext", task_size=TASK, epoch_factor=1 / SHARE)
    stage, learner = setup.stage_of(spec), Distillation(spec)
    started = perf_counter()
    model = learner.train(stage, setup.previous)
    evaluate(model, setup.test_images, setup.test_labels.numpy(), STATISTICS, stage.task_sizes)
    print(sum(stage.log.images.values()), perf_counter() - started)


def plain_stage(*, detached: bool = False) -> None:
    """In a process of its own: prints images and seconds."""
    print(*run_stage(Setup(), EPOCHS, detached=detached))


def peak_memory() -> int:
    """Of this process, in kB; getrusage would count what its parent had at the fork."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0])


def memory() -> None:
    """In a process of its own: two stages of a trial of the paper's size, one update for each training."""
    from gd_ray.data.dataset import ImageSet, LabelledData
    from gd_ray.trial import run_trial
    from gd_ray.wild.stream import MemoryStream

    def images(classes: int, each: int) -> ImageSet:
        pixels = torch.randint(0, 256, (classes * each, 32, 32, 3), dtype=torch.uint8, generator=numbers())
        return ImageSet(pixels, torch.arange(classes).repeat_interleave(each))

    before = peak_memory()
    names = tuple(str(k) for k in range(100))
    data = LabelledData("cifar100", images(100, 500), images(100, 100), STATISTICS, names)
    stream = MemoryStream(np.random.default_rng(0).integers(0, 256, (8000, 32, 32, 3), dtype=np.uint8))
    spec = TrialSpec(method="gd+ext", task_size=TASK, window=8000, epoch_factor=1e-6)
    run_trial(spec, data, stream, last_stage=2)
    peak = peak_memory()
    sizes = (60_000 * 3072 / 1e6, 8000 * 3072 / 1e6)
    print(
        f"memory of a trial of the paper's size: {peak / 1e6:.2f} GB at its peak, {before / 1e6:.2f} GB of it Python "
        f"and torch, {sizes[0]:.0f} MB the data set and {sizes[1]:.0f} MB this run's stream"
    )


def compiled() -> None:
    """What torch.compile costs and gives for the training step's network and for inference."""
    keep_freed_memory()
    setup = Setup(share=1)
    inputs = normalize(setup.images[:BATCH], STATISTICS)

    def train(network: torch.nn.Module) -> None:
        network(inputs).sum().backward()

    @torch.inference_mode()
    def infer(network: torch.nn.Module) -> None:
        network(inputs)

    for name, run, plain in (("training", train, setup.model.train()), ("inference", infer, setup.previous)):
        quick = torch.compile(copy.deepcopy(plain))
        started = perf_counter()
        run(quick)
        cost = perf_counter() - started
        eager, fast = (BATCH / best(lambda n=n, run=run: run(n), 5) for n in (plain, quick))
        gain = f"{fast:.0f} images/s against {eager:.0f}: {fast / eager:.2f} times"
        print(f"torch.compile: {cost:.0f} s once; {name} {gain}", flush=True)


PARTS = {
    "our_stage": our_stage,
    "plain_stage": plain_stage,
    "detached_stage": lambda: plain_stage(detached=True),
    "memory": memory,
    "compile": compiled,
}


def in_a_process(part: str) -> str:
    return subprocess.run([sys.executable, __file__, part], check=True, capture_output=True, text=True).stdout.strip()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    if len(sys.argv) > 1:
        PARTS[sys.argv[1]]()
        return
    keep_freed_memory()
    operations, _ = counted(plain_copy(Setup().previous))
    peak = matrix_peak()
    print(f"matrix product: {peak / 1e9:.1f} GFLOP/s; WRN-16-2: {operations / 1e6:.0f} million multiply-adds an image,")
    print(f"so {peak / (2 * operations):.0f} images/s forward at that rate", flush=True)
    show_step(peak, operations)
    show_head_only()
    show_stages()
    show_augmentation()
    show_equal_losses()
    sys.stdout.flush()
    images, seconds = map(float, in_a_process("our_stage").split())
    ours = images / seconds
    print(f"a whole stage: {ours:.1f} images/s ({images:.0f} images in {seconds:.0f} s), tested once", flush=True)
    for part, about in (
        ("plain_stage", "the authors' way (tested each epoch, gradients through P and C): at least 1.6 times"),
        ("detached_stage", "the same with P and C detached"),
    ):
        images, seconds = map(float, in_a_process(part).split())
        plain = images / seconds
        print(f"  {ours / plain:.2f} times the {plain:.1f} images/s ({seconds:.0f} s) of {about}", flush=True)
    print(in_a_process("memory"))
    print(expected_on_a100(plain_copy(Setup().previous)))


if __name__ == "__main__":
    main()
