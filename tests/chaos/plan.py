"""The seeded plan of a campaign: for each run one fault, its moment, its victim, and how long it lasts."""

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

LASTS = {
    "driver-kill": (0, 0),
    "driver-term": (0, 0),
    "driver-int": (0, 0),
    "trial": (0, 0),
    "scorer": (0, 0),
    "raylet": (0, 0),
    "gcs": (0, 0),
    "stop": (5, 60),
    "disk": (10, 20),
    "storage": (20, 20),
    "host": (0, 0),
    "network": (5, 30),
}
"""Every fault, and the least and the most seconds that it lasts; 0 for one that ends a process."""
ROOT = ("disk", "storage", "host", "network")
"""Faults that need root, for mounts and for hosts of their own."""
HOSTS = ("host", "network")
"""Faults that need two hosts."""


@dataclass(frozen=True)
class Run:
    """One run of a campaign."""

    number: int
    fault: str
    moment: float
    """Share of the time of an undisturbed run after which the fault happens."""
    victim: float
    """From 0 to 1: which of several processes or hosts it hits."""
    seconds: float
    """How long it lasts."""


def plan(seed: int, runs: int, faults: Sequence[str] = tuple(LASTS)) -> list[Run]:
    """Return the runs of a campaign; more runs of the same seed and faults begin with the same ones.

    Every fault happens once before any happens twice.
    """
    return [_run(seed, number, faults) for number in range(runs)]


def _run(seed: int, number: int, faults: Sequence[str]) -> Run:
    turn, place = divmod(number, len(faults))
    fault = Random(f"{seed} {turn}").sample(list(faults), len(faults))[place]
    rng = Random(f"{seed} {number} {fault}")
    return Run(number, fault, rng.uniform(0.05, 0.95), rng.random(), rng.uniform(*LASTS[fault]))
