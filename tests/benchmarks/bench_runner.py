"""What scheduling costs: trials on Ray Tune against `run_trial` in a bare process, all in one run on this machine.

1. Overhead of a trial: an experiment of several trials, one after the other on one core, and a bare process that runs
   the same specs one after the other on the other core, both at the same time and with the priority that Ray gives its
   workers, so that both meet the same noise of the machine. Compared are the seconds from the end of the first trial
   to the end of the last: on Tune with scheduling, reading data, checkpoints and results; in the bare process
   `run_trial` and nothing else. What an experiment pays once (starting Ray's workers, imports, looking at the data)
   lies before the end of the first trial.
2. Two at once: images per second of experiments of two trials against that of one, one thread each, on two cores, whole
   experiments with what they pay once, in turn.
3. A pool of scorers: what it costs at each stage more than a trial that scores its short window itself.
4. Many trials: 300 of one update a stage in one run on two cores. Seconds between the ends of trials, CPU seconds and
   memory of the driver, for every thirty trials: none may grow with the number of trials, but for the 20 kB of a
   finished trial that Tune does not let go.

Run it on a quiet machine with two cores: make bench-runner. Takes half an hour; methods may be named as arguments, or
'many' for the fourth part alone.
"""

import os
import subprocess
import sys
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import mean
from time import perf_counter

import ray
from rich.console import Console

from gd_ray.ray_utils import start_ray
from gd_ray.spec import TrialSpec
from gd_ray.store import read_rows
from trials.claim import repeated
from trials.experiments import small_spec
from trials.registry import DataLocations
from trials.resources import Cluster
from trials.runner import run_experiment

TRIALS = 5
ROUNDS = 2
MANY = 300

BARE = """
import os
import sys
import time
import torch
torch.set_num_threads(1)
os.nice(15)
from bench_runner import TRIALS, spec_of
from gd_ray.trial import run_trial
from trials.registry import DataLocations
locations = DataLocations(storage=sys.argv[2])
specs = [spec_of(sys.argv[1], seed) for seed in range(TRIALS + 1)]  # the last one keeps the core busy to the end
data = locations.load_data(specs[0].dataset, specs[0].train_per_class, specs[0].test_per_class)
stream = locations.open_stream(specs[0].stream) if specs[0].method.external else None
for spec in specs:
    run_trial(spec, data, stream)
    print(time.time(), flush=True)
"""


def spec_of(method: str, seed: int) -> TrialSpec:
    """A trial of more than a minute on one core."""
    return small_spec(method, seed, epoch_factor=0.17 if method == "baseline" else 0.04)


def seconds_between_ends(method: str, folder: Path, storage: Path) -> tuple[list[float], list[float]]:
    """From the end of each trial to that of the next, in a bare process and on Tune, both at the same time."""
    command = [sys.executable, "-c", BARE, method, str(storage)]
    bare = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=subprocess.PIPE, text=True)
    seconds_on_tune([spec_of(method, seed) for seed in range(TRIALS)], folder, storage)
    ends_on_tune = sorted(path.stat().st_mtime for path in folder.glob("trials/*.parquet"))
    assert bare.stdout is not None
    ends_bare = [float(bare.stdout.readline()) for _ in range(TRIALS)]
    bare.kill()
    between = [[later - earlier for earlier, later in pairwise(ends)] for ends in (ends_bare, ends_on_tune)]
    return between[0], between[1]


def seconds_on_tune(specs: list[TrialSpec], results: Path, storage: Path, scorers: int | None = None) -> float:
    """A results folder of its own, and no first model from before: every trial is computed whole."""
    for model in storage.glob("first-models/*"):
        model.unlink()
    started = perf_counter()
    cluster = Cluster(storage=str(storage), scorers=scorers)
    failures = run_experiment("bench", specs, str(results), cluster, Console(quiet=True))
    assert not failures, failures
    return perf_counter() - started


