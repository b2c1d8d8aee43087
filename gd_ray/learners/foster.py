"""FOSTER, feature boosting and compression (Wang et al., ECCV 2022): learn with a second backbone, then distil both.

The settings are those of the authors' program for CIFAR-100, with one `beta` for all stages where it has a list.
"""

from collections.abc import Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor

from gd_ray.data.augmentation import to_device
from gd_ray.errors import UserError
from gd_ray.learner import IntArray, Learner, Stage
from gd_ray.losses import EXTERNAL, classification, distillation, masked_mean, softmax_with_temperature
from gd_ray.networks.boosted import boosted_classifier
from gd_ray.networks.classifier import Classifier, expand_head
from gd_ray.schedule import Cosine
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes, Step
from gd_ray.training import ReferenceLoss

BOOSTING, COMPRESSION = Cosine((170,)), Cosine((130,))
BETAS = {"boosting_beta": 0.96, "compression_beta": 0.97}


def effective_weights(counts: IntArray, beta: float) -> Tensor:
    """Return a weight for each class, 1 in the mean: the inverse of its effective number (1 - beta^n) / (1 - beta)."""
    inverse = (1 - beta) / (1 - np.power(beta, counts))
    return torch.from_numpy(inverse / inverse.mean())


def boosting_terms(outputs: Tensor, labels: Tensor, weights: Tensor, temperature: float) -> dict[str, Tensor]:
    """Return the loss of the three blocks of a `BoostedHead`.

    Logits are divided by the class weights, so that those of classes with few images become larger; the new features
    have to classify alone as well; and P is distilled on all images.
    """
    number = len(weights)
    logits, new, previous = outputs.tensor_split((number, 2 * number), dim=1)
    kept = distillation(logits[:, : previous.shape[1]], softmax_with_temperature(previous, temperature), temperature)
    labelled = labels != EXTERNAL
    return {
        "cls": masked_mean(classification(logits / weights, labels), labelled),
        "features": masked_mean(classification(new, labels), labelled),
        "previous": masked_mean(kept),
    }


def compression_terms(
    logits: Tensor, _: Tensor, boosted: Tensor, weights: Tensor, temperature: float
) -> dict[str, Tensor]:
    """Return the balanced distillation of the boosted network; labels do not matter."""
    target = softmax_with_temperature(boosted[:, : len(weights)], temperature) * weights
    return {"compression": masked_mean(distillation(logits, target / target.sum(dim=1, keepdim=True), temperature))}


class Foster(Learner):
    """The compressed network is the model; external images join the distillation of P and the compression."""

    def __init__(self, spec: TrialSpec) -> None:
        super().__init__(spec)
        self.betas = {name: float(spec.method.option(name, default)) for name, default in BETAS.items()}
        for name, beta in self.betas.items():
            if not 0 <= beta < 1:
                raise UserError(f"method {spec.method.name!r}: {name} {beta} must be at least 0 and below 1.")
        num_prev = sum(spec.task_sizes[:-1])
        if spec.coreset_size < num_prev:
            raise UserError(
                f"coreset_size {spec.coreset_size} leaves method {spec.method.name!r} no image of some of {num_prev} "
                f"previous classes, by whose number it weighs them; raise it to {num_prev} or more."
            )

    def steps(self, sizes: StageSizes) -> Sequence[Step]:
        return [
            Step("boost", BOOSTING, sizes.all, references=1),  # P
            Step("model", COMPRESSION, sizes.all, references=2),  # both backbones
        ]

    def train(self, stage: Stage, previous: Classifier | None) -> Classifier:
        assert previous is not None, "this method shares its first model"
        boost, compress = self.steps(stage.sizes)
        rng, precision, temperature = stage.init_rng(), self.spec.precision, self.spec.temperature
        model = expand_head(previous, stage.num_new, rng)
        boosted = boosted_classifier(previous, model.num_classes, rng, bfloat16=precision == "bfloat16")
        learned = [parameter for parameter in boosted.parameters() if parameter.requires_grad]
        counts = np.bincount(stage.labels_of(stage.labelled), minlength=model.num_classes)
        weights = [
            to_device(effective_weights(counts, beta).to(model.head.weight.dtype), stage.device)
            for beta in self.betas.values()
        ]
        boosting = partial(boosting_terms, weights=weights[0], temperature=temperature)
        stage.fit(boost, boosted, ReferenceLoss(boosting, precision=precision), stage.all, learned)
        compression = partial(compression_terms, weights=weights[1], temperature=temperature)
        stage.fit(compress, model, ReferenceLoss(compression, boosted, precision=precision), stage.all, weight_decay=0)
        return model
