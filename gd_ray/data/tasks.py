"""Class orders: which classes a seed learns, and in which order."""

import numpy as np
from numpy.typing import NDArray

from gd_ray.errors import UserError


def class_order(seed: int, num_classes: int) -> NDArray[np.int64]:
    """The order of all classes of a data set for this seed; consecutive slices are the tasks."""
    return np.random.RandomState(seed).permutation(num_classes)


def learned_labels(
    labels: NDArray[np.int64], order: NDArray[np.int64], num_learned: int, name: str
) -> NDArray[np.int64]:
    """Each label as its place in the order of learning; -1 for classes that this trial does not learn."""
    if num_learned > len(order):
        raise UserError(f"num_classes {num_learned} is more than the {len(order)} classes of {name}; lower it.")
    places = np.full(len(order), -1, np.int64)
    places[order[:num_learned]] = np.arange(num_learned)
    return places[labels]
