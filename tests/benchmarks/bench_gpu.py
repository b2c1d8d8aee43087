"""Updates per second of gd+ext on a GPU by 1, 2 and 4 processes, eager and as a CUDA graph, in every precision.

Beside each rate is what the data sheet of an A100 allows by roofline (computed, not measured), and whether MPS serves
the processes: start `nvidia-cuda-mps-control -d` and run again for the other half of the comparison. Then images per
second of scoring. Without a GPU the same table is printed at a tiny size on the CPU, and the kernels of an update as
the fake GPU counts them. Run it on a quiet machine: make bench-gpu.
"""

import os
import subprocess
import sys
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


def in_processes(number: int, precision: str, graph: bool) -> float:
    """Return the rate of all processes together."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "GD_RAY_CUDA_GRAPH": str(int(graph)), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, __file__, "--measure", precision]
    running = [
        subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True, cwd=ROOT) for _ in range(number)
    ]
    return sum(float(process.communicate()[0].split()[-1]) for process in running)


def roofline(precision: str) -> float:
    """Return updates per second of an A100 by its data sheet: M forward and backward, P and C forward."""
    operations, moved = counted(
        new_classifier(NETWORK, 0.3, 20, torch.Generator()), 2 if precision == "bfloat16" else 4
    )
    return min(A100[precision] / (10 * operations), A100["bytes/s"] / (5 * moved)) / BATCH


def show_updates() -> None:
    where = torch.cuda.get_device_name() if ON_GPU else "a CPU at a tiny size: says nothing about a GPU"
    mps = "with MPS" if Path("/tmp/nvidia-mps/control").exists() else "without MPS"
    print(f"updates of M per second, all processes together, on {where}; {mps}")
    print(f"{'precision':10} {'processes':>9} {'eager':>9} {'graph':>9}   A100 by roofline")
    for precision in ("float32", "tf32", "bfloat16") if ON_GPU else ("float32", "bfloat16"):
        for number in (1, 2, 4):
            rates = [in_processes(number, precision, graph) for graph in (False, True)]
            print(f"{precision:10} {number:9} {rates[0]:9.1f} {rates[1]:9.1f}   {roofline(precision):,.0f}")


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
