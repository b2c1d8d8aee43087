"""Dropout masks on a GPU from stateless random numbers.

A CUDA generator gives each thread a sequence of its own, so its numbers depend on how many threads the GPU runs. Here
word i of update u is a function of (seed, u, i) alone: equal on GPUs of every size, and on a CPU. torch has such
numbers only in a module that it calls experimental: the bounds of its version matter, and a test has a table of them.
"""

import torch
from torch import Tensor


class PhiloxDropout:
    """Draws the dropout masks of one training: those of all layers in one draw per update.

    The key and the number of the update are tensors on the device, so a CUDA graph draws anew in every replay.
    """

    def __init__(self, seed: int, device: torch.device | str) -> None:
        import torch.func._random as stateless  # here, for trials on CPUs need not have it

        self._stateless = stateless
        self._key = stateless.key(seed, device=torch.device(device))
        self._update = torch.zeros(1, dtype=torch.int64, device=device)
        self._update_key = self._key
        self._words = torch.empty(0, dtype=torch.int64, device=device)
        self._masks: dict[tuple[int, torch.dtype], Tensor] = {}
        self._used = 0

    def next_update(self) -> None:
        """Start the draws of the next update."""
        self._used, self._masks = 0, {}
        self._update.add_(1)
        self._update_key = self._stateless.fold_in(self._key, self._update.view(torch.uint64))
        self._draw()

    def mask(self, elements: int, threshold: int, dtype: torch.dtype) -> Tensor:
        """Return the next elements of the update's mask: 65536 / threshold with probability threshold / 65536, or 0."""
        start = self._used
        self._used += -(-elements // 4)  # words of four elements
        if self._used > len(self._words):  # only in the first update: how many words one takes is not known before
            self._words, self._masks = self._words.new_empty(self._used), {}
            self._draw()  # the words so far are drawn again as they were
        key = (threshold, dtype)
        if key not in self._masks:
            kept = self._words.view(torch.int16) < threshold - 32768
            self._masks[key] = kept.to(dtype).mul_(65536 / threshold)
        return self._masks[key][4 * start : 4 * start + elements]

    def _draw(self) -> None:
        if len(self._words):
            self._stateless.randint_(self._update_key, self._words, low=None, high=None)
