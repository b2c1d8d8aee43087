"""A GPU that is not there: torch's fake CUDA tensors, which have shapes and devices but no values.

`Watch` sees every operation before torch does. It counts kernels, and finds what fake tensors let through: waits,
copies from pageable memory, random numbers from a generator, and whatever a CUDA graph cannot record. What torch lacks
without a driver has a stand-in here: backward passes, pinned memory, the fused SGD, autocast, streams and graphs.
"""

import contextlib
import sys
import warnings
from collections import Counter
from types import SimpleNamespace
from unittest import mock

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode, unset_fake_temporarily
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

FREE = frozenset(
    """
    view _unsafe_view permute transpose t expand slice select unsqueeze squeeze detach alias unbind as_strided
    reshape split empty empty_like empty_strided new_empty new_empty_strided is_pinned lift_fresh _reshape_alias
    set_ resize_ device
    """.split()  # noqa: SIM905
)
"""Operations without a kernel: views and bookkeeping."""
LAUNCHES = {"constant_pad_nd": 2, "slice_backward": 2, "select_backward": 2, "nll_loss_backward": 2, "scatter": 2}
"""Kernels of an operation on CUDA where it is not one."""
NONDETERMINISTIC = frozenset(
    """
    avg_pool3d_backward _adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward adaptive_max_pool2d_backward
    fractional_max_pool2d_backward fractional_max_pool3d_backward max_unpool2d max_unpool3d upsample_linear1d_backward
    upsample_bilinear2d_backward upsample_bicubic2d_backward upsample_trilinear3d_backward reflection_pad1d_backward
    reflection_pad2d_backward reflection_pad3d_backward nll_loss2d_forward _ctc_loss_backward
    _embedding_bag_dense_backward put put_ histc median grid_sampler_2d_backward grid_sampler_3d_backward
    scatter_reduce scatter_reduce_
    """.split()  # noqa: SIM905
)
"""Operations that raise an error on CUDA under torch.use_deterministic_algorithms."""


class GpuDefectError(RuntimeError):
    """What would be wrong or slow on a GPU."""


