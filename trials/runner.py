"""Ray Tune: schedules the trials of an experiment, resumes them, retries them, and shows their progress."""

import hashlib
import logging
import os
import pickle
import time
import traceback
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from uuid import uuid4

from rich.console import Console

from gd_ray.errors import UserError
from gd_ray.failures import ExplainedError, explain, innermost, is_users, last_line
from gd_ray.heartbeat import Progress, is_dead, progress_file, read_progress, this_host
from gd_ray.naming import counted
from gd_ray.plugins import load_plugins, loaded_plugins
from gd_ray.ray_utils import connect, switches
from gd_ray.rows import column_name
from gd_ray.spec import TrialSpec
from gd_ray.storage import check_writable
from gd_ray.store import Selection, clear_failure, finished, trial_states, write_failure, write_selection
from gd_ray.trial_result import StageResult
from trials.claim import run_heartbeat
from trials.console import live_view
from trials.cost import shares_done, spec_cost, spec_work
from trials.grid import unique
from trials.interruption import RayDiedError, watched_servers
from trials.preflight import check_devices, check_jobs
from trials.registry import DataLocations, Sizes
from trials.resources import Cluster, TrialResources, parse_folders, resolve_resources
from trials.worker import Job, run_job

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
    results = results if "://" in results else os.path.abspath(results)
    storage = os.path.abspath(cluster.storage)
    locations = DataLocations(parse_folders(cluster.data, "--data"), parse_folders(cluster.stream, "--stream"), storage)
    run = uuid4().hex
    jobs = [Job(spec, results, storage, locations, run, cluster.keep_models) for spec in unique(specs)]
    for folder in ("results", results), ("storage", storage):
        check_writable(*folder)
    _remove_abandoned_state(Path(storage, "tune"))
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
                notes = [*check_devices(nodes, resources.gpus, open_jobs), *check_jobs(open_jobs)]
            for note in notes:
                console.print(f"Note: {note}", markup=False, highlight=False, soft_wrap=True)
            write_selection(results, selection)
            for job in open_jobs:
                clear_failure(results, job.spec.trial_id)  # it is waiting or running again
            with live_view(lambda: trial_states(results, [selection]), console):
                first = shared_first_models(open_jobs)
                failed = _tune(first, resolve_resources(cluster, nodes, (), len(first)), cluster, first_stage=True)
                refused = {failure.spec.first_model_id: failure for failure in failed if failure.refused}
                failures = [
                    replace(refused[job.spec.first_model_id], spec=job.spec)
                    for job in open_jobs
                    if job.spec.first_model_id in refused and not job.saved
                ]
                for failure in failures:
                    write_failure(results, failure.spec.trial_id, failure.error, failure.log)
                hopeless = {failure.spec.trial_id for failure in failures}
                open_jobs = [job for job in open_jobs if job.spec.trial_id not in hopeless]
                # Trials that another run holds come last; else the longest first, to keep the whole cluster busy.
                work = {row["trial_id"]: row["work"] for row in selection.trials}
                order = sorted(open_jobs, key=lambda job: (job.progress.exists(), -work[job.spec.trial_id]))
                return [*failures, *_tune(order, resources, cluster)]
    except (KeyboardInterrupt, RayDiedError):
        _stop_trials(open_jobs, run)
        raise


def _stop_trials(jobs: list[Job], run: str) -> None:
    """Release the trials that the run holds, and disconnect from Ray, which ends its processes."""
    import ray

    for job in jobs:
        if (owner := read_progress(job.progress)) and owner.run == run:
            job.progress.unlink(missing_ok=True)
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
    waiting = [job for job in jobs if not job.first_model.exists() and not job.checkpoint.exists()]
    number = Counter(job.spec.first_model_id for job in waiting)
    return list({job.spec.first_model_id: job for job in waiting if number[job.spec.first_model_id] > 1}.values())


