"""One trial: Algorithm 1 over all tasks, from a spec to typed results. Needs no Ray."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.allocator import keep_freed_memory
from gd_ray.checkpoint import Checkpoint
from gd_ray.coreset import class_quotas, select_coreset
from gd_ray.data.image_set import LabelledData
from gd_ray.data.pixels import Statistics
from gd_ray.data.tasks import learned_labels, learned_order
from gd_ray.errors import UserError
from gd_ray.evaluation import confusion_counts, per_task
from gd_ray.inputs import Inputs
from gd_ray.losses import EXTERNAL
from gd_ray.network import WideResNet
from gd_ray.progress import Report, silent
from gd_ray.results import SampledImages, StageResult, TrialResult
from gd_ray.seeding import Purpose, generator, numpy_generator
from gd_ray.spec import TrialSpec
from gd_ray.stage import Stage, StageData, StageLog
from gd_ray.training import Pool
from gd_ray.wild.external import ExternalSet, sample_external_set
from gd_ray.wild.scoring import Scorer, score_in_process
from gd_ray.wild.stream import Stream

__all__ = ["Checkpoint", "TrialResult", "TrialSpec", "run_trial"]

OnStage = Callable[[StageResult, Checkpoint], None]


def run_trial(
    spec: TrialSpec,
    data: LabelledData,
    stream: Stream | None = None,
    *,
    on_stage: OnStage | None = None,
    on_progress: Report = silent,
    resume: Checkpoint | None = None,
    last_stage: int | None = None,
    device: torch.device | str = "cpu",
    scorer: Scorer = score_in_process,
) -> TrialResult:
    """Runs a trial, or the rest of it after `resume`, up to `last_stage` if that is given.

    `on_stage` gets each stage's result and the checkpoint to continue from. Only the spec, the data and the stream
    decide the result.
    """
    last = spec.num_tasks if last_stage is None else last_stage
    if not 1 <= last <= spec.num_tasks:
        raise UserError(f"last_stage {last_stage} is not among the {spec.num_tasks} stages; they start at 1.")
    learned = learned_data(spec, data)
    check_inputs(spec, learned, stream)
    _check_device(spec, device)
    keep_freed_memory()
    inputs = Inputs.of(spec, data, stream)
    coreset, model, results = np.empty(0, np.int64), None, []
    if resume is not None:
        resume.check_continues(spec, inputs)
        coreset, model, results = resume.coreset, _restored(spec, resume, device), list(resume.results)

    for number in range(len(results) + 1, last + 1):  # Algorithm 1
        log = StageLog()
        current, replayed = _labelled_places(spec, learned, number, coreset)
        labelled = np.concatenate([current, replayed])
        started = perf_counter()
        external = sample_external_set(
            spec, number, len(labelled), model, learned.statistics, stream, scorer, on_progress
        )
        log.add("score", started, 0 if external is None else external.scored)

        stage = Stage(spec, number, _stage_data(learned, current, replayed, external, device), on_progress, log)
        if model is None:
            model = stage.first_model()
        else:
            teacher = stage.teacher(model) if spec.trains_teacher else None
            model = stage.fine_tuned(stage.model(model, teacher), model, teacher)

        quotas = class_quotas(spec.coreset_size, model.head.out_features)
        numbers = numpy_generator(spec.seed, number, Purpose.CORESET)
        coreset = select_coreset(labelled, learned.train_labels[labelled], quotas, numbers)
        results.append(_result(learned, stage, model, len(labelled), len(coreset), external))
        if on_stage is not None:
            weights = {name: value.cpu().clone() for name, value in model.state_dict().items()}
            checkpoint = Checkpoint(spec.trial_id, spec.first_model_id, inputs, weights, coreset, tuple(results))
            on_stage(results[-1], checkpoint)
    return TrialResult(spec, tuple(results), inputs)


@dataclass(frozen=True)
class Learned:
    """A data set as this trial sees it: labels in the order of learning, -1 for classes it does not learn."""

    train: Tensor
    train_labels: NDArray[np.int64]
    test: Tensor
    test_labels: NDArray[np.int64]
    statistics: Statistics
    order: NDArray[np.int64]
    """The data set's number of each learned class."""


def learned_data(spec: TrialSpec, data: LabelledData) -> Learned:
    """The data set with its classes in the seed's order, cut to the images that the spec asks for."""
    if data.name != spec.dataset:
        raise UserError(
            f"dataset {spec.dataset!r} is asked for, but the data is {data.name!r}; give the one or the other."
        )
    train = data.train.first_of_each_class(spec.train_per_class)
    test = data.test.first_of_each_class(spec.test_per_class)
    order = learned_order(data, spec.seed)
    labels = [learned_labels(part.labels.numpy(), order, spec.num_classes, data) for part in (train, test)]
    return Learned(train.images, labels[0], test.images, labels[1], data.statistics, order[: spec.num_classes])


def _check_device(spec: TrialSpec, device: torch.device | str) -> None:
    try:
        asked = torch.device(device)
    except RuntimeError as error:
        raise UserError(f"device {str(device)!r} is none that torch knows; take 'cpu' or 'cuda'.") from error
    if asked.type == "cpu":
        return
    if asked.type != "cuda":
        raise UserError(f"device {str(device)!r} is none that trials run on; take 'cpu' or 'cuda'.")
    if not torch.cuda.is_available():
        raise UserError(f"device {str(device)!r} is asked for, but this machine has no usable GPU; take 'cpu'.")
    if asked.index is not None and asked.index >= torch.cuda.device_count():
        raise UserError(
            f"device {str(device)!r} is asked for, but this machine has {torch.cuda.device_count()} GPUs, counted from "
            f"0; take one of them."
        )
    if spec.precision == "bfloat16" and not torch.cuda.is_bf16_supported(including_emulation=False):
        name = torch.cuda.get_device_name(device)
        raise UserError(f"precision 'bfloat16' is nothing that {name} has; take 'float32'.")


