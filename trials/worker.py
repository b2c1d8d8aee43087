"""One trial inside a Ray Tune actor: it reads its own checkpoints and writes its own files."""

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gd_ray.heartbeat import PROGRESS, progress_file
from gd_ray.kept_models import keep_model
from gd_ray.rows import git_revision
from gd_ray.spec import TrialSpec
from gd_ray.storage import delete_file, exists, file_names, join
from gd_ray.store import CHECKPOINTS, FIRST_MODELS, clear_failure, finished, write_stages, write_trial
from gd_ray.trial_result import StageResult
from trials.claim import ProgressReporter, acquire, heartbeat
from trials.cost import spec_cost
from trials.outage import write_patiently
from trials.registry import DataLocations
from trials.resources import KeepModels

if TYPE_CHECKING:
    from gd_ray.wild.ray_scoring import ScorerPool


@dataclass(frozen=True)
class Job:
    """A trial to run, and the folders that it reads and writes."""

    spec: TrialSpec
    results: str
    storage: str
    locations: DataLocations
    run: str
    """The run of an experiment that starts it."""
    keep_models: KeepModels = "last"

    @property
    def first_model(self) -> str:
        return join(self.storage, f"{FIRST_MODELS}/{self.spec.first_model_id}.pt")

    @property
    def checkpoint(self) -> str:
        return join(self.storage, f"{CHECKPOINTS}/{self.spec.trial_id}.pt")

    @property
    def progress(self) -> str:
        return progress_file(self.storage, self.spec.trial_id)

    def saved(self, is_there: Callable[[str], bool] = exists) -> str | None:
        """Return the checkpoint that the trial resumes, if there is one."""
        return next(filter(is_there, (self.checkpoint, self.first_model)), None)

    def keeps_model(self, stage: int) -> bool:
        return self.keep_models == "all" or (self.keep_models == "last" and stage == self.spec.num_tasks)

    def is_finished(self) -> bool:
        return self.spec.trial_id in finished(self.results)


def saved_files(storage: str) -> set[str]:
    """Return the addresses of all checkpoints, first models and claims: few requests for many jobs."""
    folders = (FIRST_MODELS, CHECKPOINTS, PROGRESS)
    return {join(storage, f"{folder}/{name}") for folder in folders for name in file_names(storage, folder)}


class FinishedElsewhere(Exception):
    """A run with another storage has finished the trial meanwhile."""


OnResult = Callable[[StageResult], None]


def run_job(
    job: Job,
    threads: int,
    pool: "ScorerPool | None",
    on_result: OnResult,
    *,
    first_stage_only: bool = False,
    wait_s: float = math.inf,
) -> bool:
    """Run the rest of a trial after its last checkpoint, or after the first model that it shares.

    Without a pool of scorers the trial scores the stream itself. Return False if another run holds the trial, and did
    for `wait_s` seconds.
    """

    def is_there() -> bool:  # another run's trial that trains the first model continues long after it has written that
        return first_stage_only and exists(job.first_model)

    if not acquire(job.progress, job.run, wait_s=wait_s, cancelled=is_there):
        return is_there()
    cost = spec_cost(job.spec, job.locations.sizes(job.spec))
    with heartbeat(job.progress, job.run, cost) as reporter, suppress(FinishedElsewhere):
        if first_stage_only or not job.is_finished():
            _run(job, threads, pool, on_result, reporter, first_stage_only)
    return True


def _run(
    job: Job, threads: int, pool: "ScorerPool | None", on_result: OnResult, reporter: ProgressReporter, only_first: bool
) -> None:
    revision = git_revision()  # before most modules are imported: later commits are not what this process runs
    import torch

    from gd_ray.checkpoint import Checkpoint
    from gd_ray.hardware import describe, granted_device, peak_memory, restart_peak_memory
    from gd_ray.trial import run_trial
    from gd_ray.wild.ray_scoring import ray_scorer
    from gd_ray.wild.scoring import score_in_process

    torch.set_num_threads(threads)
    device, spec = granted_device(), job.spec
    restart_peak_memory(device)
    data = job.locations.load_data(spec.dataset, spec.train_per_class, spec.test_per_class)
    stream = job.locations.open_stream(spec.stream) if spec.method.external else None

    def keep(checkpoint: Checkpoint) -> None:
        if job.keeps_model(checkpoint.stage):
            keep_model(job.results, spec, data, checkpoint, revision)

    resume = Checkpoint.load(saved) if (saved := job.saved()) else None
    if resume and not only_first:
        keep(resume)  # the first model, which trials share; or one of a run that kept none
    for stage in resume.results if resume else ():
        on_result(stage)

    def save(checkpoint: Checkpoint) -> None:
        if checkpoint.stage == 1:
            checkpoint.save(job.first_model)
        if not only_first:
            if job.is_finished():  # all stages are written: never replace them by fewer
                raise FinishedElsewhere
            # Results first: a restart may repeat a stage, but never lacks one.
            write_stages(job.results, spec, checkpoint.results)
            keep(checkpoint)
            checkpoint.save(job.checkpoint)

    def on_stage(stage: StageResult, checkpoint: Checkpoint) -> None:
        write_patiently(lambda: save(checkpoint), job.results, job.storage)
        on_result(stage)

    result = run_trial(
        spec,
        data,
        stream,
        on_stage=on_stage,
        on_progress=reporter,
        resume=resume,
        last_stage=1 if only_first else None,
        device=device,
        scorer=ray_scorer(pool) if pool else score_in_process,
    )

    def finish() -> None:
        write_stages(job.results, spec, result.stages)
        write_trial(
            job.results,
            result,
            device=device,
            threads=threads,
            revision=revision,
            peak_memory=peak_memory(device),
            hardware=describe(device, spec.precision),
        )
        clear_failure(job.results, spec.trial_id)
        delete_file(job.checkpoint)

    if not only_first:
        write_patiently(finish, job.results, job.storage)
