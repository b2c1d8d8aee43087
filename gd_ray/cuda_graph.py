"""A step of training as a CUDA graph: hundreds of kernels recorded once and launched together.

On a GPU that computes faster than Python launches, the launches are what an update waits for. The kernels and their
order are those of the eager step, so the weights should be too.
"""

import os
import warnings
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

WARM_UP = 3
"""Eager updates before the first recording: libraries choose their kernels and allocate workspaces in them."""


class Step(Protocol):
    """One update of the inputs that make its batch; `constant` is a Python number that it reads, the learning rate."""

    def __call__(self, *inputs: Tensor, constant: float) -> None: ...


def graphed(step: Callable[..., None], device: torch.device) -> Step:
    """Return the step as it runs fastest on a device. GD_RAY_CUDA_GRAPH=0 turns graphs off."""
    if device.type == "cuda" and os.environ.get("GD_RAY_CUDA_GRAPH", "1") != "0":
        return GraphedStep(step, device)

    def eager(*inputs: Tensor, constant: float) -> None:  # noqa: ARG001
        step(*inputs)

    return eager


class GraphedStep:
    """Copies its inputs into static buffers and replays the step recorded over them, one graph per constant.

    A step that cannot be recorded runs eagerly, with a warning.
    """

    def __init__(self, step: Callable[..., None], device: torch.device) -> None:
        self._step, self._device = step, device
        self._side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._inputs: tuple[Tensor, ...] = ()
        self._warm_updates = 0
        self._graph: torch.cuda.CUDAGraph | None = None
        self._constant: float | None = None
        self._eager = False

    def __call__(self, *inputs: Tensor, constant: float) -> None:
        with torch.cuda.device(self._device):  # else a graph would record another GPU than that of the step
            self._update(inputs, constant)

    def _update(self, inputs: tuple[Tensor, ...], constant: float) -> None:
        if not self._inputs:
            self._inputs = tuple(torch.empty_like(value) for value in inputs)
        for static, value in zip(self._inputs, inputs, strict=True):
            static.copy_(value)
        if self._warm_updates < WARM_UP:
            self._warm_updates += 1
            self._on_side_stream()
            return
        if not self._eager and constant != self._constant:
            self._record(constant)
        if self._graph is None:
            self._step(*self._inputs)
        else:
            self._graph.replay()

    def _on_side_stream(self) -> None:
        """Run an update where a recording will run, as torch asks for."""
        main = torch.cuda.current_stream()
        self._side.wait_stream(main)
        with torch.cuda.stream(self._side):
            self._step(*self._inputs)
        main.wait_stream(self._side)

    def _record(self, constant: float) -> None:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph):  # runs nothing: the weights stay as they are
                self._step(*self._inputs)
        except RuntimeError as error:
            self._graph, self._eager = None, True
            reason = str(error).splitlines()[0]
            warnings.warn(f"this training runs without a CUDA graph, more slowly: {reason}", stacklevel=2)
        else:
            self._graph, self._constant = graph, constant
