"""What would stop a trial later on, or mix images of two kinds under one name, said before the first one starts."""

import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from gd_ray.errors import UserError
from gd_ray.inputs import Inputs
from gd_ray.spec import TrialSpec
from trials.ledger import write_class_names
from trials.results import finished, inputs_of
from trials.worker import Job

if TYPE_CHECKING:
    from gd_ray.data.image_set import LabelledData
    from gd_ray.wild.stream import WildStream


def check_jobs(jobs: Sequence[Job], done: Sequence[Job] = ()) -> list[str]:
    """Refuses what would stop one of the jobs; gives back what a user should know besides.

    `done` are jobs of the same run that are finished; they must have learned from the images that are there now.
    """
    from gd_ray.trial import check_inputs, learned_data

    data: dict[Any, LabelledData] = {}
    streams: dict[str, WildStream] = {}
    notes: dict[str, None] = {}
    for job in jobs:
        spec, key = job.spec, _key(job.spec)
        if key not in data:
            data[key] = job.places.load_data(*key)
            write_class_names(job.results, spec.dataset, data[key].class_names)
        if spec.rules.external and spec.stream not in streams:
            streams[spec.stream] = job.places.open_stream(spec.stream)
        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as caught:
            check_inputs(spec, learned_data(spec, data[key]), streams.get(spec.stream))
        notes |= {str(warning.message): None for warning in caught}
        _check_checkpoints(job, Inputs.of(spec, data[key], streams.get(spec.stream)))
    _check_done(done, data, streams)
    return list(notes)


def _key(spec: TrialSpec) -> tuple[str, int | None, int | None]:
    return spec.dataset, spec.train_per_class, spec.test_per_class


def _check_checkpoints(job: Job, inputs: Inputs) -> None:
    """What the job would go on from must be whole, and made with the same images."""
    from gd_ray.checkpoint import Checkpoint

    for path in (job.checkpoint, job.first_model):
        if not path.exists():
            continue
        try:
            Checkpoint.load(path).check_continues(job.spec, inputs)
        except UserError as error:
            if path.exists():  # not one that another run has finished with in this moment
                raise UserError(f"{str(error).removeprefix('resume: ')} It is {path}.") from error
        return


def _check_done(done: Sequence[Job], data: "dict[Any, LabelledData]", streams: "dict[str, WildStream]") -> None:
    """Finished trials that learned from other images must not stand in one table with those to come."""
    experiments = finished(done[0].results) if done else {}
    for job in done:
        spec = job.spec
        now = Inputs(
            data[_key(spec)].digest if _key(spec) in data else None,
            streams[spec.stream].digest if spec.rules.external and spec.stream in streams else None,
        )
        learned = inputs_of(job.results, min(experiments[spec.trial_id]), spec.trial_id)
        for name in learned.changed(now):
            option = {"dataset": "data", "stream": "stream"}[name]
            raise UserError(
                f"{name} {getattr(spec, name)!r} holds other images than trial {spec.trial_id} in results "
                f"{job.results!r} learned from; name the folder that it had with --{option}, or other --results."
            )
