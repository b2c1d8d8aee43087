"""The coreset: a few labelled images of every class seen, drawn at random (Algorithm 1, last line)."""

import numpy as np
from numpy.typing import NDArray


def class_quotas(size: int, num_classes: int) -> NDArray[np.int64]:
    """Images kept of each class; when the size does not divide, the newest classes get one more."""
    quotas = np.full(num_classes, size // num_classes)
    remainder = size % num_classes
    quotas[num_classes - remainder :] += 1
    return quotas


def select_coreset(
    indices: NDArray[np.int64], labels: NDArray[np.int64], quotas: NDArray[np.int64], generator: np.random.Generator
) -> NDArray[np.int64]:
    """Draws up to `quotas[k]` of the given images of each class k; all of them where there are fewer."""
    chosen = [
        generator.permutation(indices[labels == label])[:quota] for label, quota in enumerate(quotas.tolist()) if quota
    ]
    return np.sort(np.concatenate(chosen)) if chosen else np.empty(0, np.int64)


def balanced_set(
    current: NDArray[np.int64],
    current_labels: NDArray[np.int64],
    coreset: NDArray[np.int64],
    num_prev: int,
    num_classes: int,
    generator: np.random.Generator,
) -> NDArray[np.int64]:
    """The coreset and, of each new class, as many images as a previous class has in it."""
    quotas = np.zeros(num_classes, np.int64)
    quotas[num_prev:] = -(-len(coreset) // num_prev)
    return np.concatenate([coreset, select_coreset(current, current_labels, quotas, generator)])
