"""Batches one by one, for code that trains in a plain loop."""

from collections.abc import Iterator
from itertools import chain

import torch
from torch import Tensor

from gd_ray.data.augmentation import Augmentation, draw_augmentations, shuffled_epochs


def sample_augmentation(number: int, side: int, rng: torch.Generator, device: str = "cpu") -> Augmentation:
    """Draw the augmentation of one batch."""
    whole, factors = draw_augmentations(1, number, side, rng)
    return Augmentation.of(whole[0].to(device), factors[0].to(device))


def shuffled_batches(indices: Tensor, batch_size: int, updates: int, rng: torch.Generator) -> Iterator[Tensor]:
    return chain.from_iterable(shuffled_epochs(indices, batch_size, updates, rng))
