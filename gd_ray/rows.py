"""Rows of the results folder: a trial's results as Arrow tables."""

import platform
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_args, get_type_hints

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from gd_ray.command_output import output_of
from gd_ray.counts import OUTCOMES
from gd_ray.spec import TrialSpec
from gd_ray.trial_result import StageResult, TrialResult

_BY_TASK = ("head_hits", "task_aware_hits", "top5_hits", "nll")
"""Columns of the stages that only some trials have: sums over the test images of a task."""
_ARROW = {int: pa.int64(), float: pa.float64(), str: pa.string(), bool: pa.bool_()}


def trial_table(result: TrialResult, machine: Mapping[str, Any], revision: str | None) -> pa.Table:
    """Return the row of a finished trial: its whole spec, its metrics, and the machine, versions and images of it."""
    last = result.stages[-1]
    row = {
        "trial_id": result.spec.trial_id,
        **result.spec.flat(),
        "acc": result.acc,
        "fgt_paper": result.forgetting("paper"),
        "fgt_released": result.forgetting("released"),
        "final_accuracy": sum(last.hits) / sum(last.totals),
        "seconds": sum(sum(stage.seconds.values()) for stage in result.stages),
        **machine,
        "host": platform.node(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "ray", "numpy")},
        "git_revision": revision,
        "data_digest": result.fingerprints.data,
        "stream_digest": result.fingerprints.stream,
    }
    return table_of([row])


