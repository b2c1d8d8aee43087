"""Ray Tune: schedules the trials of an experiment, resumes them, retries them, and shows how far they are."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from gd_ray.errors import UserError
from gd_ray.spec import TrialSpec
from gd_ray.wild.ray_scoring import ScorerPool
from trials.cost import spec_cost, total_work
from trials.ledger import read_progress, write_class_names, write_failure, write_ledger
from trials.options import Cluster, named
from trials.results import finished, share
from trials.sources import Places
from trials.view import progress_bar
from trials.worker import Job, run_job


@dataclass(frozen=True)
class Failure:
    """A trial that did not finish, its error in one line, and where its log is."""

    spec: TrialSpec
    error: str
    log: str


def run_experiment(
    name: str, specs: list[TrialSpec], results: str, cluster: Cluster, console: Console
) -> list[Failure]:
    """Runs every trial that is not finished yet; trials of one first model after that model."""
    cluster.check()
    results = results if "://" in results else os.path.abspath(results)
    storage = os.path.abspath(cluster.storage)
    places = Places(named(cluster.data, "--data"), named(cluster.stream, "--stream"), storage)
    pool = ScorerPool(scorers=cluster.scorers, cpus=cluster.scorer_cpus, gpus=cluster.scorer_gpus)
    unique = {spec.trial_id: spec for spec in specs}.values()
    jobs = [Job(spec, name, results, storage, places, cluster.cpus, pool) for spec in unique]
    for folder in ("results", results), ("storage", storage):
        _check_writable(*folder)
    open_jobs = _without_finished(jobs)
    console.print(f"{name}: {len(jobs)} trials, {len(jobs) - len(open_jobs)} of them finished already.")
    if not open_jobs:
        return []
    _connect(cluster)
    check_jobs(open_jobs)
    write_ledger(jobs[0].results, name, jobs[0].storage, [_ledger_row(job) for job in jobs])
    with _live(open_jobs, console):
        first = {job.spec.first_model_id: job for job in open_jobs if not job.first_model.exists()}
        _tune([job for job in first.values() if not job.checkpoint.exists()], cluster, first_stage=True)
        # The longest first: the last ones to run then keep all of the cluster busy.
        failures = _tune(sorted(open_jobs, key=lambda job: -total_work(spec_cost(job.spec))), cluster)
    for failure in failures:
        write_failure(jobs[0].results, failure.spec.trial_id, failure.error, failure.log)
    return failures


def _ledger_row(job: Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "trial_id": spec.trial_id,
        "method": spec.rules.name,
        "dataset": spec.dataset,
        "task_size": spec.task_size,
        "seed": spec.seed,
        "stages": spec.num_tasks,
        "work": total_work(spec_cost(spec)),
    }


def _without_finished(jobs: list[Job]) -> list[Job]:
    """The jobs still to run; those that another experiment has finished are shared with this one."""
    done = finished(jobs[0].results)
    for job in jobs:
        source = done.get(job.spec.trial_id)
        if source is not None and source != job.experiment:
            share(job.results, job.spec.trial_id, source, job.experiment)
    return [job for job in jobs if job.spec.trial_id not in done]


def check_jobs(jobs: list[Job]) -> None:
    """What would stop any trial later, said before the first one starts."""
    from gd_ray.trial import check_inputs, learned_data

    data: dict[Any, Any] = {}
    streams: dict[str, Any] = {}
    for job in jobs:
        spec = job.spec
        key = (spec.dataset, spec.train_per_class, spec.test_per_class)
        if key not in data:
            data[key] = job.places.load_data(*key)
            write_class_names(job.results, spec.dataset, data[key].class_names)
        if spec.rules.external and spec.stream not in streams:
            streams[spec.stream] = job.places.open_stream(spec.stream)
        check_inputs(spec, learned_data(spec, data[key]), streams.get(spec.stream))


def _check_writable(name: str, folder: str) -> None:
    if "://" in folder:
        return
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        probe = Path(folder, f".probe-{os.getpid()}")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(f"{name} {folder!r} cannot be written ({error.strerror}); choose another folder.") from error


def _connect(cluster: Cluster) -> None:
    import ray

    from gd_ray.wild.ray_data import start_ray

    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")
    start_ray(**({"address": cluster.address} if cluster.address else {}))
    available = ray.cluster_resources()  # type: ignore[no-untyped-call]
    wanted = cluster.gpus + cluster.scorers * cluster.scorer_gpus
    if wanted > available.get("GPU", 0):
        raise UserError(
            f"gpus {wanted:g} are asked for each trial, but the cluster has {available.get('GPU', 0):g}; lower --gpus."
        )
    wanted = cluster.cpus + cluster.scorers * cluster.scorer_cpus
    if wanted > available.get("CPU", 0):
        raise UserError(
            f"cpus {wanted:g} are asked for each trial, but the cluster has {available.get('CPU', 0):g}; lower --cpus."
        )


def _tune(jobs: list[Job], cluster: Cluster, *, first_stage: bool = False) -> list[Failure]:
    """One Tune trial for each job, as many at once as fit."""
    if not jobs:
        return []
    from ray import tune

    def resources(config: dict[str, Any]) -> Any:
        scorers = jobs[0].pool.bundles() if jobs[config["job"]].spec.rules.external and not first_stage else []
        # A trial waits while its scorers work, so a trial without scorers may have their CPUs too.
        spare = 0.0 if scorers else cluster.scorers * cluster.scorer_cpus
        own = {"CPU": cluster.cpus + spare, **({"GPU": cluster.gpus} if cluster.gpus else {})}
        return tune.PlacementGroupFactory([own, *scorers])

    def trial(config: dict[str, Any]) -> None:
        run_job(jobs[config["job"]], first_stage_only=first_stage)
        tune.report({"finished": True})

    wave = "first-models" if first_stage else "trials"
    tuner = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space={"job": tune.grid_search(list(range(len(jobs))))},
        tune_config=tune.TuneConfig(trial_dirname_creator=lambda t: jobs[t.config["job"]].spec.trial_id),
        run_config=tune.RunConfig(
            name=f"{wave}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}",
            storage_path=f"{jobs[0].storage}/tune",
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=cluster.retries),
        ),
    )
    failures = []
    grid = tuner.fit()
    for result in (grid[k] for k in range(len(grid))):
        if result.error is not None and result.config is not None:
            lines = str(result.error).strip().splitlines()
            failures.append(Failure(jobs[result.config["job"]].spec, lines[-1], f"{result.path}/error.txt"))
    return failures


@contextmanager
def _live(jobs: list[Job], console: Console) -> Iterator[None]:
    """A bar over the work of all jobs, moved by what the trials write about themselves."""
    work = {job.spec.trial_id: total_work(spec_cost(job.spec)) for job in jobs}
    stop = threading.Event()
    with progress_bar(console) as progress:
        bar = progress.add_task("starting", total=sum(work.values()))

        def watch() -> None:
            while not stop.wait(1.0):
                over = finished(jobs[0].results)
                done = sum(work[job.spec.trial_id] for job in jobs if job.spec.trial_id in over)
                running = []
                for job in jobs:
                    state = read_progress(job.storage, job.spec.trial_id)
                    if state is not None and job.spec.trial_id not in over:
                        done += work[job.spec.trial_id] * state["share"]
                        place = f"stage {state['stage']} of {job.spec.num_tasks}, {state['step']}"
                        running.append(f"{job.spec.rules.title} seed {job.spec.seed}: {place}")
                count = sum(job.spec.trial_id in over for job in jobs)
                text = "; ".join([f"{count} of {len(jobs)} trials", *running[:3]])
                progress.update(bar, completed=done, description=text)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()
