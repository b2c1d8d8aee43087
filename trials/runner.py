"""Ray Tune: schedules the trials of an experiment, resumes them, retries them, and shows their progress."""

import logging
import os
import pickle
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from rich.console import Console

from gd_ray.errors import Unreachable, UserError
from gd_ray.failures import ExplainedError, OutageError, explain, innermost, is_outage, is_users
from gd_ray.heartbeat import progress_file, read_progress
from gd_ray.naming import counted
from gd_ray.plugins import load_plugins, loaded_plugins
from gd_ray.ray_utils import connect, exit_without_destructors, machines, switches
from gd_ray.rows import column_name
from gd_ray.spec import TrialSpec
from gd_ray.storage import (
    absolute,
    check_writable,
    delete_file,
    exists,
    is_remote,
    join,
    without_credentials,
    write_atomic,
)
from gd_ray.store import (
    Selection,
    TrialState,
    clear_failures,
    finished,
    trial_states,
    write_failure,
    write_selection,
)
from gd_ray.trial_result import StageResult
from trials.claim import run_heartbeat
from trials.console import live_view
from trials.cost import shares_done, spec_cost, spec_work
from trials.grid import unique
from trials.interruption import RayDiedError, explained_memory, limited_start, watched_servers
from trials.outage import outlasted
from trials.preflight import check_clocks, check_devices, check_jobs
from trials.registry import DataLocations, Sizes
from trials.resources import Cluster, TrialResources, parse_folders, resolve_resources
from trials.tune_state import remove_abandoned_files, tune_folder
from trials.worker import Job, run_job, saved_files

if TYPE_CHECKING:
    from trials.attempts import Attempts
    from trials.queue import JobQueue

_STORE_VIEW_S = 10.0
"""Time between two views of a run whose results or storage are in an object store."""
_STARTING = 16
"""Trials that wait for their processes to start at one time; the queue decides on the others later."""
_GCS_RESTARTS_S = 50.0
"""Time that a cluster has to start its GCS again; after a minute without it, Ray ends the process."""


@dataclass(frozen=True)
class TrialFailure:
    """A trial that did not finish, its error in one line, and the path of its log."""

    spec: TrialSpec
    error: str
    log: str


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
    remove_abandoned_files(storage)
    done = finished(results)
    open_jobs = [job for job in jobs if job.spec.trial_id not in done]
    console.print(f"{name}: {counted(len(jobs), 'trial')}, {len(jobs) - len(open_jobs)} of them finished already.")
    if not open_jobs:
        write_selection(results, _selection(name, storage, command, jobs))
        return []
    windows = {job.spec.window for job in open_jobs if job.spec.method.external}
    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")  # Tune prints nothing
    # Runs never resume from Tune's own state: do not save it every ten seconds, nor for ten more after a signal.
    os.environ.update(TUNE_GLOBAL_CHECKPOINT_S="inf", TUNE_DISABLE_SIGINT_HANDLER="1")
    with console.status("starting Ray"), limited_start():
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
            with live_view(lambda: _states(selection, results), console, every=every):
                held, work = saved_files(storage), {row["trial_id"]: row["work"] for row in selection.trials}
                # Trials that another run holds come last; else the longest first, to keep the whole cluster busy.
                order = sorted(open_jobs, key=lambda job: (job.progress in held, -work[job.spec.trial_id]))
                return _tune(order, resources, lambda number: resolve_resources(cluster, nodes, (), number), cluster)
    except (KeyboardInterrupt, RayDiedError):
        _stop_trials(open_jobs, run)
        raise


def _states(selection: Selection, results: str) -> list[TrialState]:
    """Return the states of the trials of a run; if its folders are away, raise rather than count all as waiting."""
    for folder in results, selection.storage:
        if not is_remote(folder) and not exists(folder):
            raise Unreachable(f"{folder!r} is not there")
    return trial_states(results, [selection])


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


def _tune(
    jobs: list[Job], resources: TrialResources, of_first_models: Callable[[int], TrialResources], cluster: Cluster
) -> list[TrialFailure]:
    """Run jobs on Tune, and store failures when they happen: the run may take days more, or be killed."""
    from trials.attempts import Attempts
    from trials.queue import JobQueue, entries_of

    entries = entries_of(jobs)
    name = f"trials-{time.strftime('%Y%m%d-%H%M%S')}-{jobs[0].run[:8]}"
    results, storage = jobs[0].results, jobs[0].storage
    logs = {entry.name: join(storage, f"tune/{name}/{entry.name}/error.txt") for entry in entries}
    failures: list[TrialFailure] = []

    def fail(failed: list[Job], error: str, log: str) -> None:
        failures.extend(TrialFailure(job.spec, error, without_credentials(log)) for job in failed)
        with suppress(OSError, UserError):  # a full disk, say: Tune would end all other trials for it
            for job in failed:
                write_failure(results, job.spec.trial_id, error, log)

    def on_failure(trial: Any, error: str) -> None:
        entry, failed = queue.entries[trial.config["job"]], list[Job]()
        if not entry.first_stage:
            failed = [entry.job]
        elif "refused" in trial.last_result:  # else trials try to train it themselves
            failed = queue.drop(entry.job.spec.first_model_id)
        fail(failed, error, logs[entry.name])
        if not cluster.tensorboard and trial.error_file:
            with suppress(OSError, UserError):
                write_atomic(logs[entry.name], Path(trial.error_file).read_bytes())

    attempts = Attempts(cluster.retries, "GPU" if resources.gpus else "CPU", on_failure)
    queue = JobQueue(entries, attempts.take_lost)
    shares = (of_first_models(len(entries) - len(jobs)), resources)
    with tune_folder(storage, name, events=cluster.tensorboard) as folder:
        _run_queue(queue, shares, attempts, cluster, folder, logs)
    remove_abandoned_files(storage)  # those of processes that had not ended when this run began
    for entry in queue.left():
        fail([entry.job], "Ray Tune ended without finishing it", logs[entry.name])
    return failures


