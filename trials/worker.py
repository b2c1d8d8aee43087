"""One trial inside a Ray Tune actor: it reads its own checkpoints and writes its own files."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gd_ray.results import StageResult
from gd_ray.spec import TrialSpec
from trials.cost import spec_cost
from trials.progress import TakenOver, Teller, progress_file, telling, wait_for_turn
from trials.sources import Places

if TYPE_CHECKING:
    from gd_ray.wild.ray_scoring import ScorerPool


@dataclass(frozen=True)
class Job:
    """A trial to run and where its things go."""

    spec: TrialSpec
    experiment: str
    results: str
    storage: str
    places: Places
    run: str
    """Which run of the experiment starts it."""

    @property
    def first_model(self) -> Path:
        return Path(self.storage, "first-models", f"{self.spec.first_model_id}.pt")

    @property
    def checkpoint(self) -> Path:
        return Path(self.storage, "checkpoints", f"{self.spec.trial_id}.pt")

    @property
    def progress(self) -> Path:
        return progress_file(self.storage, self.spec.trial_id)


OnResult = Callable[[StageResult], None]


def run_job(
    job: Job, threads: int, pool: "ScorerPool | None", on_result: OnResult, *, first_stage_only: bool = False
) -> None:
    """Runs what is left of a trial: after its own last stage, or after the first model that it shares.

    Without a pool of scorers the trial scores the stream itself.
    """
    from trials.results import shared_from_others

    # A trial of another run that trains the first model goes on for long after it is there.
    while wait_for_turn(job.progress, job.run, needless=lambda: first_stage_only and job.first_model.exists()):
        try:
            with telling(job.progress, job.run, spec_cost(job.spec)) as report:
                # Another run, perhaps of another experiment, may have finished it in the meantime.
                if first_stage_only or not shared_from_others(job.results, job.spec.trial_id, job.experiment):
                    _run(job, threads, pool, on_result, report, first_stage_only=first_stage_only)
                return
        except TakenOver as taken:
            if taken.run == job.run:  # which took this process for lost and has another one at it
                return


def _run(
    job: Job, threads: int, pool: "ScorerPool | None", on_result: OnResult, report: Teller, *, first_stage_only: bool
) -> None:
    from trials.results import git_revision, is_finished, write_stages, write_trial

    revision = git_revision()  # before most modules are read: later commits are not what this process runs
    import ray
    import torch

    from gd_ray.checkpoint import Checkpoint
    from gd_ray.trial import run_trial
    from gd_ray.wild.ray_scoring import ray_scorer
    from gd_ray.wild.scoring import score_in_process
    from trials.ledger import clear_failure

    torch.set_num_threads(threads)
    device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
    spec = job.spec
    data = job.places.load_data(spec.dataset, spec.train_per_class, spec.test_per_class)
    stream = job.places.open_stream(spec.stream) if spec.rules.external else None
    for path in (job.first_model, job.checkpoint):
        path.parent.mkdir(parents=True, exist_ok=True)
    found = [path for path in (job.checkpoint, job.first_model) if path.exists()]
    resume = Checkpoint.load(found[0]) if found else None
    for stage in resume.results if resume else ():
        on_result(stage)

    def check() -> None:
        """Nothing is written of a trial that is another's, or that another storage's run has finished meanwhile."""
        report.check()
        if not first_stage_only and is_finished(job.results, job.experiment, spec.trial_id):
            raise TakenOver("")

    def on_stage(stage: StageResult, checkpoint: Checkpoint) -> None:
        check()
        if stage.stage == 1:
            checkpoint.save(job.first_model)
        if not first_stage_only:  # results first: a restart may repeat a stage, but never lacks one
            write_stages(job.results, job.experiment, spec, checkpoint.results)
            checkpoint.save(job.checkpoint)
        on_result(stage)

    result = run_trial(
        spec,
        data,
        stream,
        on_stage=on_stage,
        on_progress=report,
        resume=resume,
        last_stage=1 if first_stage_only else None,
        device=device,
        scorer=ray_scorer(pool) if pool else score_in_process,
    )
    check()
    if not first_stage_only:
        write_stages(job.results, job.experiment, spec, result.stages)
        write_trial(job.results, job.experiment, result, device, threads, revision)
        clear_failure(job.results, spec.trial_id)
        job.checkpoint.unlink(missing_ok=True)
