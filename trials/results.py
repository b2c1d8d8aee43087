"""Results as Parquet: written by each trial to files of its own, a temporary name first and then renamed.

Under RESULTS/ each kind of row has a folder, cut by experiment, with one file per trial:

    stages      a row per (stage, task): hits and totals, sizes, seconds and images of each step, last losses
    trials      a row per finished trial: the whole spec, ACC and FGT, the hits and totals of every (stage, task) as
                lists, status, versions, host, device; the same row as JSON in the file's metadata, where thousands
                of trials are read in a quarter of the time (who edits such a file must leave that out)
    confusions  (stage, true class, predicted class, count), without zeros
    samples     what Algorithm 2 chose: stage, position, class, confidence, source
"""

import json
import math
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from gd_ray.filesystems import filesystem_of, inside, listed
from gd_ray.results import ROW, StageResult, TrialResult
from gd_ray.spec import TrialSpec

KINDS = ("stages", "confusions", "samples", "trials")
STEPS = ("score", "teacher", "model", "fine-tune", "evaluate")
_TERMS = ("cls", "previous", "teacher", "ensemble", "teacher cls", "teacher confidence")
LOSSES = (
    "teacher cls",
    "teacher confidence",
    *(f"{step} {term}" for step in ("model", "fine-tune") for term in _TERMS),
)


def write_stages(results: str, experiment: str, spec: TrialSpec, stages: Sequence[StageResult]) -> None:
    """Writes all that is known of a trial so far; the same stages give the same rows, timings apart."""
    for kind, table in {
        "stages": stages_table(spec, stages),
        "confusions": confusions_table(stages),
        "samples": samples_table(stages),
    }.items():
        write_atomically(_with_id(table, spec), file_of(results, kind, experiment, spec.trial_id))


def write_trial(
    results: str, experiment: str, result: TrialResult, device: str, threads: int, revision: str | None = None
) -> None:
    """Writes the row that says a trial is finished; it comes last."""
    row = {
        **result.spec.flat(),
        "acc": result.acc,
        "fgt_paper": result.forgetting("paper"),
        "fgt_released": result.forgetting("released"),
        "hits": [hits for stage in result.stages for hits in stage.hits],
        "totals": [total for stage in result.stages for total in stage.totals],
        "final_accuracy": sum(result.stages[-1].hits) / sum(result.stages[-1].totals),
        "seconds": sum(sum(stage.seconds.values()) for stage in result.stages),
        "status": "finished",
        "device": device,
        "threads": threads,
        "host": platform.node(),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "ray", "numpy")},
        "git_revision": revision,
        "data_digest": result.inputs.data,
        "stream_digest": result.inputs.stream,
    }
    table = pa.table({name: [value] for name, value in row.items()}, schema=_trial_schema(row))
    path = file_of(results, "trials", experiment, result.spec.trial_id)
    write_atomically(_with_id(table, result.spec), path, {ROW: json.dumps(row)})


def file_of(results: str, kind: str, experiment: str, trial_id: str) -> str:
    return inside(results, f"{kind}/experiment={experiment}/{trial_id}.parquet")


def finished(results: str) -> dict[str, set[str]]:
    """The experiments under which each finished trial's files lie."""
    found: dict[str, set[str]] = {}
    for info in listed(results, "trials", recursive=True):
        path = Path(info.path)
        if path.suffix == ".parquet" and not path.name.startswith("."):
            found.setdefault(path.stem, set()).add(path.parent.name.removeprefix("experiment="))
    return found


def stages_written(results: str, experiment: str, trial_id: str) -> int:
    """The stages of a trial whose rows are there; 0 where none can be read."""
    filesystem, path = filesystem_of(file_of(results, "stages", experiment, trial_id))
    with suppress(OSError, pa.ArrowException), filesystem.open_input_file(path) as file:
        return (math.isqrt(8 * pq.read_metadata(file).num_rows + 1) - 1) // 2  # stage s has s rows
    return 0


def is_finished(results: str, experiment: str, trial_id: str) -> bool:
    """Whether this experiment has the row that says so."""
    filesystem, path = filesystem_of(file_of(results, "trials", experiment, trial_id))
    return bool(filesystem.get_file_info(path).type == fs.FileType.File)