def _tune(
    jobs: list[Job], resources: TrialResources, cluster: Cluster, *, first_stage: bool = False
) -> list[TrialFailure]:
    """Run one Tune trial for each job, as many at once as fit. Its config is the flat spec and the trial's id."""
    if not jobs:
        return []
    from ray import tune
    from ray.tune.logger import TBXLoggerCallback

    from gd_ray.wild.ray_scoring import ScorerPool

    by_id = {job.spec.trial_id: job for job in jobs}
    ranks = {trial_id: rank for rank, trial_id in enumerate(by_id)}
    # Bytes, so that an actor can load the plugins before it unpickles what may need them.
    plugins, pickled = loaded_plugins(), {trial_id: pickle.dumps(job) for trial_id, job in by_id.items()}
    variables = switches()
    threads, folder = resources.threads, f"{jobs[0].storage}/tune"
    kind = "first-models" if first_stage else "trials"
    name = f"{kind}-{time.strftime('%Y%m%d-%H%M%S')}-{_host_mark()}-{os.getpid()}"

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
                raise ExplainedError(text) from error
            log = Path(folder, name, job.spec.trial_id, "error.txt")
            log.parent.mkdir(parents=True, exist_ok=True)
            log.write_text(traceback.format_exc())
            tune.report({"refused": text})  # rather than an error, which Tune would retry
        else:
            tune.report({"finished": 1})

    class FailureWriter(tune.Callback):
        """Stores a failure when it happens: the run may take days more, or be killed."""

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            with suppress(OSError):
                self._write(trial, last_line(Path(trial.error_file).read_text()))

        def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            if "refused" in trial.last_result:
                self._write(trial, trial.last_result["refused"])

        def _write(self, trial: Any, error: str) -> None:
            with suppress(OSError, UserError):  # a full disk, say: Tune would end all other trials for it
                write_failure(jobs[0].results, trial.config["trial_id"], error, f"{trial.path}/error.txt")

    tuner = tune.Tuner(
        tune.with_resources(trial, bundles),
        param_space=tune.grid_search([{"trial_id": job.spec.trial_id, **job.spec.flat()} for job in jobs]),
        tune_config=tune.TuneConfig(
            # A new process for each trial costs ten seconds of imports; nothing of a trial outlives it in its process.
            reuse_actors=True,
            trial_dirname_creator=lambda trial: trial.config["trial_id"],
        ),
        run_config=tune.RunConfig(
            name=name,
            storage_path=folder,
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=cluster.retries),
            callbacks=[
                *([] if first_stage else [FailureWriter()]),
                *([TBXLoggerCallback()] if cluster.tensorboard else []),  # type: ignore[no-untyped-call]
            ],
        ),
    )
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)  # tracebacks of failed trials are in their logs
    try:
        grid = tuner.fit()
        return [failure for k in range(len(grid)) if (failure := _failure(grid[k], by_id))]
    finally:
        _remove_tune_state(Path(folder, name))


def _failure(result: Any, jobs: dict[str, Job]) -> TrialFailure | None:
    """Return why a trial did not finish; its folder has the trial's id, also if it failed before its first report."""
    metrics = result.metrics or {}
    if "finished" in metrics:
        return None
    error = metrics.get("refused") or last_line(str(result.error or "Ray Tune ended without finishing it"))
    spec = jobs[Path(result.path).name].spec
    return TrialFailure(spec, error, f"{result.path}/error.txt", refused="refused" in metrics)


def _host_mark() -> str:
    return hashlib.sha256(this_host().encode()).hexdigest()[:8]


def _remove_abandoned_state(folder: Path) -> None:
    """Delete what runs of this machine left whose processes were killed."""
    for path in folder.glob(f"*-{_host_mark()}-*"):
        if is_dead(Progress(host=this_host(), pid=int(path.name.rpartition("-")[2]))):
            _remove_tune_state(path)


def _remove_tune_state(folder: Path) -> None:
    """Delete what Tune would resume from, which trials do not; keep logs of failures and events of TensorBoard."""
    with suppress(OSError):
        for path in (*folder.glob("*"), *folder.glob("*/error.pkl")):
            if path.is_file():
                path.unlink()
        for path in (*folder.iterdir(), folder):
            with suppress(OSError):  # not empty
                path.rmdir()


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
