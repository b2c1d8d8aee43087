"""The third stage of a trial against a plain loop: which images, references, losses, rates and parameters it takes.

The loop is written from the papers: each method says outright what it minimises, `helpers/plain_stage.py` spells out
SGD and its schedule, `helpers/beyond_by_hand.py` has the methods beyond the paper.
"""

import copy
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from gd_ray import trial
from gd_ray.learner import Learner
from gd_ray.networks.classifier import Classifier
from gd_ray.trial import run_trial
from tests.benchmarks.plain_training import dst, ensemble, weights_of
from tests.helpers.beyond_by_hand import BEYOND
from tests.helpers.plain_stage import FINE, PREV, SEEN, SHORTER, TASKS, WHOLE, Plain, cls, mean, seen_by, spec_of

pytestmark = pytest.mark.usefixtures("small_inference")


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
    **BEYOND,
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
    assert {name: result.stages[2].recorded[name] for name in stage.recorded} == pytest.approx(stage.recorded)
    differences = {name: float((weights - expected[name]).abs().max()) for name, weights in saved[0].weights.items()}
    # Class weights rounded to float32 make 1e-9 of difference, all else less. A temperature that is wrong by 1% makes
    # 1e-6 and more, and so does a momentum that is wrong by 0.1%.
    assert max(differences.values()) < 1e-8, differences
