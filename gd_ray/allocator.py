"""One setting of the C library that a network on a CPU needs."""

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4  # of glibc's malloc.h


def keep_freed_memory() -> None:
    """Makes malloc keep freed memory for the next layer's activations.

    By default glibc gives blocks of that size back to the system at once and fetches them anew, page by page: a third
    of a small network's time on a CPU. Results do not change; the process keeps the memory of its peak. Does nothing
    where the C library is another one.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_MAX, 0)
        mallopt(_M_TRIM_THRESHOLD, 2**31 - 1)
        mallopt(_M_TOP_PAD, 64 * 2**20)
