"""The coreset: a few labelled images of every class seen (Algorithm 1, last line).

A selector returns a ranked coreset: class by class, the images to keep longest first, so that a smaller quota of a
later stage can keep the first ones.
"""

import numpy as np
from numpy.typing import NDArray


def class_quotas(size: int, num_classes: int) -> NDArray[np.int64]:
    """Return the images to keep of each class; when the size does not divide, the newest classes get one more."""
    quotas = np.full(num_classes, size // num_classes)
    remainder = size % num_classes
    quotas[num_classes - remainder :] += 1
    return quotas


def random_coreset(
    indices: NDArray[np.int64], labels: NDArray[np.int64], quotas: NDArray[np.int64], rng: np.random.Generator
) -> NDArray[np.int64]:
    """Draw up to `quotas[k]` of the given images of each class k; all of them where there are fewer."""
    chosen = [rng.permutation(indices[labels == label])[:quota] for label, quota in enumerate(quotas.tolist()) if quota]
    return np.concatenate(chosen) if chosen else np.empty(0, np.int64)


def herd(features: NDArray[np.float64], number: int) -> NDArray[np.int64]:
    """Rank rows of features so that the mean of the first ones stays near the mean of all (iCaRL's herding).

    Each time the row with the largest product with w is taken, the earlier one of equals; w starts as the mean and
    gains what the row taken has less than the mean.
    """
    mean = features.mean(axis=0)
    w, free, ranked = mean, np.ones(len(features), bool), []
    for _ in range(min(number, len(features))):
        best = int(np.where(free, features @ w, -np.inf).argmax())
        ranked.append(best)
        free[best] = False
        w = w + mean - features[best]
    return np.array(ranked, np.int64)


def balanced_set(
    current: NDArray[np.int64],
    current_labels: NDArray[np.int64],
    exemplars: NDArray[np.int64],
    num_prev: int,
    num_classes: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """Return the exemplars and, of each new class, as many images as a previous class has among them."""
    quotas = np.zeros(num_classes, np.int64)
    quotas[num_prev:] = images_per_previous_class(len(exemplars), num_prev)
    return np.concatenate([exemplars, np.sort(random_coreset(current, current_labels, quotas, rng))])


def images_per_previous_class(exemplars: int, num_prev: int) -> int:
    return -(-exemplars // num_prev)