def check_inputs(spec: TrialSpec, learned: Learned, stream: Stream | None) -> None:
    """Everything that would stop a trial later on, said before it starts."""
    for part, labels in (("training", learned.train_labels), ("test", learned.test_labels)):
        counts = np.bincount(labels[labels >= 0], minlength=spec.num_classes)
        fewest, least = int(learned.order[counts.argmin()]), int(counts.min())
        if least == 0:
            raise UserError(f"dataset {spec.dataset!r} has no {part} image of class {fewest}; add some.")
        asked = spec.train_per_class if part == "training" else spec.test_per_class
        if asked is not None and least < asked:
            raise UserError(
                f"{part.removesuffix('ing')}_per_class {asked} is more than the {least} {part} images of class "
                f"{fewest}; lower it."
            )
    if not spec.rules.external:
        return
    if stream is None:
        raise UserError(
            f"method {spec.rules.name!r} learns with external data, but no stream was given; pass one, or take a "
            f"method without external data."
        )
    task_counts = np.bincount(learned.train_labels[learned.train_labels >= 0] // spec.task_size)
    earlier = np.cumsum(task_counts) - task_counts
    replayed = earlier if spec.rules.replay_all else np.minimum(earlier, spec.coreset_size)
    most = int((task_counts + replayed).max())
    available = min(len(stream), spec.window)
    if available < most:
        name = f"window {spec.window}" if spec.window < len(stream) else f"stream {spec.stream!r}"
        raise UserError(
            f"{name} offers {available} images, but a stage samples up to {most} of them, as many as it has labelled "
            f"ones; make it longer."
        )
    if spec.num_tasks * spec.window > len(stream):
        warnings.warn(
            f"stream {spec.stream!r} has {len(stream)} images, fewer than {spec.num_tasks} windows of {spec.window}: "
            f"stages of a trial will see some images again.",
            stacklevel=2,
        )


def _restored(spec: TrialSpec, checkpoint: Checkpoint, device: torch.device | str) -> WideResNet:
    rows = sum(spec.task_sizes[: checkpoint.stage])
    overwritten = generator(spec.seed, 1, Purpose.INITIALISATION)
    model = WideResNet(spec.depth, spec.width, spec.dropout, rows, overwritten)
    model.load_state_dict(checkpoint.weights)
    return model.to(device).eval()


def _labelled_places(
    spec: TrialSpec, learned: Learned, number: int, coreset: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places in the training set of the current task's images, and of what is replayed with them."""
    task = learned.train_labels // spec.task_size + 1  # 0 for classes that are not learned
    previous = np.flatnonzero((task >= 1) & (task < number)) if spec.rules.replay_all else coreset
    return np.flatnonzero(task == number), previous


def _stage_data(
    learned: Learned,
    current: NDArray[np.int64],
    replayed: NDArray[np.int64],
    external: ExternalSet | None,
    device: torch.device | str,
) -> StageData:
    places = np.concatenate([current, replayed])
    images, labels = [learned.train[places]], [torch.from_numpy(learned.train_labels[places])]
    if external is not None:
        images.append(torch.from_numpy(external.images))
        labels.append(torch.full((len(external.images),), EXTERNAL))
    pool = Pool(torch.cat(images).to(device), torch.cat(labels).to(device), learned.statistics)
    parts = np.split(np.arange(len(pool.labels)), [len(current), len(places)])
    from_previous = 0 if external is None else int((~external.sample.is_ood).sum())
    return StageData(pool, parts[0], parts[1], parts[2], from_previous)


def _result(
    learned: Learned,
    stage: Stage,
    model: WideResNet,
    labelled_size: int,
    coreset_size: int,
    external: ExternalSet | None,
) -> StageResult:
    started = perf_counter()
    places = np.flatnonzero((learned.test_labels >= 0) & (learned.test_labels < model.head.out_features))
    counts = confusion_counts(model, learned.test[places], learned.test_labels[places], learned.statistics)
    true, predicted = np.nonzero(counts)
    stage.log.add("evaluate", started, len(places))
    stage.report(stage.number, "evaluate", len(places), len(places))
    return StageResult(
        stage=stage.number,
        hits=per_task(counts.diagonal(), stage.task_sizes),
        totals=per_task(counts.sum(axis=1), stage.task_sizes),
        confusion=np.stack([learned.order[true], learned.order[predicted], counts[true, predicted]], axis=1),
        labelled_size=labelled_size,
        coreset_size=coreset_size,
        samples=_sampled(external, learned.order),
        losses=stage.log.losses,
        images=stage.log.images,
        seconds=stage.log.seconds,
    )


def _sampled(external: ExternalSet | None, order: NDArray[np.int64]) -> SampledImages:
    if external is None:
        return SampledImages(np.empty(0, np.int64), np.empty(0, bool), np.empty(0, np.int64), np.empty(0, np.float32))
    sample = external.sample
    classes = np.where(sample.is_ood, -1, order[sample.classes])
    return SampledImages(external.positions, sample.is_ood, classes, sample.confidences.astype(np.float32))
