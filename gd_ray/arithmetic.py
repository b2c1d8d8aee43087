"""The arithmetic of a trial: decided by its spec, whatever the process or its environment had set before.

By default torch convolves float32 in TF32 on GPUs that have it, and containers may turn it on for matrix products as
well. Here everything is IEEE float32 but the convolutions of a training with precision='tf32'.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

# cuBLAS repeats its sums only with a workspace of fixed size, which it reads when CUDA starts.
os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def is_deterministic() -> bool:
    """Whether GPUs use deterministic algorithms: yes, unless GD_RAY_DETERMINISTIC=0."""
    return os.environ.get("GD_RAY_DETERMINISTIC", "1") != "0"


def compiles_batches() -> bool:
    """Whether a GPU puts its batches together by compiled kernels, with last bits of their own: GD_RAY_COMPILE=1."""
    return os.environ.get("GD_RAY_COMPILE", "0") != "0"


def set_arithmetic(device: torch.device | str) -> None:
    """Set IEEE float32 and, for a GPU, deterministic algorithms."""
    _set_float32("ieee")
    if torch.device(device).type == "cuda":
        torch.backends.cudnn.benchmark = False
        torch.backends.cudnn.deterministic = is_deterministic()
        torch.use_deterministic_algorithms(is_deterministic())
        # Nothing here reads memory that it has not written, so there is no need to fill it.
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]


@contextmanager
def training_arithmetic(precision: str, device: torch.device | str) -> Iterator[None]:
    """Train in the precision of a spec; scoring, testing and all else stay in IEEE float32."""
    set_arithmetic(device)
    if precision == "tf32":
        _set_float32("tf32")
    try:
        yield
    finally:
        _set_float32("ieee")


def _set_float32(convolutions: str) -> None:
    """Set torch's older and newer switches in step: torch raises an error where they differ and one is read."""
    backends: Any = torch.backends  # torch does not declare the newer switches
    backends.fp32_precision = "ieee"
    backends.cudnn.allow_tf32 = convolutions == "tf32"
    backends.cudnn.fp32_precision = convolutions
    backends.cudnn.conv.fp32_precision = convolutions
    backends.cudnn.rnn.fp32_precision = convolutions
    backends.cuda.matmul.allow_tf32 = False
    backends.cuda.matmul.fp32_precision = "ieee"
    for operation in (backends.mkldnn, backends.mkldnn.conv, backends.mkldnn.matmul, backends.mkldnn.rnn):
        operation.fp32_precision = "ieee"
