"""Storage that goes away for a while, as when a file server restarts: trials wait for it, and none is given up."""

import time
from collections.abc import Callable

from gd_ray.errors import Unreachable, UserError
from gd_ray.storage import check_writable

OUTLAST_S = 600.0
"""Time that a trial waits for its storage."""
_LOOK_S = 5.0


def is_writable(*folders: str) -> bool:
    """Return whether all folders, or addresses, can be written."""
    try:
        for folder in folders:
            check_writable("storage", folder)
    except UserError:
        return False
    return True


def wait_until_writable(*folders: str) -> bool:
    """Wait until all folders can be written, ten minutes at most; return whether they can."""
    deadline = time.monotonic() + OUTLAST_S
    while not is_writable(*folders):
        if time.monotonic() > deadline:
            return False
        time.sleep(_LOOK_S)
    return True


def outlasted(*folders: str) -> bool:
    """Return whether the folders could not be written, and can now."""
    return not is_writable(*folders) and wait_until_writable(*folders)


def write_patiently(write: Callable[[], None], *folders: str) -> None:
    """Write, and once more if the folders were away: what is written took far longer to compute."""
    try:
        write()
    except Unreachable:
        if not wait_until_writable(*folders):
            raise
        write()
