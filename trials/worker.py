"""One trial inside a Ray Tune actor: it reads its own checkpoints and writes its own files."""

import json
import os
import time
from dataclasses import dataclass
from pathlib import Path

from gd_ray.progress import Report
from gd_ray.spec import TrialSpec
from gd_ray.wild.ray_scoring import ScorerPool
from trials.cost import share_done, spec_cost
from trials.sources import Places


@dataclass(frozen=True)
class Job:
    """A trial to run and where its things go."""

    spec: TrialSpec
    experiment: str
    results: str
    storage: str
    places: Places
    cpus: float
    pool: ScorerPool

    @property
    def first_model(self) -> Path:
        return Path(self.storage, "first-models", f"{self.spec.first_model_id}.pt")

    @property
    def checkpoint(self) -> Path:
        return Path(self.storage, "checkpoints", f"{self.spec.trial_id}.pt")

    @property
    def progress(self) -> Path:
        return Path(self.storage, "progress", f"{self.spec.trial_id}.json")


def run_job(job: Job, *, first_stage_only: bool = False) -> None:
    """Runs what is left of a trial: after its own last stage, or after the first model that it shares."""
    import ray
    import torch

    from gd_ray.checkpoint import Checkpoint
    from gd_ray.results import StageResult
    from gd_ray.trial import run_trial
    from gd_ray.wild.ray_scoring import ray_scorer
    from trials.ledger import clear_failure
    from trials.results import write_stages, write_trial

    threads = max(1, int(job.cpus))
    torch.set_num_threads(threads)
    device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
    spec = job.spec
    data = job.places.load_data(spec.dataset, spec.train_per_class, spec.test_per_class)
    stream = job.places.open_stream(spec.stream) if spec.rules.external else None
    target = job.first_model if first_stage_only else job.checkpoint
    found = [path for path in (job.checkpoint, job.first_model) if path.exists()]
    for path in (target, job.progress):
        path.parent.mkdir(parents=True, exist_ok=True)

    def on_stage(_: StageResult, checkpoint: Checkpoint) -> None:
        if not first_stage_only:  # results first: a restart may repeat a stage, but never lacks one
            write_stages(job.results, job.experiment, spec, checkpoint.results)
        checkpoint.save(target)

    try:
        result = run_trial(
            spec,
            data,
            stream,
            on_stage=on_stage,
            on_progress=_reporter(job),
            resume=Checkpoint.load(found[0]) if found else None,
            last_stage=1 if first_stage_only else None,
            device=device,
            scorer=ray_scorer(job.pool),
        )
    finally:
        job.progress.unlink(missing_ok=True)
    if not first_stage_only:
        write_stages(job.results, job.experiment, spec, result.stages)
        write_trial(job.results, job.experiment, result, device, threads)
        clear_failure(job.results, spec.trial_id)
        job.checkpoint.unlink(missing_ok=True)


def _reporter(job: Job, seconds: float = 2.0) -> Report:
    """Writes how far the trial is to a file of its own, now and then."""
    last = 0.0
    cost = spec_cost(job.spec)

    def report(stage: int, step: str, done: int, total: int) -> None:
        nonlocal last
        now = time.time()
        if now - last < seconds:
            return
        last = now
        share = share_done(cost, stage, step, done, total)
        state = {"stage": stage, "step": step, "done": done, "total": total, "share": share, "time": now}
        temporary = job.progress.with_suffix(f".{os.getpid()}.tmp")
        temporary.write_text(json.dumps(state))
        temporary.replace(job.progress)

    return report
