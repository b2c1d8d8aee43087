"""The losses, weights and ensemble of the paper as pure functions.

A loss is one value per image; `masked_mean` averages it over its data set D. Logits have one column per class of the
loss's own range T, so restricting a loss to some tasks is slicing columns.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

EXTERNAL = -1
"""The label of an image that has none."""


def classification(logits: Tensor, labels: Tensor) -> Tensor:
    """Return L_cls: -log p(y|x) per image; 0 where the label is EXTERNAL."""
    return F.cross_entropy(logits, labels, reduction="none", ignore_index=EXTERNAL)


def distillation(logits: Tensor, reference: Tensor, temperature: float = 1.0) -> Tensor:
    """Return L_dst: cross-entropy from the reference's probabilities to the model's softened ones, per image."""
    return -(reference * F.log_softmax(logits / temperature, dim=1)).sum(dim=1)


def confidence(logits: Tensor) -> Tensor:
    """Return L_cnf: cross-entropy from the uniform distribution, per image; least when the model is unsure."""
    return -F.log_softmax(logits, dim=1).mean(dim=1)


def softmax_with_temperature(logits: Tensor, temperature: float) -> Tensor:
    """Return probabilities at a temperature (appendix B)."""
    return F.softmax(logits / temperature, dim=1)


def masked_mean(losses: Tensor, mask: Tensor | None = None, weights: Tensor | None = None) -> Tensor:
    """Return the mean over a data set D: the images that `mask` selects, or all; 0 when there is none.

    A weight scales an image's gradient, as if it had been fed that many times; it does not enter the count.
    """
    count: Tensor | int = len(losses)
    if weights is not None:
        losses = losses * weights
    if mask is not None:
        losses = losses * mask
        count = mask.sum().clamp(min=1)
    return losses.sum() / count


def ensemble(p_prev: Tensor, p_cur: Tensor) -> Tensor:
    """Return Q: the probabilities over previous and current classes together (Equations 6 and 7).

    P's most probable class keeps its probability; the rest of P and all of C share what is left so that every
    other class is as probable in expectation.
    """
    num_prev, num_cur = p_prev.shape[1], p_cur.shape[1]
    p_max, y_max = p_prev.max(dim=1, keepdim=True)
    others = num_prev + num_cur - 1
    epsilon = (1 - p_max) * num_cur / others
    # (1 - p_max - epsilon) / (1 - p_max) of Equation 6, with epsilon put in: it has no 0/0 at p_max = 1.
    kept = p_prev * ((num_prev - 1) / others)
    most_probable = torch.arange(num_prev, device=y_max.device) == y_max
    return torch.cat([torch.where(most_probable, p_max, kept), epsilon * p_cur], dim=1)


def data_weights(labels: Tensor, num_classes: int) -> Tensor:
    """Equation 10 normalize by |D| / |T|: one weight per class, all 1 when D is balanced.

    Labels outside [0, num_classes) are not in D. A class with no image has weight 0.
    """
    inside = labels[(labels >= 0) & (labels < num_classes)]
    return count_weights(torch.bincount(inside, minlength=num_classes))


def count_weights(counts: Tensor) -> Tensor:
    """Return `data_weights` from the number of images of each class, which may be a fraction."""
    counts = counts.double()
    weights = counts.sum() / (counts * len(counts))
    return torch.where(counts > 0, weights, torch.zeros_like(weights))


def loss_weight(task_size: int, total_size: int) -> float:
    """Return Equation 11: the share of all classes that a loss is about."""
    return task_size / total_size
