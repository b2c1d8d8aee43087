"""A model without training: what it computes of uint8 images, and its counts on the test images."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.arithmetic import set_arithmetic
from gd_ray.counts import Counts, count
from gd_ray.data.augmentation import normalize, to_device
from gd_ray.data.pixels import Statistics
from gd_ray.networks.classifier import Classifier

BATCH = 256
COPIED = 16
"""Batches that are copied to a GPU at once: a unit of the stream is one copy."""


@torch.inference_mode()
def in_batches(
    compute: Callable[[Tensor], Tensor],
    model: Classifier,
    images: Tensor | NDArray[np.uint8],
    statistics: Statistics,
) -> Tensor:
    """Return what `compute`, a method of the model such as `logits`, gives for every image.

    Batches always have one size, the last one padded: on some machines a result depends on the size of the batch in its
    last bits, and a score must not depend on how the work was cut.
    """
    was_training = model.training
    model.eval()
    set_arithmetic(model.device)
    parts = []
    for first in range(0, max(1, len(images)), COPIED * BATCH):  # an empty set still has a result of the right shape
        pixels = images[first : first + COPIED * BATCH]
        pixels = to_device(pixels if isinstance(pixels, Tensor) else torch.tensor(pixels), model.device)
        for start in range(0, max(1, len(pixels)), BATCH):
            batch = pixels[start : start + BATCH]
            number = len(batch)
            if number < BATCH:
                batch = torch.cat([batch, batch.new_zeros(BATCH - number, *batch.shape[1:])])
            parts.append(compute(normalize(batch, statistics))[:number])
    model.train(was_training)
    return torch.cat(parts)


def unit_features(model: Classifier, images: Tensor | NDArray[np.uint8], statistics: Statistics) -> NDArray[np.float64]:
    """Return the direction of each image's features."""
    return _unit(in_batches(model.features, model, images, statistics).cpu().double().numpy())


def class_means(features: NDArray[np.float64], labels: NDArray[np.int64], num_classes: int) -> NDArray[np.float64]:
    """Return the direction of the mean features of each class; every class needs an image."""
    sums = np.zeros((num_classes, features.shape[1]))
    np.add.at(sums, labels, features)
    return _unit(sums)


def _unit(rows: NDArray[np.float64]) -> NDArray[np.float64]:
    result: NDArray[np.float64] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-30)
    return result


def evaluate(
    model: Classifier, images: Tensor, labels: NDArray[np.int64], statistics: Statistics, task_sizes: tuple[int, ...]
) -> Counts:
    """Count what a model gets right of the test images of its classes, and how sure it is of those and of later ones.

    Labels are in the order of learning; images with a label below 0 are left out.
    """
    tested = np.flatnonzero(labels >= 0)
    seen = labels[tested] < model.num_classes

    def of(compute: Callable[[Tensor], Tensor], indices: NDArray[np.int64]) -> NDArray[np.float32]:
        return np.asarray(in_batches(compute, model, images[indices], statistics).cpu().numpy())

    logits = of(model.logits, tested)
    of_seen, unseen, true = logits[seen], logits[~seen], labels[tested][seen]
    if not model.has_own_scores():
        return count(of_seen, None, unseen, true, task_sizes)
    return count(of(model.scores, tested[seen]), of_seen, unseen, true, task_sizes)  # it predicts by something else


def per_task(class_counts: NDArray[np.int64], task_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Add counts of classes up to counts of tasks."""
    starts = np.cumsum((0, *task_sizes[:-1]))
    return tuple(np.add.reduceat(class_counts, starts).tolist())


@torch.no_grad()
def model_sizes(model: Classifier, num_prev: int, side: int) -> dict[str, float]:
    """Return mean row norms and biases of the head's old and new classes, and the room that the model takes.

    The last is in uncompressed images, so that models and coresets can be added up.
    """
    rows = {"old": slice(0, num_prev), "new": slice(num_prev, None)} if num_prev else {"new": slice(None)}
    norms, biases = model.head.weight.norm(dim=1).cpu(), model.head.bias.cpu()
    sizes = {f"head norm {name}": float(norms[part].mean()) for name, part in rows.items()}
    sizes |= {f"head bias {name}": float(biases[part].mean()) for name, part in rows.items()}
    parameters = sum(parameter.numel() for parameter in model.parameters())
    return sizes | {"parameters": float(parameters), "model in images": 4 * parameters / (3 * side * side)}
