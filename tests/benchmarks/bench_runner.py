"""What scheduling costs: trials on Ray Tune against `run_trial` in a bare process, all in one run on this machine.

1. Overhead of a trial: the seconds that one more round of two trials adds to an experiment against two bare Python
   processes at once with the same specs, imports and data included there; one bare process alone is printed beside
   them. What an experiment pays once (starting Ray's workers, looking at the data) is the difference to its first
   round.
2. Two at once: images per second of an experiment of two trials against that of one, one thread each, on two cores.
3. A pool of scorers: what it costs at each stage more than a trial that scores its short window itself.

Run it on a quiet machine with two cores: make bench-runner. Takes about a quarter of an hour; methods may be named as
arguments.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

from rich.console import Console

from gd_ray.spec import TrialSpec
from gd_ray.wild.on_ray import start_ray
from trials.experiments import small_spec
from trials.options import Cluster
from trials.runner import run_experiment
from trials.sources import Places

BARE = """
import sys
import torch
torch.set_num_threads(1)
from bench_runner import spec_of
from gd_ray.trial import run_trial
from trials.sources import Places
spec = spec_of(sys.argv[1], int(sys.argv[2]))
places = Places(storage=sys.argv[3])
data = places.load_data(spec.dataset, spec.train_per_class, spec.test_per_class)
run_trial(spec, data, places.open_stream(spec.stream) if spec.rules.external else None)
"""


def spec_of(method: str, seed: int) -> TrialSpec:
    """A trial of more than a minute on one core."""
    return small_spec(method, seed, epoch_factor=0.17 if method == "baseline" else 0.04)


def seconds_bare(method: str, storage: Path, seeds: tuple[int, ...]) -> float:
    """Until all of these seeds are done, a process each, all at once."""
    started = perf_counter()
    commands = [[sys.executable, "-c", BARE, method, str(seed), str(storage)] for seed in seeds]
    running = [subprocess.Popen(command, cwd=Path(__file__).parent) for command in commands]
    assert not any(process.wait() for process in running)
    return perf_counter() - started


def seconds_on_tune(specs: list[TrialSpec], results: Path, storage: Path, scorers: int | None = None) -> float:
    """A results folder of its own, and no first model from before: every trial is computed whole."""
    for model in storage.glob("first-models/*"):
        model.unlink()
    started = perf_counter()
    cluster = Cluster(storage=str(storage), scorers=scorers)
    failures = run_experiment("bench", specs, str(results), cluster, Console(quiet=True))
    assert not failures, failures
    return perf_counter() - started


def main() -> None:
    started = perf_counter()
    start_ray(num_cpus=2)
    print(f"Ray started in {perf_counter() - started:.1f} s (not counted below).", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        storage = folder / "storage"
        for method in sys.argv[1:] or ("baseline", "gd+ext"):
            specs = [spec_of(method, seed) for seed in range(4)]
            if specs[0].rules.external:  # the stream is made once, before any clock runs
                Places(storage=str(storage)).open_stream(specs[0].stream)
            alone, bare = seconds_bare(method, storage, (0,)), seconds_bare(method, storage, (2, 3))
            seconds = {n: seconds_on_tune(specs[:n], folder / f"{method}-{n}", storage) for n in (1, 2, 4)}
            each = seconds[4] - seconds[2]
            print(
                f"{method}: two bare processes {bare:.1f} s (one alone {alone:.1f} s); a round of two trials on Tune "
                f"{each:.1f} s: overhead {100 * (each / bare - 1):.1f}%.\n"
                f"{method}: once for an experiment {seconds[2] - each:.1f} s.\n"
                f"{method}: one trial {seconds[1]:.1f} s, two at once {seconds[2]:.1f} s: "
                f"{2 * seconds[1] / seconds[2]:.2f} times the images per second.",
                flush=True,
            )
            if specs[0].rules.external:
                pooled = seconds_on_tune(specs[:2], folder / f"{method}-pooled", storage, scorers=1)
                stages = specs[0].num_tasks - 1
                print(
                    f"{method}: with a Ray Data actor for each {pooled:.1f} s: {(pooled - seconds[2]) / stages:.1f} s "
                    f"a stage to start it, however long the window."
                )


if __name__ == "__main__":
    main()
