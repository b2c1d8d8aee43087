"""The third stage of a trial against a plain loop: which images, references, losses, rates and parameters it takes.

The loop is written from the paper: each method says outright what it minimises, SGD and its schedule are spelled out.
What has tests of its own (augmentation, batches, dropout, the growing head, the balanced set) is taken as it is. Both
learn in float64: in float32 training makes rounding as large as a small mistake.
"""

import copy
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from gd_ray import trial
from gd_ray.coreset import balanced_set
from gd_ray.data.augmentation import augment, normalize
from gd_ray.data.tasks import class_order, labels_in_order
from gd_ray.learner import Learner
from gd_ray.networks.classifier import Classifier, expand_head, new_classifier, with_new_head
from gd_ray.seeding import Purpose, generator, numpy_generator
from gd_ray.trial import run_trial
from tests.benchmarks.plain_training import dst, ensemble, teacher_loss, weights_of
from tests.helpers.batches import sample_augmentation, shuffled_batches
from tests.helpers.tiny import tiny_spec

pytestmark = pytest.mark.usefixtures("small_inference")

STAGE, PREV, SEEN = 3, 4, 6
TASKS = ((0, 2), (2, 4), (4, 6))
FACTOR, FINE_FACTOR, BATCH, RATE, MOMENTUM, DECAY = 0.01, 20, 8, 0.005, 0.8, 0.01
# Epochs, share of the first learning rate, and the epochs after which it falls to a tenth (appendix B).
WHOLE, SHORTER, FINE = (200, 1.0, (120, 160, 180)), (180, 1.0, (120, 160, 170)), (20, 0.1, (10, 15))
PURPOSES = {
    "teacher": (10, 11, 12),
    "model": (20, 21, 22),
    "fine-tune": (30, 31, 32),
}


def spec_of(method):
    return tiny_spec(
        method=method,
        epoch_factor=FACTOR,
        fine_tune_factor=FINE_FACTOR,  # so that a balanced set, which is one batch, has updates at every learning rate
        learning_rate=RATE,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        batch_size=BATCH,
    )