def finished_rows(results: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The id and the row of every finished trial; who reads the results is told of files that cannot be read."""
    for trial_id, experiments in finished(results).items():
        filesystem, path = filesystem_of(file_of(results, "trials", min(experiments), trial_id))
        with suppress(OSError, ValueError, KeyError, pa.ArrowException), filesystem.open_input_file(path) as file:
            yield trial_id, json.loads((pq.read_metadata(file).metadata or {})[ROW.encode()])


def shared_from_others(results: str, trial_id: str, experiment: str) -> bool:
    """Whether the trial is finished; where only other experiments have it, this one gets it too."""
    sources = finished(results).get(trial_id)
    if sources and experiment not in sources:
        share(results, trial_id, min(sources), experiment)
    return bool(sources)


def share(results: str, trial_id: str, source: str, target: str) -> None:
    """Gives a trial that another experiment has finished to this one too: its files are copied, the last one last.

    Kinds that somebody deleted are left out: the row of the trial says that it is finished.
    """
    filesystem, _ = filesystem_of(results)
    for kind in KINDS:
        _, path = filesystem_of(file_of(results, kind, source, trial_id))
        with suppress(FileNotFoundError), filesystem.open_input_stream(path) as file:
            _move_into_place(file.read(), file_of(results, kind, target, trial_id))


def stages_table(spec: TrialSpec, stages: Sequence[StageResult]) -> pa.Table:
    """A row for each stage s and task r up to s."""
    rows = [_stage_row(spec, stage, task) for stage in stages for task in range(stage.stage)]
    return pa.Table.from_pylist(rows, schema=_STAGE_SCHEMA)


def _stage_row(spec: TrialSpec, stage: StageResult, task: int) -> dict[str, object]:
    samples = stage.samples
    scored = samples.confidences[~samples.is_ood]
    return {
        "method": spec.rules.name,
        "dataset": spec.dataset,
        "task_size": spec.task_size,
        "seed": spec.seed,
        "stage": stage.stage,
        "task": task + 1,
        "hits": stage.hits[task],
        "total": stage.totals[task],
        "classes_of_task": spec.task_sizes[task],
        "classes_seen": sum(spec.task_sizes[: stage.stage]),
        "labelled_size": stage.labelled_size,
        "coreset_size": stage.coreset_size,
        "external_previous": int((~samples.is_ood).sum()),
        "external_ood": int(samples.is_ood.sum()),
        "mean_confidence": float(scored.mean(dtype=np.float64)) if len(scored) else None,
        **{f"images_{_column(step)}": stage.images.get(step, 0) for step in STEPS},
        **{f"loss_{_column(loss)}": stage.losses.get(loss) for loss in LOSSES},
        **{f"seconds_{_column(step)}": stage.seconds.get(step, 0.0) for step in STEPS},
    }


def _column(name: str) -> str:
    return name.replace(" ", "_").replace("-", "_")


_COUNTS = ("hits", "total", "labelled_size", "coreset_size", "external_previous", "external_ood")
_STAGE_SCHEMA = pa.schema(
    [
        ("method", pa.string()),
        ("dataset", pa.string()),
        *((name, pa.int32()) for name in ("task_size", "seed", "stage", "task")),
        *((name, pa.int64()) for name in _COUNTS[:2]),
        *((name, pa.int32()) for name in ("classes_of_task", "classes_seen")),
        *((name, pa.int64()) for name in _COUNTS[2:]),
        ("mean_confidence", pa.float64()),
        *((f"images_{_column(step)}", pa.int64()) for step in STEPS),
        *((f"loss_{_column(loss)}", pa.float64()) for loss in LOSSES),
        *((f"seconds_{_column(step)}", pa.float64()) for step in STEPS),
    ]
)


def confusions_table(stages: Sequence[StageResult]) -> pa.Table:
    rows = np.concatenate([np.insert(stage.confusion, 0, stage.stage, axis=1) for stage in stages])
    return pa.table(dict(zip(("stage", "true_class", "predicted_class", "count"), rows.T, strict=True)))


def samples_table(stages: Sequence[StageResult]) -> pa.Table:
    samples = [stage.samples for stage in stages]
    sources = np.concatenate([np.where(part.is_ood, "ood", "previous") for part in samples])
    return pa.table(
        {
            "stage": np.repeat([stage.stage for stage in stages], [len(part.positions) for part in samples]),
            "position": np.concatenate([part.positions for part in samples]),
            "class": np.concatenate([part.classes for part in samples]),
            "confidence": np.concatenate([part.confidences for part in samples]),
            "source": pa.array(sources.astype(str)),
        }
    )


def _trial_schema(row: Mapping[str, object]) -> pa.Schema:
    """Types from the values; a field that may be missing keeps its type."""
    optional = {
        **dict.fromkeys(("train_per_class", "test_per_class"), pa.int64()),
        **dict.fromkeys(("git_revision", "data_digest", "stream_digest"), pa.string()),
    }
    return pa.schema([(name, optional.get(name, pa.scalar(value).type)) for name, value in row.items()])


def _with_id(table: pa.Table, spec: TrialSpec) -> pa.Table:
    return table.add_column(0, "trial_id", pa.array([spec.trial_id] * len(table), pa.string()))


@cache
def git_revision() -> str | None:
    """The revision of this program where it runs from a checkout of its own; with '-dirty' where files are changed.

    Asked once by each process, which runs what it has read.
    """
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():  # an installed copy may lie inside somebody else's repository
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def write_atomically(table: pa.Table, address: str, metadata: Mapping[str, str] | None = None) -> None:
    """Writes a Parquet file that is whole or absent."""
    content = pa.BufferOutputStream()
    # One small row group without Arrow's own copy of the schema: dictionaries, statistics and that copy would only
    # double the time to read thousands of files.
    with pq.ParquetWriter(
        content, table.schema, use_dictionary=False, write_statistics=False, store_schema=False
    ) as writer:
        writer.write_table(table)
        writer.add_key_value_metadata(dict(metadata or {}))
    _move_into_place(content.getvalue(), address)


def _move_into_place(content: pa.Buffer | bytes, address: str) -> None:
    filesystem, path = filesystem_of(address)
    folder, name = path.rsplit("/", 1)
    filesystem.create_dir(folder, recursive=True)
    temporary = f"{folder}/.{name}.{uuid4().hex}.tmp"
    with filesystem.open_output_stream(temporary) as target:
        target.write(content)
    filesystem.move(temporary, path)
