"""Results made by hand, written through the store, so that every number in them is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gd_ray import store
from gd_ray.fingerprint import Fingerprints
from gd_ray.spec import TrialSpec
from gd_ray.trial_result import StageResult, TrialResult
from gd_ray.wild.sampling import Sample

Hits = Callable[[int, int], int]
"""Test images right, of 100, after stage s on task r, both from 1."""
NO_STORAGE = "storage-of-made-results"
"""Not 'storage', which the working directory has after a demo."""


def right(level: int, seed: int) -> Hits:
    """90 of a task just learned; of an earlier one 4 fewer for each stage since, moved by the level and the seed."""
    return lambda s, r: 90 - 4 * (s - r) + level + seed if s > r else 90


def made_stage(spec: TrialSpec, stage: int, hits: Hits) -> StageResult:
    """Every class of a task keeps its share of right images; wrong ones are predicted as the newest class."""
    counts = tuple(hits(stage, task) for task in range(1, stage + 1))
    external = spec.method.external and stage > 1
    return StageResult(
        stage=stage,
        hits=counts,
        totals=(100,) * stage,
        confusion=_confusion(spec, stage, counts),
        labelled_size=500,
        coreset_size=spec.coreset_size,
        samples=_samples(stage) if external else _samples(0),
        losses={"model cls": 0.5},
        images={"model": 1000},
        seconds={"model": 2.0},
    )


def _confusion(spec: TrialSpec, stage: int, counts: Sequence[int]) -> np.ndarray:
    per_class = 100 // spec.task_size
    newest = stage * spec.task_size - 1
    rows = []
    for task, right in enumerate(counts):
        for k in range(spec.task_size):
            label = task * spec.task_size + k
            good = right // spec.task_size
            rows += [(label, label, good), (label, newest if newest != label else 0, per_class - good)]
    return np.array([row for row in rows if row[2] > 0], np.int64)


def _samples(stage: int) -> Sample:
    number = 6 if stage else 0
    return Sample(
        positions=np.arange(number, dtype=np.int64) + 10 * stage,
        is_ood=np.arange(number) >= 4,
        classes=np.array([0, 0, 1, 1, -1, -1], np.int64)[:number],
        scores=np.array([0.9, 0.8, 0.7, 0.6, np.nan, np.nan], np.float32)[:number],
        previous_kind="probability",
    )


def write_made(
    results: str,
    experiment: str,
    spec: TrialSpec,
    hits: Hits,
    *,
    stages: int | None = None,
    inputs: Fingerprints | None = None,
    storage: str = NO_STORAGE,
    command: str | None = None,
    change: Callable[[StageResult], StageResult] = lambda stage: stage,
    cpu: str | None = None,
) -> str:
    """Write one trial and a selection of it; with `stages` it is not finished and has no row among the trials.

    `change` is applied to each stage before it is written; `cpu` is the model of the CPU that the row names.
    """
    done = tuple(change(made_stage(spec, stage, hits)) for stage in range(1, (stages or spec.num_tasks) + 1))
    store.write_stages(results, spec, done)
    if stages is None:
        result = TrialResult(spec, done, inputs or Fingerprints())
        store.write_trial(results, result, device="cpu", threads=1, hardware={"cpu_model": cpu} if cpu else None)
    select(results, experiment, [spec], storage=storage, command=command)
    return spec.trial_id


def select(
    results: str, experiment: str, specs: Sequence[TrialSpec], *, storage: str = NO_STORAGE, command: str | None = None
) -> None:
    """Write the selection of a run, as the runner does before its first trial."""
    rows = [
        {
            "trial_id": spec.trial_id,
            **spec.flat(),
            "stages": spec.num_tasks,
            "work": 1.0,
            "shares": [(stage + 1) / spec.num_tasks for stage in range(spec.num_tasks)],
            "first_model": spec.first_model_id,
        }
        for spec in specs
    ]
    store.write_selection(results, store.Selection(experiment, storage, command, rows))


def made_spec(method: str = "gd+ext", seed: int = 0, **changes: object) -> TrialSpec:
    """Two tasks of two classes, the paper's settings otherwise."""
    return replace(TrialSpec(method=method, seed=seed, num_classes=4, task_size=2), **changes)