class Plain:
    """The images of the stage, and P."""

    def __init__(self, spec, data, stream, previous, samples):
        labels = labels_in_order(data.train.labels.numpy(), class_order(data, spec.seed), SEEN, data)
        current = np.flatnonzero((labels >= PREV) & (labels < SEEN))
        places = np.concatenate([current, np.sort(previous.coreset)])
        external = torch.from_numpy(stream.read(samples.positions))
        self.images = torch.cat([data.train.images[places], external])
        self.labels = torch.cat([torch.from_numpy(labels[places]), torch.full((len(external),), -1)])
        self.statistics, self.seed = data.statistics, spec.seed
        self.current, self.coreset = np.arange(len(current)), np.arange(len(current), len(places))
        order = np.argsort(previous.coreset, kind="stable")
        self.ranked = self.coreset[np.argsort(order)].tolist()  # the coreset in the order in which it was selected
        self.rates = []
        self.p = new_classifier(spec.network, spec.dropout, PREV, self.start())
        self.p.load_state_dict(previous.weights)
        self.p.double().eval()
        self.new_network = lambda classes, rng: new_classifier(spec.network, spec.dropout, classes, rng).double()

    def start(self):
        return generator(self.seed, STAGE, Purpose.INITIALISATION)

    def all(self):
        return torch.arange(len(self.images))

    def balanced(self):
        numbers = numpy_generator(self.seed, STAGE, Purpose.BALANCED_SET)
        labels = self.labels.numpy()[self.current]
        return torch.from_numpy(balanced_set(self.current, labels, self.coreset, PREV, SEEN, numbers))

    def counts(self):
        return torch.bincount(self.labels[self.labels >= 0], minlength=SEEN)

    def train(self, network, parameters, members, plan, step, loss, epoch=None):
        """SGD with momentum and weight decay, written out; an epoch is as long as the set unless it is given."""
        epochs, share, decays = plan
        batch_numbers, augmentation, dropout = (generator(self.seed, STAGE, purpose) for purpose in PURPOSES[step])
        per_epoch = max(1, (epoch or len(members)) // BATCH) * FACTOR * (FINE_FACTOR if plan is FINE else 1)
        updates = round(epochs * per_epoch)
        parameters = list(parameters)
        speeds = [torch.zeros_like(parameter) for parameter in parameters]
        network.train()
        before = len(self.rates)
        for update, index in enumerate(shuffled_batches(members, BATCH, updates, batch_numbers)):
            rate = RATE * share
            for decay in decays:
                rate *= 0.1 if update >= round(decay * per_epoch) else 1.0
            self.rates.append(rate)
            inputs = augment(self.images[index], sample_augmentation(len(index), 32, augmentation))
            inputs = normalize(inputs, self.statistics)
            gradients = torch.autograd.grad(loss(network(inputs, dropout), inputs, self.labels[index]), parameters)
            with torch.no_grad():
                for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
                    speed.mul_(MOMENTUM).add_(gradient + DECAY * parameter)
                    parameter.sub_(rate * speed)
        assert len(set(self.rates[before:])) >= len(decays)  # with external data, updates at every rate
        network.eval()
        return network

    def teacher(self):
        network = with_new_head(self.p, SEEN - PREV, self.start())

        def loss(logits, _, labels):
            if (labels >= PREV).all():
                return F.cross_entropy(logits, labels - PREV)
            if not (labels >= PREV).any():
                return -F.log_softmax(logits, dim=1).mean(dim=1).mean()
            return teacher_loss(logits, labels, PREV)  # Equation 12

        return self.train(network, network.parameters(), self.all(), WHOLE, "teacher", loss)

    def expand_head(self):
        return expand_head(self.p, SEEN - PREV, self.start())


def mean(values):
    return values.mean() if len(values) else torch.zeros(())


def cls(logits, labels, counts=None):
    """Equation 1, weighed by Equation 10 where counts are given."""
    own = labels >= 0
    losses = F.cross_entropy(logits[own], labels[own], reduction="none")
    return mean(losses if counts is None else losses * weights_of(labels[own], counts, 0, SEEN))


def distil(logits, reference, first, last, labels, counts=None):
    """A distillation over the classes from first to last - 1 at temperature 2, weighed by Equation 11."""
    losses = dst(logits[:, first:last], reference, 2)
    weights = 1.0 if counts is None else weights_of(labels, counts, first, last)
    return (losses * weights).mean() * (last - first) / SEEN


def q_loss(logits, p, c, labels):
    """Equation 8, on external images at temperature 1."""
    external = labels < 0
    q = ensemble(F.softmax(p[external], dim=1), F.softmax(c[external], dim=1))
    return mean(-(q * F.log_softmax(logits[external], dim=1)).sum(dim=1))


@torch.no_grad()
def seen_by(network, inputs):
    assert not network.training
    return network(inputs)


def baseline(stage):
    network = stage.expand_head()
    return stage.train(network, network.parameters(), stage.all(), WHOLE, "model", lambda z, _, y: cls(z, y))


def local(logits, reference, labels, tasks):
    return sum(distil(logits, reference[:, first:last], first, last, labels) for first, last in tasks)


def lwf(stage):
    network = stage.expand_head()

    def loss(z, inputs, y):
        return cls(z, y) + local(z, seen_by(stage.p, inputs), y, TASKS[:2])

    return stage.train(network, network.parameters(), stage.all(), WHOLE, "model", loss)


def dr(stage):
    network, c = stage.expand_head(), stage.teacher()

    def loss(z, inputs, y):
        old = local(z, seen_by(stage.p, inputs), y, TASKS[:2])
        return cls(z, y) + old + distil(z[:, :], seen_by(c, inputs), PREV, SEEN, y)

    return stage.train(network, network.parameters(), stage.all(), WHOLE, "model", loss)


def e2e(stage):
    network = stage.expand_head()

    def loss(z, inputs, y):
        return cls(z, y) + local(z, seen_by(stage.p, inputs), y, TASKS[:2])

    stage.train(network, network.parameters(), stage.all(), SHORTER, "model", loss)
    before = copy.deepcopy(network)

    def tuning(z, inputs, y):
        return cls(z, y) + local(z, seen_by(before, inputs), y, TASKS)

    return stage.train(network, network.parameters(), stage.balanced(), FINE, "fine-tune", tuning)


def gd_loss(stage, c, counts, *, with_q):
    def loss(z, inputs, y):  # Equation 9
        p, own = seen_by(stage.p, inputs), seen_by(c, inputs)
        total = cls(z, y, counts) + distil(z, p, 0, PREV, y, counts) + distil(z, own, PREV, SEEN, y, counts)
        return total + q_loss(z, p, own, y) if with_q else total

    return loss


def gd(stage, with_q=False):
    network, c = stage.expand_head(), stage.teacher()
    stage.train(network, network.parameters(), stage.all(), SHORTER, "model", gd_loss(stage, c, None, with_q=with_q))
    tuning = gd_loss(stage, c, stage.counts(), with_q=with_q)
    return stage.train(network, network.head.parameters(), stage.all(), FINE, "fine-tune", tuning)


def data_weighting(stage):
    network, c = stage.expand_head(), stage.teacher()
    loss = gd_loss(stage, c, stage.counts(), with_q=True)
    return stage.train(network, network.parameters(), stage.all(), WHOLE, "model", loss)


def balanced_fine_tuning(stage):
    network, c = stage.expand_head(), stage.teacher()
    loss = gd_loss(stage, c, None, with_q=True)
    stage.train(network, network.parameters(), stage.all(), SHORTER, "model", loss)
    return stage.train(network, network.parameters(), stage.balanced(), FINE, "fine-tune", loss)


def wa(stage):
    network, share = stage.expand_head(), PREV / SEEN

    def loss(z, inputs, y):
        kept = dst(z[:, :PREV], seen_by(stage.p, inputs), 2).mean()
        return (1 - share) * cls(z, y) + share * kept

    stage.train(network, network.parameters(), stage.all(), WHOLE, "model", loss)
    head = network.head
    with torch.no_grad():
        old, new = (rows.square().sum(dim=1).sqrt().mean() for rows in (head.weight[:PREV], head.weight[PREV:]))
        head.weight[PREV:], head.bias[PREV:] = head.weight[PREV:] * old / new, head.bias[PREV:] * old / new
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
        quota = 2 if label == SEEN - 1 else 1  # 7 images of 6 classes
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
    epoch = 2 * (len(stage.current) + 7)  # of GD+ext: the task, the coreset and as many external images
    return stage.train(network, network.parameters(), members, SHORTER, "model", loss, epoch)


BY_HAND = {
    "baseline": baseline,
    "lwf": lwf,
    "lwf+ext": lwf,
    "dr": dr,
    "e2e": e2e,
    "e2e+ext": e2e,
    "gd": gd,
    "gd+ext": lambda stage: gd(stage, with_q=True),
    "balance-dw": data_weighting,
    "balance-dset": balanced_fine_tuning,
    "wa": wa,
    "wa+ext": wa,
    "icarl": icarl,
    "icarl+ext": icarl,
    "dmc": dmc,
    "dmc+coreset": lambda stage: dmc(stage, exemplars=True),
}


@pytest.fixture(scope="module")
def two_stages(tiny_data):
    """The same P and coreset for all methods: whatever made them, the third stage goes on from them."""
    saved = []
    run_trial(spec_of("baseline"), tiny_data, on_stage=lambda _, checkpoint: saved.append(checkpoint), last_stage=2)
    return saved[1]


@pytest.fixture
def in_float64(monkeypatch):
    """A trial that goes on from a checkpoint learns in float64, since M and C are made from P."""
    features = Classifier.features
    monkeypatch.setattr(Classifier, "features", lambda self, x, *dropout: features(self, x.double(), *dropout))
    restored = trial._restored
    monkeypatch.setattr(trial, "_restored", lambda *arguments: restored(*arguments).double())
    new_model = Learner.new_model
    monkeypatch.setattr(Learner, "new_model", lambda *arguments: new_model(*arguments).double())


@pytest.mark.parametrize("method", BY_HAND)
def test_the_third_stage_is_what_the_paper_says(method, two_stages, in_float64, tiny_data, tiny_stream, monkeypatch):
    spec = spec_of(method)
    saved, rates = [], []
    step = torch.optim.SGD.step

    def watched(optimiser):
        rates.append(optimiser.param_groups[0]["lr"])
        return step(optimiser)

    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    weights = two_stages.weights
    if spec.method.learner == "icarl":  # its P has means too, which its third stage does not use
        weights = {**weights, "means": torch.zeros(weights["head.weight"].shape)}
    resume = replace(two_stages, trial_id=spec.trial_id, weights=weights)
    result = run_trial(
        spec, tiny_data, tiny_stream, on_stage=lambda _, checkpoint: saved.append(checkpoint), resume=resume
    )
    stage = Plain(spec, tiny_data, tiny_stream, two_stages, result.stages[2].samples)
    assert spec.method.external == bool((stage.labels < 0).any())
    expected = BY_HAND[method](stage).state_dict()
    assert rates == pytest.approx(stage.rates)
    differences = {name: float((weights - expected[name]).abs().max()) for name, weights in saved[0].weights.items()}
    # Class weights rounded to float32 make 1e-9 of difference, all else less. A temperature that is wrong by 1% makes
    # 1e-6 and more, and so does a momentum that is wrong by 0.1%.
    assert max(differences.values()) < 1e-8, differences
