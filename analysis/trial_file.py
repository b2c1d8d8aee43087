"""Where the rows of one trial lie."""

from dataclasses import dataclass


@dataclass(frozen=True)
class TrialFile:
    """One kind of rows of one trial."""

    experiment: str
    trial_id: str
    path: str
    stamp: str
    """Its size and time; a file that changed has another one."""
