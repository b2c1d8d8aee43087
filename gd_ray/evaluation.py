"""Testing a model on all classes seen so far, with no task boundaries."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.data.pixels import Statistics
from gd_ray.inference import predict
from gd_ray.network import WideResNet


def confusion_counts(
    model: WideResNet, images: Tensor, labels: NDArray[np.int64], statistics: Statistics
) -> NDArray[np.int64]:
    """counts[k, j]: test images of class k that the model takes for class j."""
    seen = model.head.out_features
    predicted = predict(model, images, statistics).argmax(dim=1).cpu().numpy()
    return np.bincount(labels * seen + predicted, minlength=seen * seen).reshape(seen, seen)


def per_task(class_counts: NDArray[np.int64], task_sizes: tuple[int, ...]) -> tuple[int, ...]:
    """Counts of classes added up to counts of tasks."""
    starts = np.cumsum((0, *task_sizes[:-1]))
    return tuple(np.add.reduceat(class_counts, starts).tolist())
