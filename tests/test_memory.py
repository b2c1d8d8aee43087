"""Memory of a process that runs one trial after another, each in a thread of its own."""

import ctypes
import sys
from pathlib import Path
from threading import Thread

import pytest
import torch

from gd_ray.hardware import peak_memory, restart_peak_memory
from gd_ray.malloc import keep_freed_memory

MB = 2**20
linux = pytest.mark.skipif(
    not (sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim")), reason="needs glibc"
)


def resident() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096


@linux
def test_a_trial_starts_without_the_memory_and_the_peak_of_the_one_before():
    keep_freed_memory()
    thread = Thread(target=lambda: [torch.ones(MB // 4) for _ in range(300)])
    thread.start()
    thread.join()
    kept, peak = resident(), peak_memory("cpu")
    restart_peak_memory("cpu")
    assert kept - resident() > 200 * MB
    assert peak - peak_memory("cpu") > 200 * MB
    blocks = [torch.ones(MB // 4) for _ in range(150)]
    assert peak_memory("cpu") > resident() - 10 * MB
    assert len(blocks) == 150
