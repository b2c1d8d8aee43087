"""iCaRL against a second implementation from its paper's formulas, and what it refuses."""

import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gd_ray.coreset import herd
from gd_ray.errors import UserError
from gd_ray.evaluation import class_means
from gd_ray.learners.icarl import ICaRL, sigmoid_terms
from gd_ray.methods import METHODS
from gd_ray.networks.classifier import new_classifier
from gd_ray.networks.nearest_mean import NearestMeanClassifier
from gd_ray.trial import run_trial
from tests.helpers import plain
from tests.helpers.learners import LABELS, PREV, assert_same_value_and_gradient, normal, run, sentence
from tests.helpers.tiny import tiny_spec

pytestmark = pytest.mark.usefixtures("small_inference")


def test_the_loss_of_icarl():
    previous = normal(6, PREV, seed=1)

    def sigmoid(value):
        return 1 / (1 + math.exp(-value))

    def entropy(value, target):
        return -target * math.log(sigmoid(value)) - (1 - target) * math.log(1 - sigmoid(value))

    def expected(rows):
        new = plain.mean(
            sum(entropy(z[k], float(k == y)) for k in (3, 4)) for z, y in zip(rows, LABELS, strict=True) if y >= 0
        )
        old = plain.mean(
            sum(entropy(z[k], sigmoid(p[k])) for k in range(PREV)) for z, p in zip(rows, previous.tolist(), strict=True)
        )
        return new + old

    def first(rows):  # without a P, on labelled images: every output has a label
        pairs = list(zip(rows, LABELS, strict=True))
        return plain.mean(sum(entropy(z[k], float(k == y)) for k in range(5)) for z, y in pairs if y >= 0)

    assert_same_value_and_gradient(lambda z: sigmoid_terms(z, torch.tensor(LABELS), previous), expected)
    assert_same_value_and_gradient(lambda z: sigmoid_terms(z, torch.tensor(LABELS), None), first)


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(0, 40))
def test_herding_is_brute_force(seed, number, wanted):
    rows = np.random.default_rng(seed).normal(size=(number, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    features, mu = rows.tolist(), [sum(column) / number for column in rows.T.tolist()]
    taken, w = [], mu
    for _ in range(min(wanted, number)):
        products = [sum(a * b for a, b in zip(f, w, strict=True)) for f in features]
        taken.append(max((i for i in range(number) if i not in taken), key=lambda i: (products[i], -i)))
        w = [a + b - c for a, b, c in zip(w, mu, features[taken[-1]], strict=True)]
    assert herd(rows, wanted).tolist() == taken


def test_herding_takes_the_earlier_of_equal_images():
    assert herd(np.array([[1.0, 0.0]] * 3), 2).tolist() == [0, 1]


def test_the_nearest_mean_has_the_largest_product_also_of_a_class_with_one_exemplar():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(7, 16))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.array([0, 0, 0, 1, 2, 2, 2])
    means = class_means(features, labels, 3)
    for k in range(3):
        mu = sum(f for f, y in zip(features, labels, strict=True) if y == k) / (labels == k).sum()
        np.testing.assert_allclose(means[k], mu / math.sqrt(float(mu @ mu)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(means[1], features[3], atol=1e-15)
    model = new_classifier("wrn-10-1", 0.0, 3, torch.Generator().manual_seed(0), NearestMeanClassifier).eval()
    images = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        f = model.features(images)
        model.means = torch.nn.functional.normalize(f[:3] + 0.1 * f[3:6], dim=1)
        f = f / f.norm(dim=1, keepdim=True)
        distances = (f[:, None] - model.means[None]).norm(dim=2)
        assert torch.equal(model.predict(images), distances.argmin(dim=1))


def test_icarl_reports_the_head_apart_and_keeps_the_first_of_its_ranking(tiny_data):
    result, checkpoints = run(tiny_spec(method="icarl", epoch_factor=0.02), tiny_data)
    differs = []
    for stage, checkpoint in zip(result.stages, checkpoints, strict=True):
        assert stage.head_confusion[:, 2].sum() == stage.confusion[:, 2].sum() == sum(stage.totals)
        differs.append(stage.head_confusion.tolist() != stage.confusion.tolist())
        assert checkpoint.weights["means"].norm(dim=1).tolist() == pytest.approx([1.0] * 2 * stage.stage)
    assert any(differs)
    labels = tiny_data.train.labels.numpy()
    for before, after in pairwise(checkpoints):
        for k in np.unique(labels[before.coreset]):
            old, new = (c.coreset[labels[c.coreset] == k].tolist() for c in (before, after))
            assert new == old[: len(new)]
    assert run_trial(tiny_spec(method="wa"), tiny_data, last_stage=2).stages[1].head_confusion is None


def test_icarl_with_cross_entropy_runs(tiny_data, tiny_stream):
    method = replace(METHODS["icarl+ext"], options={"loss": "cross-entropy"})
    stage = run_trial(tiny_spec(method=method), tiny_data, tiny_stream, last_stage=2).stages[1]
    assert set(stage.losses) == {"model cls", "model previous"}


def test_a_coreset_without_an_image_of_each_class(tiny_data, tiny_stream):
    with pytest.raises(
        UserError, match="coreset_size 5 leaves method 'icarl' no exemplar .* raise it to 6 or more"
    ) as e:
        run_trial(tiny_spec(method="icarl", coreset_size=5), tiny_data)
    sentence(e)
    says = (
        "coreset_size 3 leaves method 'sample-nearest' no image of some of 4 previous classes.* raise it to 4 or more"
    )
    with pytest.raises(UserError, match=says) as e:
        run_trial(tiny_spec(method="sample-nearest", coreset_size=3), tiny_data, tiny_stream)
    sentence(e)


def test_a_loss_that_icarl_does_not_have():
    method = replace(METHODS["icarl"], options={"loss": "sigmoyd"})
    with pytest.raises(UserError, match="method 'icarl': loss 'sigmoyd' does not exist; did you mean 'sigmoid'"):
        ICaRL(tiny_spec(method=method))