def _run_queue(
    queue: "JobQueue",
    resources: tuple[TrialResources, TrialResources],
    attempts: "Attempts",
    cluster: Cluster,
    folder: Path,
    logs: dict[str, str],
) -> None:
    """Run a Tune trial for each job of a queue, as many at once as fit; `resources` of first models, and of trials."""
    from ray import tune
    from ray.tune.logger import TBXLoggerCallback

    from gd_ray.wild.ray_scoring import ScorerPool

    # Bytes, so that an actor can load the plugins before it unpickles what may need them.
    plugins, pickled = loaded_plugins(), {name: pickle.dumps(entry.job) for name, entry in queue.entries.items()}
    variables, ranks = switches(), queue.ranks()
    # Tune keeps the last report of every trial for as long as a run lasts.
    reported = _scalars if cluster.tensorboard else _stage_number

    def resources_of(config: dict[str, Any]) -> TrialResources:
        return resources[0 if config["first_stage"] else 1]

    def share_of(config: dict[str, Any]) -> float:
        return resources_of(config).share(ranks[config["job"]])

    def pool_of(config: dict[str, Any]) -> ScorerPool | None:
        own, samples = resources_of(config), config["method_external"] and not config["first_stage"]
        scorers = own.scorers_for(config["window"]) if samples else 0
        if not scorers:
            return None
        gpus = share_of(config)
        units = 8 if gpus else 2  # a GPU waits for the first unit of each batch of them
        return ScorerPool(scorers=scorers, cpus=own.scorer_cpus, trial_gpus=gpus, units=units)

    def bundles(config: dict[str, Any]) -> tune.PlacementGroupFactory:
        own, pool = resources_of(config), pool_of(config)
        reserved = own.bundles(ranks[config["job"]], pool.scorers if pool else 0)
        return tune.PlacementGroupFactory(reserved, strategy=own.strategy)

    def trial(config: dict[str, Any]) -> None:
        exit_without_destructors()
        os.environ.update(variables)
        load_plugins(*plugins)
        job: Job = pickle.loads(pickled[config["job"]])
        how = {"first_stage_only": config["first_stage"], "wait_s": config["wait_s"]}
        threads = resources_of(config).threads
        try:
            ended = run_job(job, threads, pool_of(config), lambda stage: tune.report(reported(stage)), **how)
        except Exception as error:
            text = explain(error, gpus=share_of(config), batch=f"batches of {job.spec.batch_size} images in a trial")
            outage = is_outage(error) or outlasted(job.results, job.storage)
            if outage or not is_users(innermost(error)):
                raise (OutageError if outage else ExplainedError)(text) from error
            write_atomic(logs[config["job"]], traceback.format_exc().encode())
            tune.report({"refused": text})  # rather than an error, which Tune would retry
        else:
            tune.report({"finished" if ended else "held": 1})

    cpus = sum(int(machine.get("CPU", 0)) for machine in machines())
    os.environ["TUNE_MAX_PENDING_TRIALS_PG"] = str(max(1, min(cpus, _STARTING)))
    tuner = tune.Tuner(
        tune.with_resources(trial, bundles),
        tune_config=tune.TuneConfig(
            search_alg=queue,
            num_samples=-1,
            # A new process for each trial costs ten seconds of imports; nothing of a trial outlives it in its process.
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.config["job"],
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
    for logger in ("ray.tune", "ray.train"):  # tracebacks of failed trials are in their logs; storage may come back
        logging.getLogger(logger).setLevel(logging.CRITICAL)
    with explained_memory():
        tuner.fit()


def _stage_number(stage: StageResult) -> dict[str, float]:
    return {"stage": stage.stage}


def _scalars(stage: StageResult) -> dict[str, float]:
    """Return what TensorBoard shows of a stage."""
    seconds, images = sum(stage.seconds.values()), sum(stage.images.values())
    return {
        **_stage_number(stage),
        "accuracy": sum(stage.hits) / sum(stage.totals),
        "accuracy_of_current_task": stage.hits[-1] / stage.totals[-1],
        "accuracy_of_first_task": stage.hits[0] / stage.totals[0],
        "images_per_second": images / seconds if seconds else 0.0,
        **{f"loss_{column_name(name)}": value for name, value in stage.losses.items()},
    }
