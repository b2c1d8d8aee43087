"""Results made by hand, written through the real writer, so that every number in them is known."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from gd_ray.inputs import Inputs
from gd_ray.results import SampledImages, StageResult, TrialResult
from gd_ray.spec import TrialSpec
from trials.results import write_stages, write_trial

Hits = Callable[[int, int], int]
"""Test images right, of 100, after stage s on task r, both from 1."""


def made_stage(spec: TrialSpec, stage: int, hits: Hits) -> StageResult:
    """Every class of a task keeps its share of right images; wrong ones go to the newest class."""
    counts = tuple(hits(stage, task) for task in range(1, stage + 1))
    external = spec.rules.external and stage > 1
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


def _samples(stage: int) -> SampledImages:
    number = 6 if stage else 0
    return SampledImages(
        positions=np.arange(number, dtype=np.int64) + 10 * stage,
        is_ood=np.arange(number) >= 4,
        classes=np.array([0, 0, 1, 1, -1, -1], np.int64)[:number],
        confidences=np.array([0.9, 0.8, 0.7, 0.6, np.nan, np.nan], np.float32)[:number],
    )


def write_made(
    results: str,
    experiment: str,
    spec: TrialSpec,
    hits: Hits,
    *,
    stages: int | None = None,
    inputs: Inputs | None = None,
) -> str:
    """One trial; with `stages` it is still running and has no row among the trials."""
    done = tuple(made_stage(spec, stage, hits) for stage in range(1, (stages or spec.num_tasks) + 1))
    write_stages(results, experiment, spec, done)
    if stages is None:
        write_trial(results, experiment, TrialResult(spec, done, inputs or Inputs()), "cpu", 1)
    return spec.trial_id


def made_spec(method: str = "gd+ext", seed: int = 0, **changes: object) -> TrialSpec:
    """Two tasks of two classes, the paper's settings otherwise."""
    return replace(TrialSpec(method=method, seed=seed, num_classes=4, task_size=2), **changes)
