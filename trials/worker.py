"""One trial inside a Ray Tune actor: it reads its own checkpoints and writes its own files."""

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gd_ray.heartbeat import progress_file
from gd_ray.kept_models import keep_model
from gd_ray.rows import git_revision
from gd_ray.spec import TrialSpec
from gd_ray.store import clear_failure, finished, write_stages, write_trial
from gd_ray.trial_result import StageResult
from trials.claim import ProgressReporter, acquire, heartbeat
from trials.cost import spec_cost
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
    def first_model(self) -> Path:
        return Path(self.storage, "first-models", f"{self.spec.first_model_id}.pt")

    @property
    def checkpoint(self) -> Path:
        return Path(self.storage, "checkpoints", f"{self.spec.trial_id}.pt")

    @property
    def progress(self) -> Path:
        return progress_file(self.storage, self.spec.trial_id)

    @property
    def saved(self) -> Path | None:
        """The checkpoint that the trial resumes, if there is one."""
        return next((path for path in (self.checkpoint, self.first_model) if path.exists()), None)

    def keeps_model(self, stage: int) -> bool:
        return self.keep_models == "all" or (self.keep_models == "last" and stage == self.spec.num_tasks)

    def is_finished(self) -> bool:
        return self.spec.trial_id in finished(self.results)


class FinishedElsewhere(Exception):
    """A run with another storage has finished the trial meanwhile."""


OnResult = Callable[[StageResult], None]


def run_job(
    job: Job, threads: int, pool: "ScorerPool | None", on_result: OnResult, *, first_stage_only: bool = False
) -> None:
    """Run the rest of a trial after its last checkpoint, or after the first model that it shares.

    Without a pool of scorers the trial scores the stream itself.
    """
    # Another run's trial that trains the first model continues long after it has written that.
    if not acquire(job.progress, job.run, cancelled=lambda: first_stage_only and job.first_model.exists()):
        return
    cost = spec_cost(job.spec, job.locations.sizes(job.spec))
    with heartbeat(job.progress, job.run, cost) as reporter, suppress(FinishedElsewhere):
        if first_stage_only or not job.is_finished():
            _run(job, threads, pool, on_result, reporter, first_stage_only)


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
    for path in (job.first_model, job.checkpoint):
        path.parent.mkdir(parents=True, exist_ok=True)

    def keep(checkpoint: Checkpoint) -> None:
        if job.keeps_model(checkpoint.stage):
            keep_model(job.results, spec, data, checkpoint, revision)

    resume = Checkpoint.load(saved) if (saved := job.saved) else None
    if resume and not only_first:
        keep(resume)  # the first model, which trials share; or one of a run that kept none
    for stage in resume.results if resume else ():
        on_result(stage)

    def on_stage(stage: StageResult, checkpoint: Checkpoint) -> None:
        if stage.stage == 1:
            checkpoint.save(job.first_model)
        if not only_first:
            if job.is_finished():  # all stages are written: never replace them by fewer
                raise FinishedElsewhere
            # Results first: a restart may repeat a stage, but never lacks one.
            write_stages(job.results, spec, checkpoint.results)
            keep(checkpoint)
            checkpoint.save(job.checkpoint)
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
    if not only_first:
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
        job.checkpoint.unlink(missing_ok=True)
