"""One trial: Algorithm 1 over all tasks, from a spec to typed results. Needs no Ray."""

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.checkpoint import Checkpoint
from gd_ray.coreset import class_quotas, select_coreset
from gd_ray.data.image_set import LabelledData, Statistics
from gd_ray.data.tasks import class_order, learned_labels
from gd_ray.errors import UserError
from gd_ray.inference import predict
from gd_ray.losses import EXTERNAL
from gd_ray.network import WideResNet
from gd_ray.progress import Report, silent
from gd_ray.results import SampledImages, StageResult, TrialResult
from gd_ray.seeding import Purpose, generator, numpy_generator
from gd_ray.spec import TrialSpec
from gd_ray.stage import Stage, StageData, StageLog
from gd_ray.training import Pool
from gd_ray.wild.sampling import Sample, finish, plan_sampling
from gd_ray.wild.scoring import Scorer, score_in_process
from gd_ray.wild.stream import Stream, Window, stage_window

__all__ = ["Checkpoint", "TrialResult", "TrialSpec", "run_trial"]

OnStage = Callable[[StageResult, Checkpoint], None]


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


def run_trial(
    spec: TrialSpec,
    data: LabelledData,
    stream: Stream | None = None,
    *,
    on_stage: OnStage | None = None,
    on_progress: Report = silent,
    resume: Checkpoint | None = None,
    device: torch.device | str = "cpu",
    scorer: Scorer = score_in_process,
) -> TrialResult:
    """Runs a trial, or the rest of it after `resume`.

    `on_stage` gets each stage's result and the checkpoint to continue from. Only the spec, the data and the stream
    decide the result.
    """
    learned = _learned(spec, data)
    check_inputs(spec, learned, stream)
    coreset, model, results = np.empty(0, np.int64), None, []
    if resume is not None:
        resume.check_continues(spec)
        coreset, model, results = resume.coreset, _restored(spec, resume, device), list(resume.results)

    for number in range(len(results) + 1, spec.num_tasks + 1):  # Algorithm 1
        log = StageLog()
        current, replayed = _labelled_members(spec, learned, number, coreset)
        labelled_size = len(current) + len(replayed)
        external = _external_set(spec, learned, stream, number, labelled_size, model, scorer, on_progress, log)
        stage = Stage(spec, number, _stage_data(learned, current, replayed, external, device), on_progress, log)
        if model is None:
            model = stage.first_model()
        else:
            teacher = stage.teacher(model) if _trains_teacher(spec) else None
            model = stage.fine_tuned(stage.model(model, teacher), model, teacher)
        coreset = _next_coreset(spec, learned, number, current, replayed)
        results.append(_result(spec, learned, stage, model, labelled_size, len(coreset), external, on_progress))
        if on_stage is not None:
            weights = {name: value.cpu() for name, value in model.state_dict().items()}
            on_stage(
                results[-1], Checkpoint(spec.trial_id, spec.first_model_id, weights, coreset, tuple(results))
            )
    return TrialResult(spec, tuple(results))


