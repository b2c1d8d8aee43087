"""One trial: Algorithm 1 over all tasks, from a spec to typed results. Needs no Ray."""

from collections.abc import Callable
from dataclasses import replace
from time import perf_counter

import numpy as np
import torch
from numpy.typing import NDArray

from gd_ray.arithmetic import set_arithmetic
from gd_ray.checkpoint import Checkpoint
from gd_ray.checks import check_device, check_inputs
from gd_ray.coreset import class_quotas
from gd_ray.data.dataset import LabelledData
from gd_ray.data.tasks import ClassIncrementalData
from gd_ray.errors import UserError
from gd_ray.evaluation import evaluate, model_sizes, per_task
from gd_ray.fingerprint import Fingerprints
from gd_ray.learner import IntArray, Learner, Stage, StageLog
from gd_ray.learners import LEARNERS
from gd_ray.learners.distillation import train_teacher
from gd_ray.losses import EXTERNAL
from gd_ray.malloc import keep_freed_memory
from gd_ray.networks.classifier import Classifier
from gd_ray.progress import ProgressCallback, no_progress
from gd_ray.seeding import Purpose, generator
from gd_ray.spec import TrialSpec
from gd_ray.trial_result import StageResult, TrialResult
from gd_ray.wild.external import ExternalSet, sample_external_set
from gd_ray.wild.sampling import NO_SAMPLE
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
    on_progress: ProgressCallback = no_progress,
    resume: Checkpoint | None = None,
    last_stage: int | None = None,
    device: torch.device | str = "cpu",
    scorer: Scorer = score_in_process,
) -> TrialResult:
    """Run a trial, or the rest of it after `resume`, up to `last_stage` if that is given.

    `on_stage` receives each stage's result and the checkpoint to continue from. Only the spec, the data and the stream
    decide the result.
    """
    last = spec.num_tasks if last_stage is None else last_stage
    if not 1 <= last <= spec.num_tasks:
        raise UserError(f"last_stage {last_stage} is not among the {spec.num_tasks} stages; they start at 1.")
    images = ClassIncrementalData.of(spec, data)
    check_inputs(spec, images, stream)
    check_device(spec, device)
    set_arithmetic(device)
    keep_freed_memory()
    fingerprints = Fingerprints.of(spec, data, stream)
    learner = LEARNERS.named(spec.method.learner)(spec)
    coreset, model, results = np.empty(0, np.int64), None, []
    if resume is not None:
        resume.check_continues(spec, fingerprints)
        coreset, model, results = resume.coreset, _restored(learner, resume, device), list(resume.results)

    for number in range(len(results) + 1, last + 1):  # Algorithm 1
        log, started = StageLog(), perf_counter()
        current = images.indices_of_tasks(number, number, spec.task_sizes)
        exemplars = images.indices_of_tasks(1, number - 1, spec.task_sizes) if spec.method.replay_all else coreset
        labelled = np.concatenate([current, np.sort(exemplars)])
        external = sample_external_set(  # Algorithm 2
            spec,
            number,
            learner.external_size(len(labelled)),
            model,
            images.statistics,
            stream,
            scorer,
            on_progress,
            labelled=(images.train[labelled], images.train_labels[labelled]),
        )
        log.add("score", started, 0 if external is None else external.scored)

        stage = _stage(spec, number, images, current, exemplars, external, device, on_progress, log)
        if model is None and spec.method.shares_first_model:  # M_1 = C_1
            model = train_teacher(stage, learner.new_model(stage.num_new, stage.init_rng()).to(device))
        else:
            model = learner.train(stage, model)
        coreset = labelled[learner.select_coreset(stage, model)]

        results.append(_result(images, stage, model, len(coreset), external))
        if on_stage is not None:
            weights = {name: value.cpu().clone() for name, value in model.state_dict().items()}
            checkpoint = Checkpoint(spec.trial_id, spec.first_model_id, fingerprints, weights, coreset, tuple(results))
            on_stage(results[-1], checkpoint)
    return TrialResult(spec, tuple(results), fingerprints)


