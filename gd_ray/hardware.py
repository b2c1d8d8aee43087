"""The hardware that computed a trial, for its row: results repeat bit for bit on one kind of it only."""

import platform
import re
import subprocess
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch


@lru_cache(maxsize=16)
def describe(device: torch.device | str) -> dict[str, str | None]:
    """Return the models and versions that a result may depend on; those of a GPU are None for a trial on a CPU."""
    result: dict[str, str | None] = {"cpu": cpu_model(), "gpu": None, "driver": None, "cuda": None, "cudnn": None}
    if torch.device(device).type == "cuda":
        found = torch.cuda.get_device_properties(device)
        result["gpu"] = f"{found.name}, {found.multi_processor_count} SMs, sm_{found.major}{found.minor}"
        result["driver"] = driver_version()
        result["cuda"] = torch.version.cuda
        result["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
    return result


def cpu_model() -> str:
    """Return the name of the processor as the kernel reports it."""
    with suppress(OSError):
        named = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        if named:
            return named[1].strip()
    return platform.processor() or platform.machine()


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver, or None where it cannot be found out."""
    with suppress(OSError):
        version = re.search(r"Kernel Module\D*([\d.]+)", Path("/proc/driver/nvidia/version").read_text())
        if version:
            return version[1]
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    with suppress(OSError, subprocess.SubprocessError):
        output = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True).stdout
        return output.split("\n")[0].strip() or None
    return None


def peak_memory(device: torch.device | str) -> int | None:
    """Return the most memory that this process had at once, in bytes: on the GPU, or resident; None if unknown."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):  # getrusage would count what the parent had at the fork
        found = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return 1024 * int(found[1]) if found else None
    return None


def tf32_note(precision: str, device: torch.device | str) -> str | None:
    """Return what to print once of a float32 run on a GPU that has TF32."""
    if precision != "float32" or torch.device(device).type != "cuda":
        return None
    if torch.cuda.get_device_capability(device)[0] < 8:
        return None
    return (
        f"{torch.cuda.get_device_name(device)} computes precision=float32 in IEEE arithmetic; precision=tf32 takes "
        f"about a third to a half of the time by the data sheets, and its results have ids of their own."
    )
