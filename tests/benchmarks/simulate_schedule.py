"""What the wave of first models costs a cluster: schedules of Table 1 on CIFAR-100, simulated on 8 and 64 GPUs.

Two waves train all first models before any trial; one queue starts a trial as soon as its own first model is there.
Work is what `gd-ray plan` counts, shares of GPUs are those that a run gives its trials, and as in Ray a trial goes to
the fullest GPU with room, the longest trials first. How much trials on one GPU slow each other down is not known here,
so both ends are computed: not at all (one trial leaves most of a GPU idle), and as much as they can (one fills it).

    make bench-schedule
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from gd_ray.spec import TrialSpec
from trials.cost import spec_cost, total_work
from trials.experiments import EXPERIMENTS
from trials.resources import gpu_shares


@dataclass
class Job:
    """A first model, or the rest of a trial after it."""

    work: float
    """In forward passes; what is left of it while it runs."""
    share: float
    """Of a GPU."""
    needs: str | None = None
    """The first model without which it cannot start."""
    trains: str | None = None
    """The first model that it trains."""


def jobs_of(specs: Sequence[TrialSpec], gpus: int) -> tuple[list[Job], list[Job]]:
    """Return the first models and the trials of an experiment, each with its share of a GPU, in a run's order."""
    works = {spec: total_work(spec_cost(spec)) for spec in specs}
    firsts = {spec: total_work([step for step in spec_cost(spec) if step.stage == 1]) for spec in specs}
    longest = sorted(specs, key=lambda spec: -works[spec])
    models = {spec.first_model_id: firsts[spec] for spec in longest}
    shares = [_shares(len(models), gpus), _shares(len(specs), gpus)]
    return (
        [Job(work, shares[0][rank], trains=model) for rank, (model, work) in enumerate(models.items())],
        [Job(works[s] - firsts[s], shares[1][rank], needs=s.first_model_id) for rank, s in enumerate(longest)],
    )


def _shares(trials: int, gpus: int) -> list[float]:
    share, doubled = gpu_shares(trials, gpus)
    return [share * (1 + (rank < doubled)) for rank in range(trials)]


def simulate(queue: Sequence[Job], gpus: int, slowdown: float) -> tuple[float, float]:
    """Return when the last job ends, and how much of the shares was held on average; n on a GPU run at n^-slowdown."""
    waiting, ready = list(queue), {job.needs for job in queue} - {job.trains for job in queue} | {None}
    running: dict[int, list[Job]] = defaultdict(list)
    clock = held = 0.0
    while waiting or any(running.values()):
        for job in list(waiting):
            free = {gpu: 1 - sum(other.share for other in running[gpu]) for gpu in range(gpus)}
            room = [gpu for gpu in free if free[gpu] >= job.share - 1e-9]
            if job.needs in ready and room:
                running[min(room, key=lambda gpu: (free[gpu], gpu))].append(job)
                waiting.remove(job)
            if not room:
                break
        seconds = min(min(job.work for job in jobs) * len(jobs) ** slowdown for jobs in running.values() if jobs)
        clock += seconds
        held += seconds * sum(job.share for jobs in running.values() for job in jobs)
        for gpu, jobs in running.items():
            for job in jobs:
                job.work -= seconds / len(jobs) ** slowdown
            ready |= {job.trains for job in jobs if job.work < 1e-6}
            running[gpu] = [job for job in jobs if job.work >= 1e-6]
    return clock, held / clock / gpus


def two_waves(specs: Sequence[TrialSpec], gpus: int, slowdown: float) -> tuple[float, float]:
    models, trials = jobs_of(specs, gpus)
    ends = [simulate(wave, gpus, slowdown) for wave in (models, trials)]
    total = sum(clock for clock, _ in ends)
    return total, sum(clock * held for clock, held in ends) / total


def one_queue(specs: Sequence[TrialSpec], gpus: int, slowdown: float) -> tuple[float, float]:
    models, trials = jobs_of(specs, gpus)
    return simulate([*models, *trials], gpus, slowdown)


def main() -> None:
    specs = [spec for spec in EXPERIMENTS["table1"].specs() if spec.dataset == "cifar100"]
    work = sum(total_work(spec_cost(spec)) for spec in specs)
    print(f"{len(specs)} trials, {work:.3g} forward passes; time in those of one trial alone on a GPU, in millions")
    print("| GPUs | trials on one GPU | two waves | GPUs held | one queue | GPUs held | two waves take |")
    print("| ---: | :--- | ---: | ---: | ---: | ---: | ---: |")
    for gpus in (8, 64):
        for slowdown, name in ((0.0, "do not slow each other down"), (0.5, "in between"), (1.0, "divide its speed")):
            (two, held_two), (one, held_one) = (way(specs, gpus, slowdown) for way in (two_waves, one_queue))
            print(
                f"| {gpus} | {name} | {two / 1e6:.0f} | {held_two:.1%} | {one / 1e6:.0f} | {held_one:.1%} | "
                f"{two / one - 1:+.1%} |"
            )


if __name__ == "__main__":
    main()
