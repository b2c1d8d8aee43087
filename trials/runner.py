"""Ray Tune: schedules the trials of an experiment, resumes them, retries them, and shows their progress."""

import logging
import os
import pickle
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rich.console import Console

from gd_ray.errors import UserError
from gd_ray.failures import ExplainedError, LostMachineError, explain, innermost, is_users, last_line, lost_machine
from gd_ray.heartbeat import progress_file, read_progress
from gd_ray.naming import counted
from gd_ray.plugins import load_plugins, loaded_plugins
from gd_ray.ray_utils import connect, switches
from gd_ray.rows import column_name
from gd_ray.spec import TrialSpec
from gd_ray.storage import (
    absolute,
    check_writable,
    delete_file,
    is_remote,
    join,
    without_credentials,
    write_atomic,
)
from gd_ray.store import Selection, clear_failures, finished, trial_states, write_failure, write_selection
from gd_ray.trial_result import StageResult
from trials.claim import run_heartbeat
from trials.console import live_view
from trials.cost import shares_done, spec_cost, spec_work
from trials.grid import unique
from trials.interruption import RayDiedError, watched_servers
from trials.preflight import check_clocks, check_devices, check_jobs
from trials.registry import DataLocations, Sizes
from trials.resources import Cluster, TrialResources, parse_folders, resolve_resources
from trials.tune_state import host_mark, remove_abandoned_state, remove_tune_state, tune_folder
from trials.worker import Job, run_job, saved_files

if TYPE_CHECKING:
    from trials.attempts import Attempts

_STORE_VIEW_S = 10.0
"""Time between two views of a run whose results or storage are in an object store."""
_GCS_RESTARTS_S = 50.0
"""Time that a cluster has to start its GCS again; after a minute without it, Ray ends the process."""


@dataclass(frozen=True)
class TrialFailure:
    """A trial that did not finish, its error in one line, and the path of its log."""

    spec: TrialSpec
    error: str
    log: str
    refused: bool = False
    """Another attempt would fail alike."""


def run_experiment(
    name: str, specs: list[TrialSpec], results: str, cluster: Cluster, console: Console, command: str | None = None
) -> list[TrialFailure]:
    """Run every trial that is not finished yet, first models that several trials share before the trials.

    The command line is stored with the results, for reproduction.
    """
    cluster.check()
    results, storage = absolute(results), absolute(cluster.storage)
    locations = DataLocations(parse_folders(cluster.data, "--data"), parse_folders(cluster.stream, "--stream"), storage)
    run = uuid4().hex
    jobs = [Job(spec, results, storage, locations, run, cluster.keep_models) for spec in unique(specs)]
    for folder in ("results", results), ("storage", storage):
        check_writable(*folder)
    remove_abandoned_state(storage)
    done = finished(results)
    open_jobs = [job for job in jobs if job.spec.trial_id not in done]
    console.print(f"{name}: {counted(len(jobs), 'trial')}, {len(jobs) - len(open_jobs)} of them finished already.")
    if not open_jobs:
        write_selection(results, _selection(name, storage, command, jobs))
        return []
    windows = {job.spec.window for job in open_jobs if job.spec.method.external}
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")  # Tune prints nothing
    os.environ["TUNE_DISABLE_SIGINT_HANDLER"] = "1"  # Tune's takes ten seconds to save what is never read
    with console.status("starting Ray"):
        nodes = connect(cluster.address)
    resources = resolve_resources(cluster, nodes, windows, len(open_jobs))
    selection = _selection(name, storage, command, jobs)
    restarts_s = _GCS_RESTARTS_S if cluster.address or "RAY_ADDRESS" in os.environ else 0.0
    try:
        with watched_servers(restarts_s), run_heartbeat(progress_file(storage, selection.digest), run):
            with console.status(f"reading data sets and streams{', checking GPUs' if resources.gpus else ''}"):
                notes = [
                    *check_clocks(nodes),
                    *check_devices(nodes, resources.gpus, open_jobs),
                    *check_jobs(open_jobs),
                ]
            for note in notes:
                console.print(f"Note: {note}", markup=False, highlight=False, soft_wrap=True)
            write_selection(results, selection)
            clear_failures(results, {job.spec.trial_id for job in open_jobs})  # they are waiting or running again
            every = _STORE_VIEW_S if is_remote(results) or is_remote(storage) else 1.0
            with live_view(lambda: trial_states(results, [selection]), console, every=every):
                first = shared_first_models(open_jobs)
                failed = _tune(first, resolve_resources(cluster, nodes, (), len(first)), cluster, first_stage=True)
                refused = {failure.spec.first_model_id: failure for failure in failed if failure.refused}
                saved = saved_files(storage)
                failures = [
                    replace(refused[job.spec.first_model_id], spec=job.spec)
                    for job in open_jobs
                    if job.spec.first_model_id in refused and not job.saved(saved.__contains__)
                ]
                for failure in failures:
                    write_failure(results, failure.spec.trial_id, failure.error, failure.log)
                hopeless = {failure.spec.trial_id for failure in failures}
                open_jobs = [job for job in open_jobs if job.spec.trial_id not in hopeless]
                # Trials that another run holds come last; else the longest first, to keep the whole cluster busy.
                work = {row["trial_id"]: row["work"] for row in selection.trials}
                order = sorted(open_jobs, key=lambda job: (job.progress in saved, -work[job.spec.trial_id]))
                return [*failures, *_tune(order, resources, cluster)]
    except (KeyboardInterrupt, RayDiedError):
        _stop_trials(open_jobs, run)
        raise


