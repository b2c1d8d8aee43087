"""The hardware that computes a trial: whether torch can use it, and its names, for results repeat on one kind only."""

import os
import platform
import re
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

import torch

from gd_ray.arithmetic import compiles_batches, is_deterministic
from gd_ray.command_output import output_of
from gd_ray.errors import UserError
from gd_ray.malloc import release_freed_memory


def granted_device() -> str:
    """Return the device of a process of Ray: the GPU that it was granted, if any. Refuse one that torch cannot use.

    GD_RAY_LOGICAL_GPUS=1, for tests, says that the cluster's GPUs exist in name only.
    """
    import ray

    if not ray.get_gpu_ids() or os.environ.get("GD_RAY_LOGICAL_GPUS"):
        return "cpu"
    check_gpu("cuda")
    return "cuda"


def check_gpu(device: torch.device | str) -> None:
    """Refuse a GPU that torch cannot use, or has no kernels for."""
    if not torch.cuda.is_available():
        raise UserError(
            f"device {str(device)!r} needs a GPU, but torch {torch.__version__} can use none of {platform.node()} "
            f"({_why_unavailable()}); use 'cpu' (--gpus 0), or a driver for CUDA {torch.version.cuda}."
        )
    index, number = torch.device(device).index, torch.cuda.device_count()
    if index is not None and index >= number:
        raise UserError(f"device {str(device)!r} does not exist: this machine has {number} GPUs, counted from 0.")
    kind, built = torch.cuda.get_device_capability(device), torch.cuda.get_arch_list()
    if not any(_runs_on(architecture, kind) for architecture in built):
        raise UserError(
            f"{torch.cuda.get_device_name(device)} of {platform.node()} is an sm_{kind[0]}{kind[1]}, for which torch "
            f"{torch.__version__} has no kernels (only {', '.join(built)}); use --gpus 0, or a torch built for it."
        )


def _runs_on(architecture: str, kind: tuple[int, int]) -> bool:
    """Whether kernels run on a GPU: binaries (sm_) within their major version, PTX (compute_) on every later one."""
    form, _, number = architecture.partition("_")
    digits = re.match(r"(\d+)(\d)", number)
    if digits is None:
        return False
    built = int(digits[1]), int(digits[2])
    return built <= kind and (form == "compute" or built[0] == kind[0])


def _why_unavailable() -> str:
    try:
        torch.cuda.init()  # type: ignore[no-untyped-call]
    except (RuntimeError, AssertionError) as error:
        return str(error).partition(". ")[0].partition("\n")[0].rstrip(".")
    return "it sees none"


@lru_cache(maxsize=16)
def describe(device: torch.device | str, precision: str = "float32") -> dict[str, str | None]:
    """Return the models, versions and arithmetic that a result may depend on; what is a GPU's is None on a CPU."""
    arithmetic = {"float32": "IEEE float32", "tf32": "TF32 convolutions", "bfloat16": "bfloat16 autocast"}[precision]
    result: dict[str, str | None] = {"cpu_model": cpu_model(), "gpu": None, "driver": None, "cuda": None, "cudnn": None}
    if torch.device(device).type == "cuda":
        gpu = torch.cuda.get_device_properties(device)
        result["gpu"] = f"{gpu.name}, {gpu.multi_processor_count} SMs, sm_{gpu.major}{gpu.minor}"
        result["driver"] = driver_version()
        result["cuda"] = torch.version.cuda
        result["cudnn"] = str(torch.backends.cudnn.version())  # type: ignore[no-untyped-call]
        arithmetic += ", deterministic" if is_deterministic() else ", not deterministic"
        arithmetic += ", compiled batches" if compiles_batches() else ""
    return result | {"arithmetic": arithmetic}


def cpu_model(cpuinfo: str = "/proc/cpuinfo") -> str:
    """Return the processor as the kernel reports it, with its family: virtual machines may shorten its name."""
    with suppress(OSError):
        lines = re.findall(r"^(model name|cpu family|model)\s*:\s*(\S.*?)\s*$", Path(cpuinfo).read_text(), re.MULTILINE)
        of_cpu = dict(lines)
        if name := of_cpu.pop("model name", None):
            numbers = " ".join(f"{key.removeprefix('cpu ')} {value}" for key, value in sorted(of_cpu.items()))
            return f"{name} ({numbers})" if numbers else name
    return platform.processor() or platform.machine()


def driver_version() -> str | None:
    """Return the version of NVIDIA's driver, or None where it cannot be found out."""
    with suppress(OSError):
        version = re.search(r"Kernel Module\D*([\d.]+)", Path("/proc/driver/nvidia/version").read_text())
        if version:
            return version[1]
    output = output_of(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"], within_s=20)
    return output.splitlines()[0].strip() if output else None


def restart_peak_memory(device: torch.device | str) -> None:
    """Let `peak_memory` count from now on: a process may have run other trials before."""
    if torch.device(device).type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
        return
    release_freed_memory()
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # of Linux: resets VmHWM


def peak_memory(device: torch.device | str) -> int | None:
    """Return the most memory that this process had at once, in bytes: on the GPU, or resident; None if unknown."""
    if torch.device(device).type == "cuda":
        return int(torch.cuda.max_memory_allocated(device))
    with suppress(OSError):  # getrusage would count what the parent had at the fork
        peak = re.search(r"^VmHWM:\s*(\d+) kB$", Path("/proc/self/status").read_text(), re.MULTILINE)
        return 1024 * int(peak[1]) if peak else None
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
