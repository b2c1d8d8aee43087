"""Floating-point operations and bytes of a training step, counted; and what they allow on a GPU, computed."""

import torch
from torch import nn

A100 = {"bytes/s": 1.555e12, "float32": 19.5e12, "tf32": 156e12, "bfloat16": 312e12}
"""Peaks of an A100 (40 GB), from its data sheet."""


def counted(network: nn.Module, size: int = 4) -> tuple[float, float]:
    """Multiply-adds of one image's forward pass, and the bytes that its layers read and write, one after another."""
    operations = moved = 0.0

    def note(module, inputs, output):
        nonlocal operations, moved
        if isinstance(module, nn.Conv2d | nn.Linear):
            operations += module.weight[0].numel() * output.numel() / len(output)
        # What a layer reads and writes. The ReLU after each normalisation passes over its output once more; the sum
        # of a block, one pass in thirty, is left out.
        passes = {nn.Conv2d: 1, nn.BatchNorm2d: 2, nn.Linear: 1}.get(type(module), 0)
        moved += passes * size * (inputs[0].numel() + output.numel()) / len(output)

    handles = [module.register_forward_hook(note) for module in network.modules()]
    with torch.inference_mode():
        network.eval()(torch.zeros(2, 3, 32, 32))
    for handle in handles:
        handle.remove()
    return operations, moved


def expected_on_a100(network: nn.Module) -> str:
    """Images per second of a GD+ext step (M forward and backward, P and C forward) by roofline."""
    lines = ["computed, not measured: a GD+ext step on an A100, by roofline"]
    for name, kind, size in (("float32", "float32", 4), ("TF32", "tf32", 4), ("bfloat16 autocast", "bfloat16", 2)):
        operations, moved = counted(network, size)
        # M: forward, and a backward pass of twice its operations and bytes; P and C: forward.
        flop, moved = 2 * 5 * operations, 5 * moved
        by_compute, by_memory = A100[kind] / flop, A100["bytes/s"] / moved
        bound = "memory" if by_memory < by_compute else "arithmetic"
        lines.append(
            f"  {name}: {flop / 1e9:.2f} GFLOP and {moved / 1e6:.1f} MB an image: about "
            f"{min(by_compute, by_memory):,.0f} images/s, bound by {bound}"
        )
    lines.append("  half of that is a good result for a network of this size; launches of small kernels take the rest")
    return "\n".join(lines)
