"""Stochastic gradient descent over a pool of images: the loop that every training shares."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from gd_ray.data.loader import augmented, batches, draw_augmentation, normalised, updates_per_epoch
from gd_ray.data.pixels import Statistics
from gd_ray.objective import Terms
from gd_ray.schedule import Training, schedule
from gd_ray.seeding import Purpose, generator
from gd_ray.spec import TrialSpec

OnImages = Callable[[int, int], None]
"""Told how many images a step has done, and how many it has in all."""


@dataclass(frozen=True)
class Pool:
    """The images of a stage on the training device: labelled ones first, then the external set."""

    images: Tensor
    labels: Tensor
    statistics: Statistics


@dataclass(frozen=True)
class Randomness:
    """Where one training draws its numbers."""

    seed: int
    stage: int
    batches: Purpose
    augmentation: Purpose
    dropout: Purpose


def fit(
    spec: TrialSpec,
    pool: Pool,
    members: Tensor,
    training: Training,
    parameters: list[nn.Parameter],
    terms: Callable[[Tensor, Tensor, torch.Generator], Terms],
    randomness: Randomness,
    on_images: OnImages,
) -> dict[str, float]:
    """Minimises the sum of `terms(inputs, labels, dropout)` over the members of the pool.

    Returns the mean of each term over the last epoch.
    """
    device = pool.images.device
    seed, stage = randomness.seed, randomness.stage
    batch_numbers = generator(seed, stage, randomness.batches)
    augmentation = generator(seed, stage, randomness.augmentation)
    dropout = generator(seed, stage, randomness.dropout, device)
    per_epoch = updates_per_epoch(len(members), spec.batch_size)
    plan = schedule(
        training,
        updates_per_epoch=per_epoch,
        epoch_factor=spec.factor_of(training),
        learning_rate=spec.learning_rate,
    )
    optimiser = torch.optim.SGD(
        parameters,
        lr=plan.learning_rate,
        momentum=spec.momentum,
        weight_decay=spec.weight_decay,
        fused=device.type == "cuda",  # on a CPU it gains nothing
    )
    sums: dict[str, Tensor] = {}
    last_epoch = max(0, plan.updates - per_epoch)
    for update, index in enumerate(batches(members, spec.batch_size, plan.updates, batch_numbers, device)):
        optimiser.param_groups[0]["lr"] = plan.rate(update)
        pixels = augmented(pool.images[index], draw_augmentation(len(index), augmentation, device))
        losses = terms(normalised(pixels, pool.statistics), pool.labels[index], dropout)
        optimiser.zero_grad(set_to_none=True)
        torch.stack(list(losses.values())).sum().backward()  # type: ignore[no-untyped-call]
        optimiser.step()
        if update >= last_epoch:  # no number leaves the device before the training ends
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0) + loss.detach()
        on_images((update + 1) * len(index), plan.updates * len(index))
    return {name: float(total) / (plan.updates - last_epoch) for name, total in sums.items()}
