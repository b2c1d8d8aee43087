"""Class orders: which classes a seed learns, and in which order."""

import numpy as np
from numpy.typing import NDArray

from gd_ray.data.image_set import LabelledData
from gd_ray.errors import UserError


def class_order(seed: int, num_classes: int) -> NDArray[np.int64]:
    """The order of all classes of a data set for this seed; consecutive slices are the tasks."""
    return np.random.RandomState(seed).permutation(num_classes)


def class_sets(num_classes: int, set_size: int) -> NDArray[np.int64]:
    """Disjoint sets of classes, one row for each seed; classes that fill no whole set are in none."""
    sets = num_classes // set_size
    return np.random.RandomState(0).permutation(num_classes)[: sets * set_size].reshape(sets, set_size)


def learned_order(data: LabelledData, seed: int) -> NDArray[np.int64]:
    """The classes that a seed may learn, in the order of learning: all of them, or the seed's own set."""
    if data.set_size is None:
        return class_order(seed, data.num_classes)
    sets = class_sets(data.num_classes, data.set_size)
    if seed >= len(sets):
        raise UserError(
            f"seed {seed} has no classes of its own: the {data.num_classes} classes of {data.name} make {len(sets)} "
            f"sets of {data.set_size}; take a seed from 0 to {len(sets) - 1}."
        )
    return np.take(sets[seed], class_order(seed, data.set_size))


def learned_labels(
    labels: NDArray[np.int64], order: NDArray[np.int64], num_learned: int, data: LabelledData
) -> NDArray[np.int64]:
    """Each label as its place in the order of learning; -1 for classes that this trial does not learn."""
    if num_learned > len(order):
        raise UserError(f"num_classes {num_learned} is more than the {len(order)} classes of {data.name}; lower it.")
    places = np.full(data.num_classes, -1, np.int64)
    places[order[:num_learned]] = np.arange(num_learned)
    return places[labels]