def overhead(method: str, folder: Path, storage: Path) -> None:
    """Ray gets one CPU only, the other one is the bare process's."""
    start_ray(num_cpus=1)
    bare, on_tune = seconds_between_ends(method, folder / f"{method}-{TRIALS}", storage)
    ray.shutdown()
    pairs = ", ".join(f"{100 * (b / a - 1):+.1f}" for a, b in zip(bare, on_tune, strict=True))
    print(
        f"{method}: {TRIALS - 1} trials, {mean(bare):.1f} s each bare and {mean(on_tune):.1f} s on Tune: overhead "
        f"{100 * (sum(on_tune) / sum(bare) - 1):+.1f}% (one by one: {pairs}); under 5%.",
        flush=True,
    )


def two_at_once(method: str, folder: Path, storage: Path) -> None:
    start_ray(num_cpus=2)
    specs = [spec_of(method, seed) for seed in range(2)]
    seconds: dict[int, list[float]] = {1: [], 2: []}
    for turn in range(ROUNDS):
        for number, taken in seconds.items():
            taken.append(seconds_on_tune(specs[:number], folder / f"{method}-{number}-{turn}", storage))
    one, two = sum(seconds[1]), sum(seconds[2])
    print(
        f"{method}: one trial {one / ROUNDS:.1f} s, two at once {two / ROUNDS:.1f} s (means of {ROUNDS}): "
        f"{2 * one / two:.2f} times the images per second; at least 1.7.",
        flush=True,
    )
    if specs[0].method.external:
        pooled = seconds_on_tune(specs, folder / f"{method}-pooled", storage, scorers=1)
        print(
            f"{method}: with a Ray Data actor for each {pooled:.1f} s: "
            f"{(pooled - two / ROUNDS) / (specs[0].num_tasks - 1):.1f} s a stage to start it, however long the window.",
            flush=True,
        )
    ray.shutdown()


def many_trials(folder: Path, storage: Path) -> None:
    """Two tasks of two classes, one update each: nearly all is what a trial costs beside its training."""
    sizes = {"num_classes": 4, "task_size": 2, "train_per_class": 4, "test_per_class": 2, "coreset_size": 4}
    specs = [small_spec("baseline", seed, **sizes, batch_size=8, epoch_factor=1e-6) for seed in range(MANY)]
    start_ray(num_cpus=2)
    results, step = folder / "many", MANY // 10
    memory, busy = dict[int, float](), {0: time.process_time()}

    def sample() -> None:
        part = len(list(results.glob("trials/[!.]*.parquet"))) // step
        resident = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        memory[part] = max(memory.get(part, 0), resident / 1e6)
        busy.setdefault(part, time.process_time())

    started = time.time()
    with repeated(sample, 0.5):
        seconds_on_tune(specs, results, storage)
        sample()
    ray.shutdown()
    files = sorted(results.glob("trials/*.parquet"), key=lambda path: path.stat().st_mtime)
    rows = {row["trial_id"]: row for row in read_rows(str(results), "trials")[0].to_pylist()}
    ends = [started, *(path.stat().st_mtime for path in files)]
    print(f"{MANY} trials, two at once:", flush=True)
    for part, last in enumerate(range(step, MANY + 1, step)):
        own = [rows[path.stem] for path in files[last - step : last]]
        inside, peak = mean(row["seconds"] for row in own), max(row["peak_memory"] for row in own) / 1e6
        each, cpu = (ends[last] - ends[last - step]) / step, (busy[part + 1] - busy[part]) / step
        print(
            f"  to trial {last}: {inside:.2f} s of training and testing in each and {2 * each - inside:.2f} s beside; "
            f"driver {cpu:.3f} CPU seconds a trial and {memory[part]:.0f} MB, their processes at most {peak:.0f} MB",
            flush=True,
        )


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        storage = folder / "storage"
        parts = sys.argv[1:] or ["baseline", "gd+ext", "many"]
        if "many" in parts:
            many_trials(folder, storage)
        for method in (part for part in parts if part != "many"):
            spec = spec_of(method, 0)
            if spec.method.external:  # the stream is made once, before any clock runs
                DataLocations(storage=str(storage)).open_stream(spec.stream)
                ray.shutdown()  # making it started a Ray with every CPU
            overhead(method, folder, storage)
            two_at_once(method, folder, storage)


if __name__ == "__main__":
    main()
