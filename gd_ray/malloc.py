"""What a network on a CPU needs of the C library: to keep freed memory while it learns, and to return it after."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Make malloc keep freed memory for the next layer's activations.

    By default glibc returns blocks of that size to the system at once and requests them again, page by page: a third of
    a small network's time on a CPU. Results do not change; the process keeps the memory of its peak. Other C libraries
    are left as they are.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)


def release_freed_memory() -> None:
    """Return freed memory to the system.

    A process that runs many trials has a thread for each, and malloc may give every thread memory of its own: what it
    keeps would grow from trial to trial.
    """
    malloc_trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if malloc_trim is not None:
        malloc_trim(0)