def _stop_trials(jobs: list[Job], run: str) -> None:
    """Release the trials that the run holds, and disconnect from Ray, which ends its processes."""
    import ray

    with suppress(OSError, UserError):
        held = saved_files(jobs[0].storage) if jobs else set()
        for path in held.intersection(job.progress for job in jobs):
            if (owner := read_progress(path)) and owner.run == run:
                delete_file(path)
    ray.shutdown()


def _selection(name: str, storage: str, command: str | None, jobs: list[Job]) -> Selection:
    return Selection(name, storage, command, [selection_row(job.spec, job.locations.sizes(job.spec)) for job in jobs])


def selection_row(spec: TrialSpec, sizes: Sizes | None = None) -> dict[str, Any]:
    """Return a row of a selection: the spec, and its work for estimates of the time left."""
    return {
        "trial_id": spec.trial_id,
        **spec.flat(),
        "stages": spec.num_tasks,
        "work": spec_work(spec, sizes),
        "shares": shares_done(spec_cost(spec, sizes)),
        "first_model": spec.first_model_id,
    }


def shared_first_models(jobs: list[Job]) -> list[Job]:
    """Return a job for each first model that several jobs wait for; a trial with a model of its own trains it."""
    saved = saved_files(jobs[0].storage) if jobs else set()
    waiting = [job for job in jobs if not job.saved(saved.__contains__)]
    number = Counter(job.spec.first_model_id for job in waiting)
    return list({job.spec.first_model_id: job for job in waiting if number[job.spec.first_model_id] > 1}.values())


def _tune(
    jobs: list[Job], resources: TrialResources, cluster: Cluster, *, first_stage: bool = False
) -> list[TrialFailure]:
    """Run jobs on Tune, and those again that lost their machine at an attempt that Tune did not repeat."""
    if not jobs:
        return []
    from trials.attempts import Attempts

    kind = "first-models" if first_stage else "trials"
    name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{host_mark()}-{os.getpid()}"
    results, storage = jobs[0].results, jobs[0].storage
    logs = {job.spec.trial_id: join(storage, f"tune/{name}/{job.spec.trial_id}/error.txt") for job in jobs}

    def on_failure(trial: Any, error: str) -> None:
        """Store a failure when it happens: the run may take days more, or be killed."""
        trial_id = trial.config["trial_id"]
        with suppress(OSError, UserError):  # a full disk, say: Tune would end all other trials for it
            if is_remote(storage) and trial.error_file:
                write_atomic(logs[trial_id], Path(trial.error_file).read_bytes())
            if not first_stage:
                write_failure(results, trial_id, error, logs[trial_id])

    attempts = Attempts(cluster.retries, "GPU" if resources.gpus else "CPU", on_failure)
    failures: list[TrialFailure] = []
    while jobs:
        with tune_folder(storage) as folder:
            failed = _tune_once(jobs, resources, cluster, attempts, folder / name, logs, first_stage=first_stage)
        lost = attempts.take_lost()
        failures += [failure for failure in failed if failure.spec.trial_id not in lost]
        jobs = [job for job in jobs if job.spec.trial_id in lost]
    return failures


