"""Ray Tune: schedules the trials of an experiment, resumes them, retries them, and shows how far they are."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import uuid4

from rich.console import Console

from gd_ray.errors import UserError
from gd_ray.filesystems import check_writable
from gd_ray.results import StageResult
from gd_ray.spec import TrialSpec
from trials.checks import check_jobs
from trials.cost import shares_done, spec_cost, spec_work
from trials.grid import unique
from trials.ledger import clear_failure, states_of, write_failure, write_ledger
from trials.options import Cluster, Share, fitted, named
from trials.results import finished, share
from trials.sources import Places
from trials.view import live_view
from trials.worker import Job, run_job

_ANSWER = 7.0
"""Seconds in which a cluster must answer."""
_REFUSED = 3
_ASK = f"""
import sys, ray
from ray._private import services
from ray._private.authentication.authentication_token_setup import ensure_token_if_auth_enabled
from ray._raylet import GcsClient
try:
    ensure_token_if_auth_enabled(create_token_if_missing=False)
    address = services.canonicalize_bootstrap_address(sys.argv[1])
    sys.exit(0 if address and GcsClient(address=address) else 1)
except ray.exceptions.AuthenticationError:
    sys.exit({_REFUSED})
"""


@dataclass(frozen=True)
class Failure:
    """A trial that did not finish, its error in one line, and where its log is."""

    spec: TrialSpec
    error: str
    log: str


def run_experiment(
    name: str, specs: list[TrialSpec], results: str, cluster: Cluster, console: Console, command: str | None = None
) -> list[Failure]:
    """Runs every trial that is not finished yet; trials of one first model after that model.

    The command that was typed is kept with the results, for who wants to do it again.
    """
    cluster.check()
    results = results if "://" in results else os.path.abspath(results)
    storage = os.path.abspath(cluster.storage)
    places = Places(named(cluster.data, "--data"), named(cluster.stream, "--stream"), storage)
    run = uuid4().hex
    jobs = [Job(spec, name, results, storage, places, run) for spec in unique(specs)]
    rows = [_ledger_row(job) for job in jobs]
    for folder in ("results", results), ("storage", storage):
        check_writable(*folder)
    open_jobs = _without_finished(jobs)
    console.print(f"{name}: {len(jobs)} trials, {len(jobs) - len(open_jobs)} of them finished already.")
    if not open_jobs:
        write_ledger(results, name, storage, rows, command)
        return []
    windows = {job.spec.window for job in open_jobs if job.spec.rules.external}
    given = fitted(cluster, _connect(cluster.address), windows)
    with _terminated_as_interrupted():
        for note in check_jobs(open_jobs):
            console.print(f"Note: {note}", markup=False, highlight=False, soft_wrap=True)
        write_ledger(results, name, storage, rows, command)
        for job in open_jobs:
            clear_failure(results, job.spec.trial_id)  # it gets another chance, and is waiting or running until then
        with live_view(lambda: states_of(results, name, storage, rows), console):  # not those of earlier selections
            _tune(of_shared_first_models(open_jobs), given, cluster, first_stage=True)
            # Trials that another run is at come last; else the longest first, so that the last ones keep all of the
            # cluster busy.
            order = sorted(open_jobs, key=lambda job: (job.progress.exists(), -spec_work(job.spec)))
            return _tune(order, given, cluster)


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Ends a run on SIGTERM, which batch systems and `kill` send, as on Ctrl-C; Ray's own handler dumps its stack."""
    if threading.current_thread() is not threading.main_thread():  # only there may handlers be set
        yield
        return

    def interrupt(_: int, frame: FrameType | None) -> None:
        handler = signal.getsignal(signal.SIGINT)
        if not callable(handler):  # a shell's background job ignores Ctrl-C
            raise KeyboardInterrupt
        handler(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _ledger_row(job: Job) -> dict[str, Any]:
    spec = job.spec
    return {
        "trial_id": spec.trial_id,
        "method": spec.rules.name,
        "dataset": spec.dataset,
        "task_size": spec.task_size,
        "seed": spec.seed,
        "stages": spec.num_tasks,
        "work": spec_work(spec),
        "shares": shares_done(spec_cost(spec)),
        "first_model": spec.first_model_id,
    }


def _without_finished(jobs: list[Job]) -> list[Job]:
    """The jobs still to run; those that another experiment has finished are shared with this one."""
    done = finished(jobs[0].results)
    for job in jobs:
        sources = done.get(job.spec.trial_id, {job.experiment})
        if job.experiment not in sources:
            share(job.results, job.spec.trial_id, min(sources), job.experiment)
    return [job for job in jobs if job.spec.trial_id not in done]


def of_shared_first_models(jobs: list[Job]) -> list[Job]:
    """A job for each first model that several jobs wait for; a trial that is alone with its own trains it itself."""
    waiting = [job for job in jobs if not job.first_model.exists() and not job.checkpoint.exists()]
    number = Counter(job.spec.first_model_id for job in waiting)
    return list({job.spec.first_model_id: job for job in waiting if number[job.spec.first_model_id] > 1}.values())


def _connect(address: str | None) -> list[dict[str, float]]:
    """Connects to a cluster that answers, or starts a Ray on this machine; what each machine has."""
    import ray
    from ray._raylet import Config  # type: ignore[attr-defined]

    from gd_ray.wild.on_ray import check_environment, start_ray

    os.environ.update(RAY_AIR_NEW_OUTPUT="0", TUNE_DISABLE_AUTO_CALLBACK_LOGGERS="1")
    if not ray.is_initialized():
        check_environment(address)
    if address is not None and not ray.is_initialized():
        _check_answers(address)
        Config.initialize("")  # reads again whether to show a token
        start_ray(address=address)
    start_ray()
    return [node["Resources"] for node in ray.nodes() if node["Alive"]]  # type: ignore[no-untyped-call]


def _check_answers(address: str) -> None:
    """Ray itself waits for minutes, in a call that cannot be interrupted; so another process asks first."""
    if "://" in address:
        raise UserError(
            f"--address {address!r} is no cluster's own address; give host:6379 as 'ray start --head' printed it, or "
            f"'auto' on a machine of the cluster."
        )
    answer = _answer(address)
    if answer == _REFUSED and "RAY_AUTH_MODE" not in os.environ:
        # 'ray start' wants a token of every caller where its machine has one; callers must be told to show theirs.
        answer = _answer(address, RAY_AUTH_MODE="token")
        if not answer:
            os.environ["RAY_AUTH_MODE"] = "token"
    if answer == _REFUSED:
        raise UserError(
            f"--address {address!r} wants a token that it was not shown; copy ~/.ray/auth_token from the machine where "
            f"the cluster was started, and leave RAY_AUTH_MODE unset or set it to token."
        )
    if answer:
        raise UserError(
            f"--address {address!r} does not answer; start a cluster there with 'ray start --head', or leave --address "
            f"out to run on this machine alone."
        )


def _answer(address: str, **environment: str) -> int:
    """Zero from a cluster that answers, _REFUSED from one that wants another token than it was shown."""
    command = [sys.executable, "-c", _ASK, address]
    try:
        return subprocess.run(
            command, capture_output=True, timeout=_ANSWER, env={**os.environ, **environment}
        ).returncode
    except subprocess.TimeoutExpired:
        return 1


def _tune(jobs: list[Job], given: Share, cluster: Cluster, *, first_stage: bool = False) -> list[Failure]:
    """One Tune trial for each job, as many at once as fit."""
    if not jobs:
        return []
    from ray import tune
    from ray.tune.logger import TBXLoggerCallback

    from gd_ray.wild.ray_scoring import ScorerPool

    threads = max(1, int(given.cpus))

    def pool_of(job: Job) -> ScorerPool | None:
        scorers = given.scorers_for(job.spec.window) if job.spec.rules.external and not first_stage else 0
        return ScorerPool(scorers=scorers, cpus=given.scorer_cpus, gpus=given.scorer_gpus) if scorers else None

    def resources(config: dict[str, Any]) -> Any:
        pool = pool_of(jobs[config["job"]])
        scorers = pool.bundles() if pool else []
        # A trial waits while its scorers work, and may then hold less than a CPU; one without scorers never waits.
        cpus = given.cpus if scorers or given.gpus else max(given.cpus, threads)
        return tune.PlacementGroupFactory([{"CPU": cpus, **({"GPU": given.gpus} if given.gpus else {})}, *scorers])

    def trial(config: dict[str, Any]) -> None:
        job = jobs[config["job"]]
        run_job(job, threads, pool_of(job), lambda stage: tune.report(_scalars(stage)), first_stage_only=first_stage)
        tune.report({"finished": 1})

    class TellFailures(tune.Callback):
        """Writes a failure down when it happens: the run may go on for days, or be killed."""

        def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
            job = jobs[trial.config["job"]]
            with suppress(OSError, UserError):  # a full disk, say: Tune would end all other trials for it
                lines = Path(trial.error_file).read_text().strip().splitlines()
                write_failure(job.results, job.spec.trial_id, lines[-1], f"{trial.path}/error.txt")

    wave = "first-models" if first_stage else "trials"
    tuner = tune.Tuner(
        tune.with_resources(trial, resources),
        param_space={"job": tune.grid_search(list(range(len(jobs))))},
        tune_config=tune.TuneConfig(
            # A new process for each trial costs ten seconds of imports; nothing of a trial outlives it in its process.
            reuse_actors=True,
            trial_dirname_creator=lambda t: jobs[t.config["job"]].spec.trial_id,
        ),
        run_config=tune.RunConfig(
            name=f"{wave}-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}",
            storage_path=f"{jobs[0].storage}/tune",
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=cluster.retries),
            callbacks=[
                *([] if first_stage else [TellFailures()]),
                *([TBXLoggerCallback()] if cluster.tensorboard else []),  # type: ignore[no-untyped-call]
            ],
        ),
    )
    failures = []
    grid = tuner.fit()
    for result in (grid[k] for k in range(len(grid))):
        if result.error is not None and result.config is not None:
            lines = str(result.error).strip().splitlines()
            failures.append(Failure(jobs[result.config["job"]].spec, lines[-1], f"{result.path}/error.txt"))
    if len(failures) + sum("finished" in (grid[k].metrics or {}) for k in range(len(grid))) < len(jobs):
        raise KeyboardInterrupt  # Tune has stopped its trials and keeps the interruption to itself
    return failures


def _scalars(stage: StageResult) -> dict[str, float]:
    """What TensorBoard shows of a stage."""
    seconds, images = sum(stage.seconds.values()), sum(stage.images.values())
    return {
        "stage": stage.stage,
        "accuracy": sum(stage.hits) / sum(stage.totals),
        "accuracy_of_current_task": stage.hits[-1] / stage.totals[-1],
        "accuracy_of_first_task": stage.hits[0] / stage.totals[0],
        "images_per_second": images / seconds if seconds else 0.0,
        **{f"loss_{name.replace(' ', '_')}": value for name, value in stage.losses.items()},
    }
