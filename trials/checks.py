"""What would stop a trial later on, or mix images of two kinds under one name, said before the first one starts."""

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gd_ray.errors import UserError
from gd_ray.inputs import Inputs
from trials.ledger import write_class_names
from trials.results import finished_rows
from trials.worker import Job

if TYPE_CHECKING:
    from gd_ray.checkpoint import Checkpoint
    from gd_ray.data.image_set import LabelledData
    from gd_ray.wild.stream import WildStream


def check_jobs(jobs: Sequence[Job]) -> list[str]:
    """Refuses what would stop one of the jobs of a run; gives back what a user should know besides."""
    from gd_ray.trial import check_inputs, learned_data

    data: dict[Any, LabelledData] = {}
    streams: dict[str, WildStream] = {}
    checkpoints: dict[Path, Checkpoint] = {}
    notes: dict[str, None] = {}
    for job in jobs:
        spec, key = job.spec, _key(job.spec.flat())
        if key not in data:
            data[key] = job.places.load_data(*key)
            write_class_names(job.results, spec.dataset, data[key].class_names)
        if spec.rules.external and spec.stream not in streams:
            streams[spec.stream] = job.places.open_stream(spec.stream)
        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as caught:
            check_inputs(spec, learned_data(spec, data[key]), streams.get(spec.stream))
        notes |= {str(warning.message): None for warning in caught}
        _check_checkpoint(job, Inputs.of(spec, data[key], streams.get(spec.stream)), checkpoints)
    if jobs:
        _check_finished(jobs[0].results, data, streams)
    return list(notes)


def _key(fields: Mapping[str, Any]) -> tuple[str, int | None, int | None]:
    return fields["dataset"], fields["train_per_class"], fields["test_per_class"]


def _check_checkpoint(job: Job, inputs: Inputs, known: "dict[Path, Checkpoint]") -> None:
    """What the job would go on from must be whole, and made with the same images; first models are read once."""
    from gd_ray.checkpoint import Checkpoint

    found = [path for path in (job.checkpoint, job.first_model) if path.exists()]
    if not found:
        return
    path = found[0]
    try:
        if path not in known:
            known[path] = replace(Checkpoint.load(path), weights={})
        known[path].check_continues(job.spec, inputs)
    except UserError as error:
        if path.exists():  # not one that another run has finished with in this moment
            raise UserError(f"{str(error).removeprefix('resume: ')} It is {path}.") from error


def _check_finished(results: str, data: "dict[Any, LabelledData]", streams: "dict[str, WildStream]") -> None:
    """Finished trials that learned from other images must not stand in one table with those to come."""
    for trial_id, row in finished_rows(results):
        stream = streams.get(row["stream"]) if row.get("stream_digest") else None
        now = Inputs(data[_key(row)].digest if _key(row) in data else None, stream.digest if stream else None)
        for name in Inputs(row.get("data_digest"), row.get("stream_digest")).changed(now):
            option = {"dataset": "data", "stream": "stream"}[name]
            raise UserError(
                f"{name} {row[name]!r} holds other images than trial {trial_id} in results {results!r} learned from; "
                f"name the folder that it had with --{option}, or other --results."
            )
