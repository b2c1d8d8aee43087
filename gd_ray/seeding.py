"""One independent generator for each (seed, stage, purpose): nothing draws from a global generator.

A stage's numbers depend on nothing drawn before, so a trial restarts at any stage, and methods of one seed
stay paired: the same purpose gives them the same numbers.
"""

from enum import IntEnum
from typing import TYPE_CHECKING
from zlib import crc32

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
    HELD_OUT = 5


_STEPS = {"teacher": 10, "model": 20, "fine-tune": 30}


def step_purposes(step: str) -> tuple[int, int, int]:
    """Return the purposes of one training's shuffling, augmentation and dropout; a step keeps them for ever."""
    # A learner's own step gets numbers from its name, far above those of the steps that have one.
    first = _STEPS.get(step) or 1000 + 3 * (crc32(step.encode()) % 2**28)
    return first, first + 1, first + 2


def _sequence(seed: int, stage: int, purpose: int) -> np.random.SeedSequence:
    return np.random.SeedSequence(seed, spawn_key=(stage, int(purpose)))


def numpy_generator(seed: int, stage: int, purpose: int) -> np.random.Generator:
    return np.random.default_rng(_sequence(seed, stage, purpose))


def torch_seed(seed: int, stage: int, purpose: int) -> int:
    """Return what seeds torch's numbers, 64 bits."""
    return int(_sequence(seed, stage, purpose).generate_state(1, np.uint64)[0])


def generator(seed: int, stage: int, purpose: int) -> "torch.Generator":
    """Return a generator on the CPU; the one of a GPU gives other numbers on GPUs of another size."""
    import torch  # here, for what draws with numpy alone needs no torch

    return torch.Generator().manual_seed(torch_seed(seed, stage, purpose))