def _restored(learner: Learner, checkpoint: Checkpoint, device: torch.device | str) -> Classifier:
    num_classes = sum(learner.spec.task_sizes[: checkpoint.stage])
    model = learner.new_model(num_classes, generator(learner.spec.seed, 1, Purpose.INITIALISATION))
    model.load_state_dict(checkpoint.weights)
    return model.to(device).eval()


def _stage(
    spec: TrialSpec,
    number: int,
    data: ClassIncrementalData,
    current: IntArray,
    exemplars: IntArray,
    external: ExternalSet | None,
    device: torch.device | str,
    progress: ProgressCallback,
    log: StageLog,
) -> Stage:
    """Put the images of a stage on the device; exemplars are in the order of the training set."""
    order = np.argsort(exemplars, kind="stable")
    labelled = np.concatenate([current, exemplars[order]])
    images, labels = [data.train[labelled]], [torch.from_numpy(data.train_labels[labelled])]
    if external is not None:
        images.append(torch.from_numpy(external.images))
        labels.append(torch.full((len(external.images),), EXTERNAL))
    indices = np.split(np.arange(sum(map(len, labels))), [len(current), len(labelled)])
    return Stage(
        spec=spec,
        number=number,
        images=torch.cat(images).to(device),
        labels=torch.cat(labels).to(device),
        statistics=data.statistics,
        current=indices[0],
        exemplars=indices[1],
        ranked_exemplars=indices[1][np.argsort(order)],
        external=indices[2],
        external_previous=0 if external is None else int((~external.sample.is_ood).sum()),
        quotas=class_quotas(spec.coreset_size, sum(spec.task_sizes[:number])),
        progress=progress,
        log=log,
    )


def _result(
    data: ClassIncrementalData, stage: Stage, model: Classifier, coreset_size: int, external: ExternalSet | None
) -> StageResult:
    """Test the model of a stage on all tasks seen so far, and its confidence on the later ones too."""
    started, tested = perf_counter(), int((data.test_labels >= 0).sum())
    counts = evaluate(model, data.test, data.test_labels, data.statistics, stage.task_sizes)
    teacher_confidences = _teacher_confidences(data, stage)
    stage.log.add("evaluate", started, tested)
    stage.progress(stage.number, "evaluate", tested, tested)
    head, samples = counts.head_confusion, NO_SAMPLE
    if external is not None:
        classes = np.where(external.sample.is_ood, -1, data.order[external.sample.classes])
        samples = replace(external.sample, classes=classes)
    return StageResult(
        stage=stage.number,
        hits=per_task(counts.confusion.diagonal(), stage.task_sizes),
        totals=per_task(counts.confusion.sum(axis=1), stage.task_sizes),
        confusion=_numbered_confusion(counts.confusion, data.order),
        labelled_size=len(stage.labelled),
        coreset_size=coreset_size,
        samples=samples,
        losses=stage.log.losses,
        images=stage.log.images,
        seconds=stage.log.seconds,
        head_hits=None if head is None else per_task(head.diagonal(), stage.task_sizes),
        head_confusion=None if head is None else _numbered_confusion(head, data.order),
        task_aware_hits=counts.task_aware_hits,
        top5_hits=counts.top5_hits,
        nll=counts.nll,
        confidences=counts.confidences,
        teacher_confidences=teacher_confidences,
        recorded=model_sizes(model, stage.num_prev, data.side) | stage.log.recorded,
    )


def _teacher_confidences(data: ClassIncrementalData, stage: Stage) -> NDArray[np.float64] | None:
    """Count C's confidence on its own task, and on all other classes as unseen ones. That of C_1 is M_1's."""
    if stage.log.teacher is None or stage.number == 1:
        return None
    own = data.test_labels - stage.num_prev
    others = (own < 0) | (own >= stage.num_new)
    labels = np.where(data.test_labels < 0, -1, np.where(others, stage.num_new, own))
    return evaluate(stage.log.teacher, data.test, labels, data.statistics, (stage.num_new,)).confidences


def _numbered_confusion(counts: IntArray, order: IntArray) -> IntArray:
    """Return rows of (true class, predicted class, count), without zero counts."""
    true, predicted = np.nonzero(counts)
    return np.stack([order[true], order[predicted], counts[true, predicted]], axis=1)
