"""The third stage of methods beyond the paper, each written out from the formulas of its own paper."""

import copy
import math

import numpy as np
import torch
import torch.nn.functional as F
from scipy.optimize import brentq

from gd_ray.data.augmentation import augment, normalize
from gd_ray.data.strong_view import strong_view
from gd_ray.networks.classifier import expand_head
from gd_ray.seeding import Purpose, generator, numpy_generator, step_purposes
from tests.benchmarks.plain_training import dst
from tests.helpers.batches import sample_augmentation, shuffled_batches
from tests.helpers.plain_stage import (
    BATCH,
    CORESET,
    DECAY,
    FACTOR,
    PREV,
    PURPOSES,
    SEEN,
    SHORTER,
    STAGE,
    WHOLE,
    cls,
    cosine,
    mean,
    seen_by,
)


def replay(stage, network, members):
    """The training that WA and BiC share."""
    share = PREV / SEEN

    def loss(z, inputs, y):
        kept = dst(z[:, :PREV], seen_by(stage.p, inputs), 2).mean()
        return (1 - share) * cls(z, y) + share * kept

    return stage.train(network, network.parameters(), members, WHOLE, "model", loss)


def wa(stage):
    network = replay(stage, stage.expand_head(), stage.all())
    head = network.head
    with torch.no_grad():
        old, new = (rows.square().sum(dim=1).sqrt().mean() for rows in (head.weight[:PREV], head.weight[PREV:]))
        head.weight[PREV:], head.bias[PREV:] = head.weight[PREV:] * old / new, head.bias[PREV:] * old / new
    return network


def bic(stage):
    """Hold out half of the 11 exemplars' 2.75 a class, so one image of each, and fit the bias on them by bisection."""
    labels, rng = stage.labels.numpy(), numpy_generator(stage.seed, STAGE, Purpose.HELD_OUT)
    held_out = [next(i for i in stage.ranked if labels[i] == label) for label in range(PREV)]
    held_out += [rng.permutation(stage.current[labels[stage.current] == label])[0] for label in range(PREV, SEEN)]
    network = replay(stage, stage.expand_head(), torch.tensor([i for i in stage.all().tolist() if i not in held_out]))
    z = seen_by(network, normalize(stage.images[held_out], stage.statistics)).numpy()
    target = np.eye(SEEN)[labels[held_out]]

    def slopes(a, b):
        """Derivatives of CE([old, a * new + b]) + 0.05 b^2 by a and by b."""
        odds = np.exp(np.concatenate([z[:, :PREV], a * z[:, PREV:] + b], axis=1))
        excess = (odds / odds.sum(axis=1, keepdims=True) - target)[:, PREV:]
        return (excess * z[:, PREV:]).sum(axis=1).mean(), excess.sum(axis=1).mean() + 0.1 * b

    def best_offset(a):
        return brentq(lambda b: slopes(a, b)[1], -20, 20, xtol=1e-15)

    def slope_at_best_offset(a):
        return slopes(a, best_offset(a))[0]

    inside = slope_at_best_offset(0.1) < 0 < slope_at_best_offset(10)  # the limits of the scale
    a = brentq(slope_at_best_offset, 0.1, 10, xtol=1e-15) if inside else 10 if slope_at_best_offset(10) <= 0 else 0.1
    head = network.head
    with torch.no_grad():
        head.weight[PREV:], head.bias[PREV:] = head.weight[PREV:] * a, head.bias[PREV:] * a + best_offset(a)
    return network


def icarl(stage):
    network = stage.expand_head()

    def loss(z, inputs, y):
        own = y >= 0
        target = torch.eye(SEEN, dtype=z.dtype)[y[own], PREV:]
        p, q = z.sigmoid(), seen_by(stage.p, inputs).sigmoid()
        new = -(target * p[own, PREV:].log() + (1 - target) * (1 - p[own, PREV:]).log()).sum(dim=1)
        old = -(q * p[:, :PREV].log() + (1 - q) * (1 - p[:, :PREV]).log()).sum(dim=1)
        return mean(new) + old.mean()

    stage.train(network, network.parameters(), stage.all(), WHOLE, "model", loss)

    def directions(indices, mirrored=False):
        images = stage.images[indices].flip(2) if mirrored else stage.images[indices]
        with torch.no_grad():
            f = network.features(normalize(images, stage.statistics))
        return f / f.norm(dim=1, keepdim=True)

    means = []
    for label in range(SEEN):
        quota = 1 if label == 0 else 2  # 11 images of 6 classes
        indices = [i for i in stage.ranked + stage.current.tolist() if stage.labels[i] == label]
        if label >= PREV:
            f = directions(indices)
            mu, taken = f.mean(dim=0), []
            for _ in range(quota):  # the one that brings the mean of those taken nearest to mu in iCaRL's sense
                w = mu + sum((mu - f[i] for i in taken), torch.zeros(()))
                taken.append(max((i for i in range(len(f)) if i not in taken), key=lambda i: float(f[i] @ w)))
            indices = [indices[i] for i in taken]
        both = (directions(indices[:quota]).mean(dim=0) + directions(indices[:quota], True).mean(dim=0)) / 2
        means.append(both / both.norm())
    network.register_buffer("means", torch.stack(means))
    return network


