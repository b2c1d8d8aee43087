"""The paper's family of methods: distil the previous model P, a teacher C of the current task, and their ensemble Q."""

import copy
from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor

from gd_ray.conventions import convention_named
from gd_ray.coreset import balanced_set, random_coreset
from gd_ray.learner import IntArray, Learner, Stage
from gd_ray.networks.classifier import Classifier, expand_head, with_new_head
from gd_ray.objective import ModelObjective, model_terms, task_labels, teacher_terms
from gd_ray.seeding import Purpose
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step, distillation_steps, teacher_step
from gd_ray.training import ReferenceLoss


def train_teacher(stage: Stage, network: Classifier) -> Classifier:
    """Train C on the current task alone (Equation 5, or 12 with confidence)."""
    indices = stage.all if stage.spec.method.confidence else stage.current
    calibrate = len(indices) > len(stage.current)

    def terms(logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        return teacher_terms(logits, task_labels(labels, stage.num_prev), calibrate=calibrate)

    loss = ReferenceLoss(terms, precision=stage.spec.precision)
    stage.fit(teacher_step(stage.spec, stage.sizes), network, loss, indices)
    stage.log.teacher = network
    return network


class Distillation(Learner):
    """Algorithm 1, lines 9 to 18, for every combination of references, balancing and external data of `Method`."""

    def __init__(self, spec: TrialSpec) -> None:
        super().__init__(spec)
        self.method = spec.method
        self.convention = convention_named(spec.convention)

    def steps(self, sizes: StageSizes) -> Sequence[Step]:
        return distillation_steps(self.spec, sizes)

    def train(self, stage: Stage, previous: Classifier | None) -> Classifier:
        assert previous is not None, "these methods share their first model"
        steps = {step.name: step for step in self.steps(stage.sizes)}
        teacher = None
        if "teacher" in steps:
            teacher = train_teacher(stage, with_new_head(previous, stage.num_new, stage.init_rng()))
        model = self.train_model(stage, steps["model"], previous, teacher)
        if "fine-tune" in steps:
            self.fine_tune(stage, steps["fine-tune"], model, previous, teacher)
        return model

    def train_model(self, stage: Stage, step: Step, previous: Classifier, teacher: Classifier | None) -> Classifier:
        """Train M on all classes from the labels and the references (Equation 9)."""
        model = expand_head(previous, stage.num_new, stage.init_rng())
        weighted = self.method.balancing == "data weighting"
        counts = self._class_counts(stage, stage.all, count_external=True) if weighted else None
        objective = self._objective(stage, counts)
        stage.fit(step, model, self._loss(objective, previous, teacher), stage.all)
        return model

    def fine_tune(
        self, stage: Stage, step: Step, model: Classifier, previous: Classifier, teacher: Classifier | None
    ) -> None:
        """Remove M's bias to the current task in place: data weighting on the head, or a balanced set."""
        method = self.method
        from_copy = method.fine_tunes_from_copy or (
            method.teacher != "distilled" and self.convention.fine_tune_from_copy_without_teacher
        )
        if from_copy:  # the copy knows the current task too, so it takes the place of P and C
            previous, teacher = copy.deepcopy(model), None
        indices = self._balanced_set(stage) if method.balancing == "balanced set" else stage.all
        weighted = method.balancing == "weighted fine-tuning"
        counts = self._class_counts(stage, indices, count_external=False) if weighted else None
        objective = self._objective(stage, counts, fine_tuning=True, from_copy=from_copy)
        loss = self._loss(objective, previous, teacher, head_only=step.head_only)
        stage.fit(step, model, loss, indices, model.head.parameters() if step.head_only else None)

    def select_coreset(self, stage: Stage, model: Classifier) -> IntArray:
        fine_tuned_on_balanced_set = self.method.balancing == "balanced set" and stage.number > 1
        if not (fine_tuned_on_balanced_set and self.convention.coreset_from_balanced_set):
            return super().select_coreset(stage, model)
        indices = self._balanced_set(stage)
        return random_coreset(indices, stage.labels_of(indices), stage.quotas, stage.numpy_rng(Purpose.CORESET))

    def _objective(
        self, stage: Stage, class_counts: Tensor | None, *, fine_tuning: bool = False, from_copy: bool = False
    ) -> ModelObjective:
        method = self.method
        return ModelObjective(
            task_sizes=stage.task_sizes,
            previous=method.previous,
            teacher="none" if from_copy else method.teacher,
            ensemble=method.ensemble and not from_copy,
            confidence=method.confidence,
            fine_tuning=fine_tuning,
            temperature=self.spec.temperature,
            ensemble_temperature=self.spec.ensemble_temperature,
            convention=self.convention,
            class_counts=class_counts,
        )

    def _loss(
        self, objective: ModelObjective, previous: Classifier, teacher: Classifier | None, *, head_only: bool = False
    ) -> ReferenceLoss:
        """Return the loss of M with the references that the objective uses."""
        references = previous if objective.uses_previous else None, teacher if objective.uses_teacher else None
        terms = partial(model_terms, objective)
        return ReferenceLoss(terms, *references, precision=self.spec.precision, head_only=head_only)

    def _class_counts(self, stage: Stage, indices: IntArray, *, count_external: bool) -> Tensor:
        """Count the images of each class, for data weighting (Equation 10)."""
        labels = stage.labels[torch.from_numpy(indices).to(stage.labels.device)]
        counts = torch.bincount(labels[labels >= 0], minlength=sum(stage.task_sizes)).to(torch.float32)
        if count_external and self.convention.weigh_external_as_previous:
            counts[: stage.num_prev] += stage.external_previous / stage.num_prev
        return counts

    def _balanced_set(self, stage: Stage) -> IntArray:
        return balanced_set(
            stage.current,
            stage.labels_of(stage.current),
            stage.exemplars,
            stage.num_prev,
            sum(stage.task_sizes),
            stage.numpy_rng(Purpose.BALANCED_SET),
        )