class Watch(TorchDispatchMode):
    """Checks and counts the operations of a fake GPU. `strict` raises at every defect; otherwise waits are noted."""

    def __init__(self):
        super().__init__()
        self.strict = self.recording = False
        self.waits, self.kernels, self.log, self.graphs, self.replays = [], Counter(), [], 0, 0
        self.current = None
        """The device that streams and graphs belong to, if one was chosen."""

    def wait(self, what):
        self.waits.append((what, here()))
        if self.strict:
            raise GpuDefectError(f"{what} at {here()}")

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        inference = torch.is_inference_mode_enabled() or any(
            isinstance(value, torch.Tensor) and value.is_inference() for value in args
        )
        if inference and func.namespace == "aten" and func._can_decompose():
            with self:  # in inference mode they arrive whole
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        name = func._schema.name.split("::")[-1]
        tensors = [t for t in tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        real = tensors and not any(isinstance(t, FakeTensor) for t in tensors)
        to_cpu = name == "_to_copy" and torch.device(kwargs.get("device") or "cpu").type == "cpu"
        if real and (to_cpu or name in ("detach", "clone", "alias")):
            with unset_fake_temporarily():  # a value that came from the GPU
                return func(*args, **kwargs)
        on_gpu = any(t.device.type == "cuda" for t in tensors)
        target = torch.device(kwargs.get("device") or (tensors[0].device if tensors else "cpu")).type
        self._check(name, func.tags, args, tensors, on_gpu, target)
        result, answered = self._answer(name, args, kwargs, tensors, on_gpu, target)
        if not answered:
            result = func(*args, **kwargs)
        out = [t for t in tree_leaves(result) if isinstance(t, torch.Tensor)]
        if (on_gpu or any(t.device.type == "cuda" for t in out)) and name not in FREE:
            number = LAUNCHES.get(name, 1)
            if name == "convolution_backward":
                number = sum(args[10][:2])
            self.kernels[name] += number
            self.log.append((name, args, tensors, out))
        return result

    def _check(self, name, tags, args, tensors, on_gpu, target):
        if torch.Tag.nondeterministic_seeded in tags and (target == "cuda" or self.recording):
            raise GpuDefectError(f"{name} on a GPU draws from a generator at {here()}")
        if name in NONDETERMINISTIC and on_gpu:
            raise GpuDefectError(f"{name} has no deterministic form on a GPU at {here()}")
        if name in ("index", "index_put", "index_put_", "_unsafe_index") and args[0].device.type == "cpu" and on_gpu:
            raise GpuDefectError(f"{name} of a CPU tensor by a GPU index at {here()}")
        if self.recording and name not in FREE and any(t.device.type == "cpu" for t in tensors):
            raise GpuDefectError(f"{name} reads the CPU inside a CUDA graph at {here()}")
        if name == "_pin_memory" and on_gpu:
            raise GpuDefectError(f"a tensor on the GPU cannot be pinned at {here()}")
        if name == "_fused_sgd_":
            unlike = any(layout(p) != layout(g) for p, g in zip(args[0], args[1], strict=True))
            if unlike or len({t.device for t in tensors}) != 1:
                raise GpuDefectError("parameters, gradients and momenta differ in device or layout")

    def _answer(self, name, args, kwargs, tensors, on_gpu, target):
        """Note what waits, and answer where fake tensors cannot: (result, whether there is one)."""
        if name == "_fused_sgd_":
            return None, True
        if name == "_pin_memory":
            pinned = args[0].clone()
            pinned.pinned = True
            return pinned, True
        if name == "_local_scalar_dense" and on_gpu:
            self.wait("a number leaves the GPU")
            return (0.5 if args[0].is_floating_point() else 0), True
        if name in ("nonzero", "bincount", "masked_select", "_unique2") and on_gpu:
            self.wait(name)
            if name == "bincount":
                return args[0].new_empty(kwargs.get("minlength", args[2] if len(args) > 2 else 0)), True
        if name == "_to_copy" and on_gpu and target == "cpu":
            self.wait("a tensor leaves the GPU")
            with unset_fake_temporarily():  # a real tensor, for fake ones have no .numpy()
                return torch.zeros(args[0].shape, dtype=kwargs.get("dtype") or args[0].dtype), True
        if name == "_to_copy" and tensors and not on_gpu and target == "cuda":
            if not (kwargs.get("non_blocking") and getattr(args[0], "pinned", False)):
                self.wait("copy from pageable memory")
        elif name == "copy_" and len({t.device.type for t in tensors}) > 1 and tensors[1].dim():
            self.wait("copy between devices")
        if name in ("index", "index_put", "index_put_", "_unsafe_index"):
            indices = [t for t in args[1] if isinstance(t, torch.Tensor)]
            if on_gpu and any(t.device.type == "cpu" for t in indices):
                self.wait("index from the CPU")
            if on_gpu and any(t.dtype in (torch.bool, torch.uint8) for t in indices):
                self.wait("boolean index")
                return args[0].clone(), True  # as if all were chosen
        return None, False


def here():
    """Return file and line of the innermost frame outside torch and this module."""
    frame = sys._getframe(1)
    while frame is not None:
        name = frame.f_code.co_filename
        if "/torch/" not in name and name != __file__ and "contextlib" not in name:
            return f"{name}:{frame.f_lineno}"
        frame = frame.f_back
    return "?"


def python_backward(root, *_, **__):
    """Run a backward pass without torch's engine: call every node once all of its gradients are there."""
    pending, seen, stack = Counter(), set(), [root.grad_fn]
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for after, _ in node.next_functions:
            if after is not None:
                pending[after] += 1
                stack.append(after)
    inputs, ready = {root.grad_fn: {0: torch.ones_like(root)}}, [root.grad_fn]
    with torch.no_grad():
        while ready:
            node = ready.pop()
            given = inputs.pop(node, {})
            arguments = [given.get(k) for k in range(max(given, default=0) + 1)]
            grads = (None,) * len(node.next_functions)
            if hasattr(node, "variable"):  # torch's engine keeps the gradient without a copy
                node.variable.grad = own_layout(arguments[0], node.variable)
            elif any(a is not None for a in arguments):
                grads = node(*arguments)
                grads = grads if isinstance(grads, tuple) else (grads,)
            for (after, place), grad in zip(node.next_functions, grads, strict=False):
                if after is None:
                    continue
                if grad is not None:
                    grad = as_expected(grad, after._input_metadata[place])
                    slot = inputs.setdefault(after, {})
                    slot[place] = grad if place not in slot else slot[place] + grad
                pending[after] -= 1
                if not pending[after]:
                    ready.append(after)


def own_layout(grad, variable):
    """Return the gradient as torch's engine stores it: as it is, or copied into the layout of its variable."""
    return grad if layout(grad) == layout(variable) else torch.empty_like(variable).copy_(grad)


def layout(tensor):
    return [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]


def as_expected(grad, meta):
    """Do what the engine does to a gradient: give it the shape and type of the input."""
    if grad.device != meta.device:
        raise GpuDefectError(f"a gradient on {grad.device} for an input on {meta.device}")
    if grad.shape != meta.shape:
        grad = grad.sum_to_size(meta.shape)
    return grad if grad.dtype == meta.dtype else grad.to(meta.dtype)


def plain_apply(module, function, recurse=True):
    """Stand in for nn.Module._apply, which swaps tensors: fake ones cannot be."""
    for child in module.children():
        child._apply(function)
    for name, value in module._parameters.items():
        if value is not None:
            with torch.no_grad():
                module._parameters[name] = torch.nn.Parameter(function(value), value.requires_grad)
    for name, value in module._buffers.items():
        if value is not None:
            module._buffers[name] = function(value)
    return module


@contextlib.contextmanager
def fake_gpu():
    """Give torch a GPU that computes nothing; yield the mode that watches it."""
    import gd_ray.data.augmentation as augmentation

    watch = Watch()
    real_autocast = torch.autocast
    caches = (augmentation.normalization, augmentation.constants_for)

    @contextlib.contextmanager
    def autocast(*args, **kwargs):
        available = mock.patch.multiple(
            "torch.cuda", is_available=lambda: True, is_bf16_supported=lambda *_, **__: True
        )
        with available:
            manager = real_autocast(*args, **kwargs)
        with manager:
            yield

    @contextlib.contextmanager
    def current(device):
        before, watch.current = watch.current, torch.device(device)
        try:
            yield
        finally:
            watch.current = before

    @contextlib.contextmanager
    def record(graph, **_):
        if watch.current is None:
            raise GpuDefectError(f"a graph of whatever device is current at {here()}")
        watch.recording, strict, watch.strict = True, watch.strict, True
        try:
            yield
            watch.graphs += 1
        finally:
            watch.recording, watch.strict = False, strict

    class Graph:
        def replay(self):
            watch.replays += 1

    def stream(*_):
        return SimpleNamespace(wait_stream=lambda other: None)

    for cache in caches:  # no real tensor of another test comes in
        cache.cache_clear()
    patches = (
        mock.patch.object(torch.Tensor, "backward", python_backward),
        mock.patch.object(torch.nn.Module, "_apply", plain_apply),
        mock.patch.object(FakeTensorMode, "__deepcopy__", lambda mode, memo: mode, create=True),
        mock.patch("torch.autocast", autocast),
        mock.patch.multiple("torch.cuda", current_stream=stream, Stream=stream, CUDAGraph=Graph, graph=record),
        mock.patch("torch.cuda.device", current),
        mock.patch("torch.cuda.stream", return_value=contextlib.nullcontext()),
    )
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore", FutureWarning)
        for entered in (FakeTensorMode(), watch, *patches):
            stack.enter_context(entered)
        try:
            yield watch
        finally:
            for cache in caches:  # no fake one stays
                cache.cache_clear()
