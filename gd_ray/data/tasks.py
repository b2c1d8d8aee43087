"""Tasks: which classes a seed learns, in which order, and a data set as one trial sees it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gd_ray.data.dataset import LabelledData
from gd_ray.data.pixels import Statistics
from gd_ray.errors import UserError
from gd_ray.spec import TrialSpec

IntArray = NDArray[np.int64]


def seed_permutation(seed: int, num_classes: int) -> IntArray:
    """Return the order of all classes of a data set for this seed; consecutive slices are the tasks."""
    return np.random.RandomState(seed).permutation(num_classes)


def class_sets(num_classes: int, set_size: int) -> IntArray:
    """Return disjoint sets of classes, one row for each seed; classes that fill no whole set are in none."""
    sets = num_classes // set_size
    return np.random.RandomState(0).permutation(num_classes)[: sets * set_size].reshape(sets, set_size)


def class_order(data: LabelledData, seed: int) -> IntArray:
    """Return the classes that a seed may learn, in the order of learning: all of them, or the seed's own set."""
    if data.set_size is None:
        return seed_permutation(seed, data.num_classes)
    sets = class_sets(data.num_classes, data.set_size)
    if seed >= len(sets):
        made = f"the {data.num_classes} classes of {data.name} make {len(sets)} sets of {data.set_size}"
        raise UserError(f"seed {seed} has no classes of its own: {made}; use a seed from 0 to {len(sets) - 1}.")
    return np.take(sets[seed], seed_permutation(seed, data.set_size))


def labels_in_order(labels: IntArray, order: IntArray, num_learned: int, data: LabelledData) -> IntArray:
    """Replace each label by its rank in the order of learning; -1 for classes that the trial does not learn."""
    if num_learned > len(order):
        raise UserError(f"num_classes {num_learned} is more than the {len(order)} classes of {data.name}; lower it.")
    ranks = np.full(data.num_classes, -1, np.int64)
    ranks[order[:num_learned]] = np.arange(num_learned)
    return ranks[labels]


@dataclass(frozen=True)
class ClassIncrementalData:
    """A data set as one trial sees it: labels in the order of learning, -1 for classes it does not learn."""

    train: Tensor
    train_labels: IntArray
    test: Tensor
    test_labels: IntArray
    statistics: Statistics
    order: IntArray
    """The data set's number of each learned class."""
    side: int

    @staticmethod
    def of(spec: TrialSpec, data: LabelledData) -> "ClassIncrementalData":
        """Put the classes into the seed's order and keep the images that the spec asks for."""
        if data.name != spec.dataset:
            raise UserError(f"spec.dataset is {spec.dataset!r}, but the data passed is {data.name!r}.")
        train = data.train.first_of_each_class(spec.train_per_class)
        test = data.test.first_of_each_class(spec.test_per_class)
        order = class_order(data, spec.seed)
        train_labels, test_labels = (
            labels_in_order(part.labels.numpy(), order, spec.num_classes, data) for part in (train, test)
        )
        learned = order[: spec.num_classes]
        return ClassIncrementalData(
            train.images, train_labels, test.images, test_labels, data.statistics, learned, train.side
        )

    def indices_of_tasks(self, first: int, last: int, task_sizes: tuple[int, ...]) -> IntArray:
        """Return the indices of the training images of tasks `first` to `last`, which are counted from 1."""
        start, stop = sum(task_sizes[: first - 1]), sum(task_sizes[:last])
        return np.flatnonzero((self.train_labels >= start) & (self.train_labels < stop))
