"""Updates per second of gd+ext on a GPU by 1, 2 and 4 processes, eager, as a CUDA graph, and with compiled batches.

In every precision, beside two rooflines: of this device, from the bandwidth and the products per second that the same
run measures, and of an A100 by its data sheet. Where a GPU is shared, everything is measured again under an MPS of its
own. Then images per second of scoring. Without a GPU the same table is printed at a tiny size on the CPU, and the
kernels of an update as the fake GPU counts them. Run it on a quiet machine: make bench-gpu.
"""

import math
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from time import perf_counter

import torch
from roofline import A100, counted

sys.path.insert(0, str(Path(__file__).parents[2]))  # run as a script

from gd_ray.data.pixels import Statistics
from gd_ray.evaluation import in_batches
from gd_ray.learners.distillation import Distillation
from gd_ray.networks.classifier import new_classifier
from gd_ray.spec import TrialSpec
from tests.helpers.stages import make_stage

ROOT = Path(__file__).parents[2]
ON_GPU = torch.cuda.is_available()
DEVICE, NETWORK, BATCH, UPDATES = ("cuda", "wrn-16-2", 128, 400) if ON_GPU else ("cpu", "wrn-10-1", 16, 4)
STATISTICS = Statistics((0.507, 0.487, 0.441), (0.267, 0.256, 0.276))

WAYS = {
    "eager": {"GD_RAY_CUDA_GRAPH": "0"},
    "graph": {"GD_RAY_CUDA_GRAPH": "1"},
    "compiled": {"GD_RAY_CUDA_GRAPH": "1", "GD_RAY_COMPILE": "1"},
}
"""The last one is a graph too, with compiled augmentation. On a CPU all three are the eager loop."""


