"""FOSTER against a second implementation from its paper's formulas, and what it refuses."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from gd_ray.errors import UserError
from gd_ray.learners.foster import Foster, boosting_terms, compression_terms, effective_weights
from gd_ray.methods import METHODS
from gd_ray.networks.boosted import boosted_classifier
from gd_ray.networks.classifier import new_classifier
from tests.helpers import plain
from tests.helpers.learners import LABELS, PREV, assert_same_value_and_gradient, normal, sentence
from tests.helpers.tiny import tiny_spec


def test_weights_by_effective_numbers_by_hand():
    # Effective numbers 1 and 1.5; inverses 1 and 2/3, whose mean is 5/6.
    assert effective_weights(np.array([1, 2]), 0.5).tolist() == pytest.approx([1.2, 0.8], abs=1e-15)
    assert effective_weights(np.array([3, 500]), 0.0).tolist() == [1, 1]
    few, many = effective_weights(np.array([20, 500]), 0.97).tolist()
    assert few / many == pytest.approx((1 - 0.97**500) / (1 - 0.97**20), abs=1e-12)


def test_the_loss_of_boosting():
    weights = [1.4, 1.3, 1.1, 0.7, 0.5]

    def expected(rows):
        pairs = list(zip(rows, LABELS, strict=True))
        scaled = [([value / w for value, w in zip(z[:5], weights, strict=True)], y) for z, y in pairs]
        cls = plain.mean(plain.cls(z, y) for z, y in scaled if y >= 0)
        new = plain.mean(plain.cls(z[5:10], y) for z, y in pairs if y >= 0)
        return cls + new + plain.mean(plain.dst(z[:PREV], plain.softmax(z[10:], 2.0), 2.0) for z in rows)

    def terms(outputs):
        return boosting_terms(outputs, torch.tensor(LABELS), torch.tensor(weights, dtype=torch.float64), 2.0)

    assert_same_value_and_gradient(terms, expected, columns=5 + 5 + PREV)


def test_the_loss_of_compression():
    boosted, weights = normal(6, 5 + 5 + PREV, seed=1), [1.4, 1.3, 1.1, 0.7, 0.5]

    def expected(rows):
        losses = []
        for z, reference in zip(rows, boosted.tolist(), strict=True):
            target = [p * w for p, w in zip(plain.softmax(reference[:5], 2.0), weights, strict=True)]
            losses.append(plain.dst(z, [value / sum(target) for value in target], 2.0))
        return plain.mean(losses)

    def terms(logits):
        weigh = torch.tensor(weights, dtype=torch.float64)
        return compression_terms(logits, torch.tensor(LABELS), boosted, weigh, 2.0)

    assert_same_value_and_gradient(terms, expected)


def test_a_boosted_network_starts_from_the_previous_one_which_does_not_learn():
    rng = torch.Generator().manual_seed(0)
    previous = new_classifier("wrn-10-1", 0.3, PREV, rng).eval()
    boosted, images = boosted_classifier(previous, 5, rng).train(), torch.rand(4, 3, 32, 32, generator=rng)
    dim = previous.head.in_features
    with torch.no_grad():
        features = previous.features(images)
        assert torch.equal(boosted.features(images)[:, :dim], features)  # no statistics of the batch
        own, new, old = boosted.eval().logits(images).split((5, 5, PREV), dim=1)
        assert torch.equal(boosted.head.weight[:PREV, :dim], previous.head.weight)
        twice = torch.cat([features, boosted.backbone.new(images)], dim=1)
        torch.testing.assert_close(own, twice @ boosted.head.weight.T + boosted.head.bias)
        torch.testing.assert_close(new, twice[:, dim:] @ boosted.head.new.weight.T)
        torch.testing.assert_close(old, previous(images))
    learned = {name for name, parameter in boosted.named_parameters() if parameter.requires_grad}
    assert learned == {f"backbone.new.{name}" for name, _ in previous.backbone.named_parameters()} | {
        *("head.weight", "head.bias", "head.new.weight", "head.new.bias")
    }


def test_foster_without_an_image_of_each_class_or_with_a_wrong_beta():
    says = "coreset_size 3 leaves method 'foster' no image of some of 4 previous classes.* raise it to 4 or more"
    with pytest.raises(UserError, match=says) as e:
        Foster(tiny_spec(method="foster", coreset_size=3))
    sentence(e)
    method = replace(METHODS["foster"], options={"boosting_beta": 1.0})
    with pytest.raises(UserError, match="method 'foster': boosting_beta 1.0 must be at least 0 and below 1") as e:
        Foster(tiny_spec(method=method))
    sentence(e)