def dmc(stage, exemplars=False):
    rng = stage.start()
    c = stage.new_network(SEEN - PREV, rng)
    current = torch.from_numpy(stage.current)
    stage.train(c, c.parameters(), current, WHOLE, "teacher", lambda z, _, y: F.cross_entropy(z, y - PREV))
    network = stage.new_network(SEEN, rng)

    def loss(z, inputs, _):
        p, own = seen_by(stage.p, inputs), seen_by(c, inputs)
        target = torch.cat([p - p.mean(dim=1)[:, None], own - own.mean(dim=1)[:, None]], dim=1)
        return ((z - target) ** 2).sum() / z.numel()

    external = torch.nonzero(stage.labels < 0)[:, 0]
    members = torch.cat([torch.from_numpy(stage.coreset), external]) if exemplars else external
    epoch = 2 * (len(stage.current) + CORESET)  # of GD+ext: the task, the coreset and as many external images
    return stage.train(network, network.parameters(), members, SHORTER, "model", loss, epoch)


class Boosted(torch.nn.Module):
    """FOSTER's logits over old and new features, and over the new ones alone."""

    def __init__(self, p, rng):
        super().__init__()
        self.old, self.backbone, dim = [p], copy.deepcopy(p.backbone), p.head.in_features
        wide = torch.empty(SEEN, 2 * dim).normal_(0, math.sqrt(2 / (2 * dim)), generator=rng).double()
        narrow = torch.empty(SEEN, dim).normal_(0, math.sqrt(2 / dim), generator=rng).double()
        biases = torch.zeros(2, SEEN).double()
        wide[:PREV, :dim], biases[0, :PREV] = p.head.weight.detach(), p.head.bias.detach()
        self.wide, self.narrow, self.biases = (torch.nn.Parameter(values) for values in (wide, narrow, biases))

    def forward(self, inputs, dropout=None):
        with torch.no_grad():
            old = self.old[0].features(inputs)
        new = self.backbone(inputs.double(), dropout)
        return torch.cat([old, new], dim=1) @ self.wide.T + self.biases[0], new @ self.narrow.T + self.biases[1]


def class_weights(stage, beta):
    inverse = [(1 - beta) / (1 - beta**n) for n in stage.counts().tolist()]
    return torch.tensor([SEEN * value / sum(inverse) for value in inverse], dtype=torch.float64)


def foster(stage):
    rng = stage.start()
    network = expand_head(stage.p, SEEN - PREV, rng)
    boosted, weights, balanced = Boosted(stage.p, rng), class_weights(stage, 0.96), class_weights(stage, 0.97)

    def boosting(z, inputs, y):
        kept = dst(z[0][:, :PREV], seen_by(stage.p, inputs), 2).mean()
        return cls(z[0] / weights, y) + cls(z[1], y) + kept

    def compression(z, inputs, _):
        target = F.softmax(seen_by(boosted, inputs)[0] / 2, dim=1) * balanced
        return (-target / target.sum(dim=1)[:, None] * F.log_softmax(z / 2, dim=1)).sum(dim=1).mean()

    per_epoch = len(stage.all()) // BATCH * FACTOR
    rates = cosine((170,), per_epoch)
    losses = stage.losses(boosted, stage.all(), "boost", boosting, len(rates))
    stage.descend(boosted, boosted.parameters(), rates, losses)
    rates = cosine((130,), per_epoch)
    losses = stage.losses(network, stage.all(), "model", compression, len(rates))
    return stage.descend(network, network.parameters(), rates, losses, decay=0)


def plcil(stage):
    """Batches of 2 labelled images and 7 times as many of the stream; pseudo-labels from a probability of 0.3 on."""
    network = stage.expand_head()
    labelled = torch.from_numpy(np.concatenate([stage.current, stage.coreset]))
    external = torch.nonzero(stage.labels < 0)[:, 0]
    rates = cosine((10, 20, 40, 80), len(labelled) // 2 * FACTOR, share=0.3)
    steps = PURPOSES["model"], step_purposes("stream")
    orders, augmentations, (dropout, _) = ([generator(stage.seed, STAGE, step[k]) for step in steps] for k in range(3))
    distortion = generator(stage.seed, STAGE, step_purposes("strong views")[1])
    shares = {"model": [], "previous": []}

    def pseudo(z, weak, name):
        confidence, label = F.softmax(weak, dim=1).max(dim=1)
        chosen = confidence >= 0.3
        shares[name].append(chosen.double().mean().item())
        return F.cross_entropy(z[chosen], label[chosen], reduction="sum") / len(z)

    def losses():
        sets = ((labelled, 2, orders[0]), (external, 14, orders[1]))
        batches = [shuffled_batches(members, size, len(rates), rng) for members, size, rng in sets]
        for own, index in zip(*batches, strict=True):
            images = augment(stage.images[index], sample_augmentation(14, 32, augmentations[1]))
            strong = strong_view(images, torch.rand(6, 14, generator=distortion))
            weak, strong = (normalize(views, stage.statistics) for views in (images, strong))
            with torch.no_grad():
                by_model = network(weak)
            z, views = network(stage.augmented(own, augmentations[0]), dropout), network(strong, dropout)
            total = cls(z, stage.labels[own]) + pseudo(views, by_model, "model")
            yield total + PREV / SEEN * pseudo(views, seen_by(stage.p, weak), "previous")

    stage.descend(network, network.parameters(), rates, losses(), decay=DECAY / 5, nesterov=True)
    for name, value in network.state_dict().items():
        if name.endswith("num_batches_tracked"):  # the trial counts updates, not the three batches of each
            value.sub_(2 * len(rates))
    stage.recorded = {f"share with pseudo-label of {name}": np.mean(values) for name, values in shares.items()}
    assert all(0 < share < 1 for share in stage.recorded.values())
    return network


BEYOND = {
    "wa": wa,
    "wa+ext": wa,
    "bic": bic,
    "bic+ext": bic,
    "icarl": icarl,
    "icarl+ext": icarl,
    "dmc": dmc,
    "dmc+coreset": lambda stage: dmc(stage, exemplars=True),
    "foster": foster,
    "foster+ext": foster,
    "plcil": plcil,
}
