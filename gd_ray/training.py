"""Stochastic gradient descent: the loop that every training shares."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor, nn

from gd_ray.cuda_graph import graphed
from gd_ray.data.augmentation import BatchDraw
from gd_ray.networks.classifier import Classifier, as_reference
from gd_ray.networks.dropout import DropoutRng
from gd_ray.philox import PhiloxDropout
from gd_ray.schedule import Schedule


class Loss(Protocol):
    """What a training minimizes; it holds the reference models that it compares with.

    A GPU records a call once per learning rate and replays it, so every call must run the same operations: a number
    that changes between updates has to be a tensor on the device.
    """

    def __call__(self, network: Classifier, inputs: Tensor, labels: Tensor, dropout: DropoutRng) -> dict[str, Tensor]:
        """Return the terms of the loss on one batch; their sum is minimized."""
        ...


class Batches(Protocol):
    """The batches of one training: random numbers of each, and what makes inputs and labels of them on the device."""

    def __iter__(self) -> Iterator[BatchDraw]: ...

    def loader(self) -> Callable[..., tuple[Tensor, Tensor]]: ...


class ReferenceLoss:
    """A Loss by a function of logits and labels: `terms(logits, labels, *logits of the references)`.

    It holds the references P and C; the logits of one that is None are None.
    """

    def __init__(
        self,
        terms: Callable[..., dict[str, Tensor]],
        *references: Classifier | None,
        precision: str,
        head_only: bool = False,
    ) -> None:
        self.terms, self.head_only, self.bfloat16 = terms, head_only, precision == "bfloat16"
        self.references = [
            None if model is None else as_reference(model, bfloat16=self.bfloat16) for model in references
        ]

    def __call__(self, network: Classifier, inputs: Tensor, labels: Tensor, dropout: DropoutRng) -> dict[str, Tensor]:
        with torch.no_grad():
            references = [
                None if model is None else model.logits(inputs, bfloat16=self.bfloat16) for model in self.references
            ]
        logits = network.logits(inputs, dropout, head_only=self.head_only, bfloat16=self.bfloat16)
        return self.terms(logits, labels, *references)


def fit(
    network: Classifier,
    loss: Loss,
    batches: Batches,
    schedule: Schedule,
    optimizer: torch.optim.Optimizer,
    dropout: DropoutRng,
    on_images: Callable[[int], None],
) -> dict[str, float]:
    """Train a network in place; return the mean of each loss term over the last epoch.

    `on_images` receives the number of images of every update.
    """
    sums, load = LossSums(), batches.loader()

    def update(*draw: Tensor) -> None:
        inputs, labels = load(*draw)
        if isinstance(dropout, PhiloxDropout):
            dropout.next_update()
        losses = loss(network, inputs, labels, dropout)
        optimizer.zero_grad(set_to_none=True)
        terms = torch.stack(list(losses.values()))
        terms.sum().backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        sums.add(tuple(losses), terms.detach())

    step = graphed(update, network.device)  # on a CPU the function itself
    network.train()
    with _batches_counted_once(network, schedule.updates):
        for number, draw in enumerate(batches):
            optimizer.param_groups[0]["lr"] = rate = schedule.rate(number)
            if number == schedule.last_epoch:
                sums.clear()
            step(*draw, constant=rate)
            on_images(draw[0].shape[1])
    network.eval()
    optimizer.zero_grad(set_to_none=True)
    return sums.means(schedule.updates - schedule.last_epoch)


class LossSums:
    """Sums of loss terms; no number leaves the device before the training ends."""

    def __init__(self) -> None:
        self._names: tuple[str, ...] = ()
        self._sums: Tensor | None = None

    def add(self, names: tuple[str, ...], terms: Tensor) -> None:
        if self._sums is None:
            self._names, self._sums = names, torch.zeros_like(terms)
        self._sums.add_(terms)

    def clear(self) -> None:
        if self._sums is not None:
            self._sums.zero_()

    def means(self, updates: int) -> dict[str, float]:
        sums = [] if self._sums is None else self._sums.tolist()
        return {name: total / updates for name, total in zip(self._names, sums, strict=True)}


@contextmanager
def _batches_counted_once(network: nn.Module, updates: int) -> Iterator[None]:
    """Count the batches of all batch norms after the training, rather than each with a kernel in every update."""
    norms = [
        module
        for module in network.modules()
        if isinstance(module, nn.BatchNorm2d) and module.momentum and module.training  # frozen parts count none
    ]
    counts = [norm.num_batches_tracked for norm in norms]
    for norm in norms:
        norm.num_batches_tracked = None
    try:
        yield
    finally:
        for norm, count in zip(norms, counts, strict=True):
            norm.num_batches_tracked = None if count is None else count.add_(updates)
