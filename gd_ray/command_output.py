"""What commands of the machine print."""

import subprocess
from collections.abc import Sequence

_ATTEMPTS = 3


def output_of(command: Sequence[str], *, within_s: float) -> str | None:
    """Return what a command prints, or None if it is missing, fails or does not answer.

    Without an answer it is called again: to a process that was suspended meanwhile, time seems to have run out.
    """
    for _ in range(_ATTEMPTS):
        try:
            return subprocess.run(command, capture_output=True, text=True, check=True, timeout=within_s).stdout.strip()
        except subprocess.TimeoutExpired:
            continue
        except (OSError, subprocess.CalledProcessError):
            return None
    return None
