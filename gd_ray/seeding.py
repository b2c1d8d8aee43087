"""One independent generator for each (seed, stage, purpose): nothing draws from a global generator.

A stage's numbers depend on nothing drawn before, so a trial restarts at any stage, and methods of one seed
stay paired: the same purpose gives them the same numbers.
"""

from enum import IntEnum
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import torch


class Purpose(IntEnum):
    """What the numbers are for. A purpose keeps its number for ever: it is part of the seed."""

    INITIALISATION = 0
    CORESET = 1
    BALANCED_SET = 2
    STREAM_WINDOW = 3
    OOD_SAMPLE = 4
    TEACHER_BATCHES = 10
    TEACHER_AUGMENTATION = 11
    TEACHER_DROPOUT = 12
    MODEL_BATCHES = 20
    MODEL_AUGMENTATION = 21
    MODEL_DROPOUT = 22
    FINE_TUNE_BATCHES = 30
    FINE_TUNE_AUGMENTATION = 31
    FINE_TUNE_DROPOUT = 32


def _sequence(seed: int, stage: int, purpose: Purpose) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(stage, int(purpose)))


def numpy_generator(seed: int, stage: int, purpose: Purpose) -> np.random.Generator:
    return np.random.default_rng(_sequence(seed, stage, purpose))


def generator(seed: int, stage: int, purpose: Purpose, device: "torch.device | str" = "cpu") -> "torch.Generator":
    import torch  # here, for what draws with numpy alone needs no torch

    state = _sequence(seed, stage, purpose).generate_state(1, np.uint64)[0]
    return torch.Generator(device=device).manual_seed(int(state))
