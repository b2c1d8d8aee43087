"""Checks before the first trial starts: what would stop a trial later, or mix two data sets under one name."""

import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gd_ray.errors import UserError
from gd_ray.failures import innermost
from gd_ray.fingerprint import Fingerprints
from gd_ray.spec import TrialSpec
from gd_ray.storage import exists
from gd_ray.store import read_rows, write_class_names
from trials.worker import Job, saved_files

if TYPE_CHECKING:
    from gd_ray.checkpoint import Checkpoint
    from gd_ray.data.dataset import LabelledData
    from gd_ray.wild.stream import WildStream

_ANSWER_WITHIN_S = 60.0
"""Time in which a machine must say whether torch can use its GPUs; most of it is the import of torch."""
_CLOCK_WITHIN_S = 60.0
_NAMES = ("method", "plugin", "dataset", "train_per_class", "test_per_class", "stream")
_COLUMNS = (*_NAMES, "data_digest", "stream_digest")


def check_jobs(jobs: Sequence[Job]) -> list[str]:
    """Refuse what would stop one of the jobs of a run; return notes for the user."""
    from gd_ray.checks import check_inputs
    from gd_ray.data.tasks import ClassIncrementalData

    data: dict[Any, LabelledData] = {}
    streams: dict[str, WildStream] = {}
    checkpoints: dict[str, Checkpoint] = {}
    saved = saved_files(jobs[0].storage) if jobs else set()
    notes: dict[str, None] = {}
    for job in jobs:
        spec, key = job.spec, _key(job.spec.flat())
        if key not in data:
            data[key] = job.locations.load_data(*key)
            write_class_names(job.results, spec.dataset, data[key].class_names)
        if spec.method.external and spec.stream not in streams:
            streams[spec.stream] = job.locations.open_stream(spec.stream)
        with warnings.catch_warnings(record=True, action="always", category=UserWarning) as caught:
            check_inputs(spec, ClassIncrementalData.of(spec, data[key]), streams.get(spec.stream))
        notes |= {str(warning.message): None for warning in caught}
        if path := job.saved(saved.__contains__):
            _check_checkpoint(path, spec, Fingerprints.of(spec, data[key], streams.get(spec.stream)), checkpoints)
    return [*notes, *(_check_finished(jobs, data, streams) if jobs else ())]


def check_devices(nodes: Sequence[Mapping[str, float]], gpus: float, jobs: Sequence[Job]) -> list[str]:
    """Refuse GPUs that torch cannot use, or devices without the precision of a trial; return notes for the user.

    Each machine that has GPUs is asked once; one that does not answer, for its GPUs are busy or it has no memory left,
    is checked by its trials.
    """
    import ray

    from gd_ray.checks import check_device

    precisions = list(dict.fromkeys(job.spec.precision for job in jobs))
    if not gpus:
        for precision in precisions:
            check_device(TrialSpec(precision=precision), "cpu")
        return []
    machines = [name for node in nodes if node.get("GPU") for name in node if _is_address(name)]
    task = ray.remote(num_cpus=0, num_gpus=0.01, max_retries=0)(_device_notes)
    asked = [task.options(resources={name: 0.001}).remote(precisions) for name in machines]
    answered, silent = ray.wait(asked, num_returns=len(asked), timeout=_ANSWER_WITHIN_S)
    for one in silent:
        ray.cancel(one, force=True)
    notes: dict[str, None] = {}
    for one in answered:
        try:
            notes |= dict.fromkeys(ray.get(one))
        except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError):
            continue
        except ray.exceptions.RayTaskError as error:
            if isinstance(cause := innermost(error), UserError):
                raise cause from None
            raise
    return list(notes)


def check_clocks(nodes: Sequence[Mapping[str, float]]) -> list[str]:
    """Note the machines of a cluster whose clocks are wrong by this machine's.

    Nothing depends on them: heartbeats are compared by their content. But their times appear in results and logs.
    """
    import ray

    if len(nodes) < 2:
        return []
    machines = sorted({name for node in nodes for name in node if _is_address(name)})
    task, before = ray.remote(num_cpus=0, max_retries=0)(_clock), time.time()
    asked = {task.options(resources={name: 0.001}).remote(): name.removeprefix("node:") for name in machines}
    answered, _ = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_WITHIN_S)
    after, wrong = time.time(), []
    for one in answered:
        with suppress(ray.exceptions.RayError):  # a machine that was lost meanwhile
            clock = ray.get(one)
            late = max(before - clock, clock - after)
            if late > _CLOCK_WITHIN_S:
                side = "behind" if clock < before else "ahead of"
                wrong.append(f"that of {asked[one]} is {late / 60:.0f} minutes {side} this machine's")
    return (
        [f"clocks differ: {', '.join(wrong)}; times in results and logs are wrong, nothing else is."] if wrong else []
    )


def _clock() -> float:
    return time.time()


def _is_address(resource: str) -> bool:
    """Whether a resource of a node is the one that only this node has."""
    return resource.startswith("node:") and not resource.startswith("node:__")


def _device_notes(precisions: Sequence[str]) -> list[str]:
    """Check the GPU of this process for each precision."""
    from gd_ray.checks import check_device
    from gd_ray.hardware import granted_device, tf32_note

    device = granted_device()
    for precision in precisions if device != "cpu" else ():
        check_device(TrialSpec(precision=precision), device)
    return [note for precision in precisions if (note := tf32_note(precision, device))]


def _key(fields: Mapping[str, Any]) -> tuple[str, int | None, int | None]:
    return fields["dataset"], fields["train_per_class"], fields["test_per_class"]


def _check_checkpoint(path: str, spec: TrialSpec, inputs: Fingerprints, known: "dict[str, Checkpoint]") -> None:
    """Check that a trial can resume its checkpoint with these images; first models are read once."""
    from gd_ray.checkpoint import Checkpoint

    try:
        if path not in known:
            known[path] = replace(Checkpoint.load(path), weights={})
        known[path].check_continues(spec, inputs)
    except UserError as error:
        if exists(path):  # not deleted meanwhile by a run that has finished the trial
            raise UserError(f"{str(error).removeprefix('resume: ')} It is {path}.") from error


def _check_finished(
    jobs: Sequence[Job], data: "dict[Any, LabelledData]", streams: "dict[str, WildStream]"
) -> list[str]:
    """Refuse results of other images under the same name; note those of a changed plugin."""
    results, plugins = jobs[0].results, {job.spec.method.name: job.spec.plugin for job in jobs}
    notes: dict[str, None] = {}
    for row in read_rows(results, "trials", columns=_COLUMNS)[0].to_pylist():
        known = Fingerprints(row.get("data_digest"), row.get("stream_digest"))
        stream = streams.get(row["stream"]) if known.stream else None
        now = Fingerprints(data[_key(row)].digest if _key(row) in data else None, stream.digest if stream else None)
        for name in known.changed(now):
            option = {"dataset": "data", "stream": "stream"}[name]
            raise UserError(
                f"{name} {row[name]!r} has other images than trial {row['trial_id']} in results {results!r} learned "
                f"from; give the folder that it had with --{option}, or other --results."
            )
        before, plugin = row["plugin"], plugins.get(row["method"])
        if before and plugin and before != plugin:
            notes[
                f"results {results!r} have trials of method {row['method']!r} made with plugin {before}; the plugin is "
                f"{plugin} now, and its trials are other ones."
            ] = None
    return list(notes)