def table_of(rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """Return rows as a table; a field that is None in all of them keeps the type that the spec gives it."""
    hints = get_type_hints(TrialSpec)
    schema = []
    for name in dict.fromkeys(name for row in rows for name in row):
        known = next((row[name] for row in rows if row.get(name) is not None), None)
        optional = (_ARROW[kind] for kind in get_args(hints.get(name)) if kind in _ARROW)
        schema.append((name, next(optional, pa.string()) if known is None else pa.scalar(known).type))
    return pa.Table.from_pylist([dict(row) for row in rows], pa.schema(schema))


def stages_table(spec: TrialSpec, stages: Sequence[StageResult]) -> pa.Table:
    """Return a row for each stage s and task r up to s, with a column for every step and loss that a stage names."""
    steps = dict.fromkeys(step for stage in stages for step in (*stage.images, *stage.seconds))
    losses = dict.fromkeys(name for stage in stages for name in stage.losses)
    recorded = dict.fromkeys(name for stage in stages for name in stage.recorded)
    by_task = [name for name in _BY_TASK if any(getattr(stage, name) is not None for stage in stages)]
    rows = []
    for stage in stages:
        is_ood, scores = stage.samples.is_ood, stage.samples.scores
        of_stage = {
            "labelled_size": stage.labelled_size,
            "coreset_size": stage.coreset_size,
            "external_previous": int((~is_ood).sum()),
            "external_ood": int(is_ood.sum()),
            "mean_score": None if is_ood.all() else float(scores[~is_ood].mean(dtype=np.float64)),
            **{f"images_{column_name(step)}": stage.images.get(step, 0) for step in steps},
            **{f"loss_{column_name(name)}": stage.losses.get(name) for name in losses},
            **{f"recorded_{column_name(name)}": stage.recorded.get(name) for name in recorded},
            **{f"seconds_{column_name(step)}": stage.seconds.get(step, 0.0) for step in steps},
        }
        rows += [
            {
                "trial_id": spec.trial_id,
                "stage": stage.stage,
                "task": task + 1,
                "hits": stage.hits[task],
                "total": stage.totals[task],
                **{name: None if (own := getattr(stage, name)) is None else own[task] for name in by_task},
                "classes_of_task": spec.task_sizes[task],
                "classes_seen": sum(spec.task_sizes[: stage.stage]),
                **of_stage,
            }
            for task in range(stage.stage)
        ]
    return pa.Table.from_pylist(rows, pa.schema([(name, _column_type(name)) for name in rows[0]]))


def column_name(name: str) -> str:
    """Return the name of a step or loss as a part of a column's name."""
    return name.replace(" ", "_").replace("-", "_")


def _column_type(name: str) -> pa.DataType:
    if name in ("stage", "task", "classes_of_task", "classes_seen"):
        return pa.int32()
    if name == "nll" or name.startswith(("mean_", "loss_", "recorded_", "seconds_")):
        return pa.float64()
    return pa.string() if name == "trial_id" else pa.int64()


def confusions_table(spec: TrialSpec, stages: Sequence[StageResult]) -> pa.Table:
    """Return (stage, true class, predicted class, count), without zeros.

    Where the model does not predict by its head, `head_count` counts the head's predictions, and either may be zero.
    """
    rows = _stacked((stage.stage, stage.confusion) for stage in stages)
    names = ["stage", "true_class", "predicted_class", "count"]
    heads = [(stage.stage, stage.head_confusion) for stage in stages if stage.head_confusion is not None]
    if heads:
        of_head = _stacked(heads)
        keys, places = np.unique(np.concatenate([rows, of_head])[:, :3], axis=0, return_inverse=True)
        model_places, head_places = np.split(places.ravel(), [len(rows)])
        both = np.zeros((2, len(keys)), np.int64)
        both[0, model_places], both[1, head_places] = rows[:, 3], of_head[:, 3]
        rows, names = np.concatenate([keys, both.T], axis=1), [*names, "head_count"]
    return _with_id(spec, dict(zip(names, rows.T, strict=True)))


def _stacked(parts: Iterable[tuple[int, NDArray[Any]]]) -> NDArray[Any]:
    """Return the rows of all stages with the stage before them."""
    return np.concatenate([np.insert(rows, 0, stage, axis=1) for stage, rows in parts])


def confidences_table(spec: TrialSpec, stages: Sequence[StageResult], of: str = "confidences") -> pa.Table | None:
    """Return (stage, outcome, bin of log odds, count, sum of confidences), without zero counts; None for no stage.

    `of` names the field of a stage: "confidences" of its model, or "teacher_confidences".
    """
    counted = [(stage.stage, getattr(stage, of)) for stage in stages if getattr(stage, of) is not None]
    if not counted:
        return None
    rows = _stacked(counted)
    numbers, outcomes, bins, counts = rows[:, :4].T.astype(np.int64)
    names = pa.array(np.array(OUTCOMES)[outcomes], pa.string())
    columns = {"bin": bins.astype(np.int32), "count": counts, "confidence": rows[:, 4]}
    return _with_id(spec, {"stage": numbers, "outcome": names, **columns})


def _with_id(spec: TrialSpec, columns: Mapping[str, Any]) -> pa.Table:
    length = len(next(iter(columns.values())))
    return pa.table({"trial_id": pa.array([spec.trial_id] * length, pa.string()), **columns})


def samples_table(spec: TrialSpec, stages: Sequence[StageResult]) -> pa.Table:
    """Return the sampled external images: stage, position, class, score and its kind, source."""
    samples = [stage.samples for stage in stages]
    sizes = [len(part.positions) for part in samples]
    sources = np.concatenate([np.where(part.is_ood, "ood", "previous") for part in samples])
    return _with_id(
        spec,
        {
            "stage": np.repeat([stage.stage for stage in stages], sizes),
            "position": np.concatenate([part.positions for part in samples]),
            "class": np.concatenate([part.classes for part in samples]),
            "score": np.concatenate([part.scores for part in samples]),
            "score_kind": pa.array(np.concatenate([part.score_kind for part in samples]).astype(str), pa.string()),
            "source": pa.array(sources.astype(str), pa.string()),
        },
    )


@cache
def git_revision() -> str | None:
    """Return the revision of this program where it runs from its own checkout, with '-dirty' if files are changed.

    Cached: a process keeps running the code that it imported.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():  # an installed copy may be inside another repository
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    return output_of(command, within_s=10)
