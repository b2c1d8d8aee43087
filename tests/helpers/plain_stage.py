"""The images of a stage and a plain training loop, for stages that tests compute by hand.

Both the trial and the loop learn in float64: in float32 training makes rounding as large as a small mistake. What has
tests of its own (augmentation, batches, dropout, the growing head, the balanced set) is taken as it is.
"""

import math

import numpy as np
import torch
import torch.nn.functional as F

from gd_ray.coreset import balanced_set
from gd_ray.data.augmentation import augment, normalize
from gd_ray.data.tasks import class_order, labels_in_order
from gd_ray.networks.classifier import expand_head, new_classifier, with_new_head
from gd_ray.seeding import Purpose, generator, numpy_generator, step_purposes
from tests.benchmarks.plain_training import teacher_loss, weights_of
from tests.helpers.batches import sample_augmentation, shuffled_batches
from tests.helpers.tiny import tiny_spec

STAGE, PREV, SEEN = 3, 4, 6
CORESET = 11
TASKS = ((0, 2), (2, 4), (4, 6))
FACTOR, FINE_FACTOR, BATCH, RATE, MOMENTUM, DECAY = 0.015, 20, 8, 0.005, 0.8, 0.01
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
        coreset_size=CORESET,
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
        self.rates, self.recorded = [], {}
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
        """Train on batches of some images; an epoch is as long as the set unless it is given."""
        epochs, share, decays = plan
        per_epoch = max(1, (epoch or len(members)) // BATCH) * FACTOR * (FINE_FACTOR if plan is FINE else 1)
        rates = []
        for update in range(round(epochs * per_epoch)):
            passed = sum(update >= round(decay * per_epoch) for decay in decays)
            rates.append(RATE * share * 0.1**passed)
        assert len(set(rates)) >= len(decays)  # with external data, updates at every rate
        return self.descend(network, parameters, rates, self.losses(network, members, step, loss, len(rates)))

    def losses(self, network, members, step, loss, updates):
        """Yield the loss of each batch, when it is the batch's turn."""
        purposes = PURPOSES.get(step) or step_purposes(step)
        batch_numbers, augmentation, dropout = (generator(self.seed, STAGE, purpose) for purpose in purposes)
        for index in shuffled_batches(members, BATCH, updates, batch_numbers):
            inputs = self.augmented(index, augmentation)
            yield loss(network(inputs, dropout), inputs, self.labels[index])

    def augmented(self, index, rng):
        inputs = augment(self.images[index], sample_augmentation(len(index), 32, rng))
        return normalize(inputs, self.statistics)

    def descend(self, network, parameters, rates, losses, decay=DECAY, nesterov=False):
        """SGD with momentum and weight decay, written out."""
        parameters = list(parameters)
        speeds = [torch.zeros_like(parameter) for parameter in parameters]
        network.train()
        for rate, loss in zip(rates, losses, strict=True):
            gradients = torch.autograd.grad(loss, parameters)
            with torch.no_grad():
                for parameter, speed, gradient in zip(parameters, speeds, gradients, strict=True):
                    gradient = gradient + decay * parameter
                    speed.mul_(MOMENTUM).add_(gradient)
                    parameter.sub_(rate * (gradient + MOMENTUM * speed if nesterov else speed))
        self.rates += rates
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


def cosine(cycles, per_epoch, share=1.0):
    """Learning rates that fall along half a cosine in each cycle, epoch by epoch."""
    epochs = [(epoch, length) for length in cycles for epoch in range(length)]
    rates = []
    for update in range(round(len(epochs) * per_epoch)):
        epoch, length = epochs[math.floor(update / per_epoch)]
        rates.append(RATE * share * 0.5 * (1 + math.cos(math.pi * epoch / length)))
    return rates


def mean(values):
    return values.mean() if len(values) else torch.zeros(())


def cls(logits, labels, counts=None):
    """Equation 1, weighed by Equation 10 where counts are given."""
    own = labels >= 0
    losses = F.cross_entropy(logits[own], labels[own], reduction="none")
    return mean(losses if counts is None else losses * weights_of(labels[own], counts, 0, SEEN))


@torch.no_grad()
def seen_by(network, inputs):
    assert not network.training
    return network(inputs)