def check_inputs(spec: TrialSpec, learned: Learned, stream: Stream | None) -> None:
    """Everything that would stop a trial later on, said before it starts."""
    for part, labels in (("training", learned.train_labels), ("test", learned.test_labels)):
        counts = np.bincount(labels[labels >= 0], minlength=spec.num_classes)
        if counts.min() == 0:
            missing = int(learned.order[counts.argmin()])
            raise UserError(f"dataset {spec.dataset!r} has no {part} image of class {missing}; add some or drop the class.")
    if not spec.rules.external:
        return
    if stream is None:
        raise UserError(
            f"method {spec.rules.name!r} learns with external data, but no stream was given; pass one or take "
            f"{spec.rules.name.removesuffix('+ext')!r}."
        )
    per_task = np.bincount(learned.train_labels[learned.train_labels >= 0] // spec.task_size)
    most = int(per_task.sum() if spec.rules.replay_all else per_task.max() + spec.coreset_size)
    available = min(len(stream), spec.window)
    if available < most:
        field = "window" if spec.window < len(stream) else "stream"
        raise UserError(
            f"{field} offers {available} images, but a stage samples as many as it has labelled ones, up to {most}; "
            f"give a longer stream or window."
        )


def _learned(spec: TrialSpec, data: LabelledData) -> Learned:
    train = data.train.first_of_each_class(spec.train_per_class)
    test = data.test.first_of_each_class(spec.test_per_class)
    order = class_order(spec.seed, data.num_classes)
    labels = [learned_labels(part.labels.numpy(), order, spec.num_classes, data.name) for part in (train, test)]
    return Learned(train.images, labels[0], test.images, labels[1], data.statistics, order[: spec.num_classes])


def _restored(spec: TrialSpec, checkpoint: Checkpoint, device: torch.device | str) -> WideResNet:
    rows = sum(spec.task_sizes[: checkpoint.stage])
    unused = generator(spec.seed, 1, Purpose.INITIALISATION)
    model = WideResNet(spec.depth, spec.width, spec.dropout, rows, unused)
    model.load_state_dict(checkpoint.weights)
    return model.to(device).eval()


def _trains_teacher(spec: TrialSpec) -> bool:
    """Whether the method needs a C: to distil it, or inside Q."""
    inside_ensemble = spec.rules.ensemble and not spec.reading.ensemble_alone_has_no_teacher
    return spec.rules.teacher == "distilled" or inside_ensemble


def _labelled_members(
    spec: TrialSpec, learned: Learned, number: int, coreset: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Places in the training set of D_t and of what is replayed with it."""
    task = np.where(learned.train_labels >= 0, learned.train_labels // spec.task_size + 1, 0)
    previous = np.flatnonzero((task >= 1) & (task < number)) if spec.rules.replay_all else coreset
    return np.flatnonzero(task == number), previous


@dataclass(frozen=True)
class _External:
    """The external set of a stage: what was sampled, where it lies in the stream, and its pixels."""

    sample: Sample
    positions: NDArray[np.int64]
    images: NDArray[np.uint8]


def _external_set(
    spec: TrialSpec,
    learned: Learned,
    stream: Stream | None,
    number: int,
    size: int,
    previous: WideResNet | None,
    scorer: Scorer,
    report: Report,
    log: StageLog,
) -> _External | None:
    """D_t^ext: as many stream images as labelled ones, by Algorithm 2. None where the stage learns with none."""
    method = spec.rules
    # The first model has nothing to learn from external images but to be unsure about them.
    if stream is None or not method.external or (previous is None and not method.confidence):
        return None
    started = perf_counter()
    window: Window = stage_window(spec.seed, number, len(stream), spec.window)
    num_prev = 0 if previous is None else previous.head.out_features
    plan = plan_sampling(method, spec.reading, size=size, ood_ratio=spec.ood_ratio, num_classes=num_prev)
    found, scored = None, 0
    if previous is not None and plan.scores:

        def on_images(images: int) -> None:
            nonlocal scored
            scored += images
            report(number, "score", scored, window.length - plan.skipped)

        found = scorer(previous, learned.statistics, stream, window, plan, on_images)
    sample = finish(plan, found, window.length, numpy_generator(spec.seed, number, Purpose.OOD_SAMPLE))
    positions = window.positions(sample.offsets)
    external = _External(sample, positions, stream.read(positions))
    log.seconds["score"], log.images["score"] = perf_counter() - started, scored
    return external


def _stage_data(
    learned: Learned,
    current: NDArray[np.int64],
    replayed: NDArray[np.int64],
    external: _External | None,
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


def _next_coreset(
    spec: TrialSpec, learned: Learned, number: int, current: NDArray[np.int64], replayed: NDArray[np.int64]
) -> NDArray[np.int64]:
    places = np.concatenate([current, replayed])
    quotas = class_quotas(spec.coreset_size, number * spec.task_size)
    numbers = numpy_generator(spec.seed, number, Purpose.CORESET)
    return select_coreset(places, learned.train_labels[places], quotas, numbers)


def _result(
    spec: TrialSpec,
    learned: Learned,
    stage: Stage,
    model: WideResNet,
    labelled_size: int,
    coreset_size: int,
    external: _External | None,
    report: Report,
) -> StageResult:
    """Tests the model on all classes seen, with no task boundaries."""
    started = perf_counter()
    seen = sum(stage.task_sizes)
    places = np.flatnonzero((learned.test_labels >= 0) & (learned.test_labels < seen))
    truth = learned.test_labels[places]
    predicted = predict(model, learned.test[places], learned.statistics).argmax(dim=1).cpu().numpy()
    counts = np.bincount(truth * seen + predicted, minlength=seen * seen).reshape(seen, seen)
    true_class, predicted_class = np.nonzero(counts)
    confusion = np.stack(
        [learned.order[true_class], learned.order[predicted_class], counts[true_class, predicted_class]], axis=1
    )
    per_task = (stage.number, spec.task_size)
    stage.log.images["evaluate"], stage.log.seconds["evaluate"] = len(places), perf_counter() - started
    report(stage.number, "evaluate", len(places), len(places))
    return StageResult(
        stage=stage.number,
        hits=tuple(counts.diagonal().reshape(per_task).sum(axis=1).tolist()),
        totals=tuple(counts.sum(axis=1).reshape(per_task).sum(axis=1).tolist()),
        confusion=confusion.astype(np.int64),
        labelled_size=labelled_size,
        coreset_size=coreset_size,
        samples=_sampled(external, learned.order),
        losses=stage.log.losses,
        images=stage.log.images,
        seconds=stage.log.seconds,
    )


def _sampled(external: _External | None, order: NDArray[np.int64]) -> SampledImages:
    if external is None:
        return SampledImages(np.empty(0, np.int64), np.empty(0, bool), np.empty(0, np.int64), np.empty(0, np.float32))
    sample = external.sample
    classes = np.where(sample.is_ood, -1, order[sample.classes])
    return SampledImages(external.positions, sample.is_ood, classes, sample.confidences.astype(np.float32))