def measure(precision: str) -> float:
    """Return updates per second of M, without the set-up of the first ones."""
    size = 8 * BATCH
    # M learns for 180 epochs before it is fine-tuned, here of eight updates each.
    spec = TrialSpec(network=NETWORK, batch_size=BATCH, precision=precision, epoch_factor=UPDATES / 180 / 8)
    labels = torch.cat(
        [torch.arange(10, 20).repeat(size // 20 + 1)[: size // 2], torch.arange(10).repeat(size)[: size // 4]]
    )
    labels = torch.cat([labels, torch.full((size - len(labels),), -1)])
    images = torch.randint(0, 256, (size, 32, 32, 3), dtype=torch.uint8)
    stage = make_stage(spec, 2, images.to(DEVICE), labels.to(DEVICE), STATISTICS, size // 2, 3 * size // 4)
    rng = torch.Generator().manual_seed(0)
    previous, teacher = (new_classifier(NETWORK, 0.3, 10, rng).to(DEVICE) for _ in range(2))
    learner, clock = Distillation(spec), []
    stage_progress = stage.progress

    def progress(*arguments: object) -> None:
        if len(clock) == UPDATES // 4 and ON_GPU:
            torch.cuda.synchronize()
        clock.append(perf_counter())
        stage_progress(*arguments)

    object.__setattr__(stage, "progress", progress)
    step = {step.name: step for step in learner.steps(stage.sizes)}["model"]
    learner.train_model(stage, step, previous, teacher)
    ended, first = perf_counter(), UPDATES // 4
    return (len(clock) - 1 - first) / (ended - clock[first])


def in_processes(number: int, precision: str, switches: dict[str, str]) -> float:
    """Return the rate of all processes together."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **switches}
    command = [sys.executable, __file__, "--measure", precision]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(number)
    ]
    return sum(float(process.communicate()[0].split()[-1]) for process in running)


def peaks(precision: str) -> dict[str, float]:
    """Measure products of large matrices and copies of a large tensor: what this device can do at most.

    On a CPU the layers of so small a batch hand their outputs on in its cache, so only products limit it.
    """
    side, copied = (8192, 1 << 28) if ON_GPU else (2048, 1)
    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    a = torch.ones(side, side, dtype=dtype, device=DEVICE)
    source = torch.empty(copied, dtype=torch.uint8, device=DEVICE)
    target = torch.empty_like(source)
    torch.backends.cuda.matmul.fp32_precision = "tf32" if precision == "tf32" else "ieee"
    try:
        products = 2 * side**3 / fastest(lambda: torch.mm(a, a))
    finally:
        torch.backends.cuda.matmul.fp32_precision = "ieee"
    moved = 2 * copied / fastest(lambda: target.copy_(source)) if ON_GPU else math.inf
    return {precision: products, "bytes/s": moved}


def fastest(work: Callable[[], object]) -> float:
    times = []
    for _ in range(5):
        started = perf_counter()
        work()
        if ON_GPU:
            torch.cuda.synchronize()
        times.append(perf_counter() - started)
    return min(times)


def roofline(precision: str, device: dict[str, float]) -> float:
    """Return the updates per second that a device allows: M forward and backward, P and C forward."""
    operations, moved = counted(
        new_classifier(NETWORK, 0.3, 20, torch.Generator()), 2 if precision == "bfloat16" else 4
    )
    return min(device[precision] / (10 * operations), device["bytes/s"] / (5 * moved)) / BATCH


@contextmanager
def mps() -> Iterator[None]:
    """Serve the processes of a GPU by an MPS of our own."""
    with tempfile.TemporaryDirectory() as folder:
        variables = {"CUDA_MPS_PIPE_DIRECTORY": folder, "CUDA_MPS_LOG_DIRECTORY": folder}
        os.environ.update(variables)
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        try:
            yield
        finally:
            subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False)
            for name in variables:
                del os.environ[name]


def show_updates() -> None:
    where = torch.cuda.get_device_name() if ON_GPU else "a CPU at a tiny size: says nothing about a GPU"
    print(f"updates of M per second, all processes together, on {where}")
    ways = " ".join(f"{way:>9}" for way in WAYS)
    print(f"{'precision':10} {'MPS':3} {'processes':>9} {ways}  roofline here, A100 by data sheet")
    has_mps = ON_GPU and shutil.which("nvidia-cuda-mps-control") is not None
    for precision in ("float32", "tf32", "bfloat16"):
        if precision == "tf32" and not (ON_GPU and torch.cuda.get_device_capability()[0] >= 8):
            print(f"{precision:10} not on this device")
            continue
        limits = f"{roofline(precision, peaks(precision)):,.0f}, {roofline(precision, A100):,.0f}"
        for shared, number in [(False, 1), (False, 2), (False, 4), *([(True, 2), (True, 4)] if has_mps else [])]:
            with mps() if shared else nullcontext():
                rates = [in_processes(number, precision, switches) for switches in WAYS.values()]
            numbers = " ".join(f"{rate:9.1f}" for rate in rates)
            print(f"{precision:10} {'yes' if shared else 'no':3} {number:9} {numbers}  {limits}")
    if not has_mps:
        print("without MPS alone: nvidia-cuda-mps-control is not here")


def show_scoring() -> None:
    model = new_classifier(NETWORK, 0.3, 20, torch.Generator().manual_seed(0)).to(DEVICE)
    images = torch.randint(0, 256, (4096 if ON_GPU else 512, 32, 32, 3), dtype=torch.uint8).numpy()
    in_batches(model.logits, model, images, STATISTICS).cpu()
    started = perf_counter()
    in_batches(model.logits, model, images, STATISTICS).cpu()
    print(f"scoring: {len(images) / (perf_counter() - started):,.0f} images/s in IEEE float32")


def show_kernels() -> None:
    from tests.helpers.fake_training import small_spec, train_on_fake_gpu

    print("kernels of an update of gd+ext, WRN-16-2, counted on the fake GPU; ceilings 270, 400 and 350 in float32")
    for precision in ("float32", "bfloat16"):
        spec = small_spec(
            network="wrn-16-2", num_classes=100, precision=precision, epoch_factor=1 / 600, fine_tune_factor=10
        )
        _, trainings = train_on_fake_gpu(spec)
        counts = [sum(updates[1].values()) for updates in trainings]
        print(f"  {precision:10} teacher {counts[0]}, model {counts[1]}, fine-tuning {counts[2]}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(measure(sys.argv[2]))
    else:
        show_updates()
        show_scoring()
        if not ON_GPU:
            show_kernels()