def _tune_once(
    jobs: list[Job],
    resources: TrialResources,
    cluster: Cluster,
    attempts: "Attempts",
    folder: Path,
    logs: dict[str, str],
    *,
    first_stage: bool,
) -> list[TrialFailure]:
    """Run one Tune trial for each job, as many at once as fit. Its config is the flat spec and the trial's id."""
    from ray import tune
    from ray.tune.logger import TBXLoggerCallback

    from gd_ray.wild.ray_scoring import ScorerPool

    by_id = {job.spec.trial_id: job for job in jobs}
    ranks = {trial_id: rank for rank, trial_id in enumerate(by_id)}
    # Bytes, so that an actor can load the plugins before it unpickles what may need them.
    plugins, pickled = loaded_plugins(), {trial_id: pickle.dumps(job) for trial_id, job in by_id.items()}
    variables, threads = switches(), resources.threads

    def share_of(config: dict[str, Any]) -> float:
        return resources.share(ranks[config["trial_id"]])

    def pool_of(config: dict[str, Any]) -> ScorerPool | None:
        scorers = resources.scorers_for(config["window"]) if config["method_external"] and not first_stage else 0
        if not scorers:
            return None
        gpus = share_of(config)
        units = 8 if gpus else 2  # a GPU waits for the first unit of each batch of them
        return ScorerPool(scorers=scorers, cpus=resources.scorer_cpus, trial_gpus=gpus, units=units)

    def bundles(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        pool = pool_of(config)
        own = resources.bundles(ranks[config["trial_id"]], pool.scorers if pool else 0)
        return tune.PlacementGroupFactory(own, strategy=resources.strategy)

    def trial(config: dict[str, Any]) -> None:
        os.environ.update(variables)
        load_plugins(*plugins)
        job: Job = pickle.loads(pickled[config["trial_id"]])
        try:
            run_job(job, threads, pool_of(config), lambda s: tune.report(_scalars(s)), first_stage_only=first_stage)
        except Exception as error:
            text = explain(error, gpus=share_of(config), batch=f"batches of {job.spec.batch_size} images in a trial")
            if not is_users(innermost(error)):
                raise (LostMachineError if lost_machine(error) else ExplainedError)(text) from error
            write_atomic(logs[job.spec.trial_id], traceback.format_exc().encode())
            tune.report({"refused": text})  # rather than an error, which Tune would retry
        else:
            tune.report({"finished": 1})

    tuner = tune.Tuner(
        tune.with_resources(trial, bundles),
        param_space=tune.grid_search([{"trial_id": job.spec.trial_id, **job.spec.flat()} for job in jobs]),
        tune_config=tune.TuneConfig(
            # A new process for each trial costs ten seconds of imports; nothing of a trial outlives it in its process.
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.config["trial_id"],
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(folder.parent),
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=cluster.retries),
            callbacks=[
                attempts,
                *([TBXLoggerCallback()] if cluster.tensorboard else []),  # type: ignore[no-untyped-call]
            ],
        ),
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # tracebacks of failed trials are in their logs
    try:
        grid = tuner.fit()
        return [failure for k in range(len(grid)) if (failure := _failure(grid[k], by_id, logs))]
    finally:
        remove_tune_state(folder)


def _failure(result: Any, jobs: dict[str, Job], logs: dict[str, str]) -> TrialFailure | None:
    """Return why a trial did not finish; its folder has the trial's id, also if it failed before its first report."""
    metrics, trial_id = result.metrics or {}, Path(result.path).name
    if "finished" in metrics:
        return None
    error = metrics.get("refused") or last_line(str(result.error or "Ray Tune ended without finishing it"))
    return TrialFailure(jobs[trial_id].spec, error, without_credentials(logs[trial_id]), refused="refused" in metrics)


def _scalars(stage: StageResult) -> dict[str, float]:
    """Return what TensorBoard shows of a stage."""
    seconds, images = sum(stage.seconds.values()), sum(stage.images.values())
    return {
        "stage": stage.stage,
        "accuracy": sum(stage.hits) / sum(stage.totals),
        "accuracy_of_current_task": stage.hits[-1] / stage.totals[-1],
        "accuracy_of_first_task": stage.hits[0] / stage.totals[0],
        "images_per_second": images / seconds if seconds else 0.0,
        **{f"loss_{column_name(name)}": value for name, value in stage.losses.items()},
    }
