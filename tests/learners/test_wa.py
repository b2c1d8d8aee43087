"""WA against a second implementation from its paper's formulas."""

import pytest
import torch

from gd_ray.learners.wa import align, replay_terms
from tests.helpers import plain
from tests.helpers.learners import LABELS, PREV, assert_same_value_and_gradient, head_of, normal


def test_the_loss_of_wa_and_bic():
    previous = normal(6, PREV, seed=1)

    def expected(rows):
        ce = plain.mean(plain.cls(z, y) for z, y in zip(rows, LABELS, strict=True) if y >= 0)
        references = [plain.softmax(p, 2.0) for p in previous.tolist()]
        kd = plain.mean(plain.dst(z[:PREV], q, 2.0) for z, q in zip(rows, references, strict=True))
        return 2 / 5 * ce + 3 / 5 * kd

    assert_same_value_and_gradient(lambda z: replay_terms(z, torch.tensor(LABELS), previous, 2.0), expected)


def test_aligning_a_head_of_two_and_two_classes_by_hand():
    head = head_of([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0], [2.0, 0.0]], [1.0, 2.0, 3.0, 4.0])
    assert align(head, 2) == 0.5  # mean norms (5 + 1) / 2 and (10 + 2) / 2
    assert head.weight.tolist() == [[3, 4], [0, 1], [3, 4], [1, 0]]
    assert head.bias.tolist() == [1, 2, 1.5, 2]
    assert align(head, 2) == 1.0


def test_aligning_makes_mean_norms_agree_and_keeps_the_order_inside_old_and_new_classes():
    head, features = head_of(normal(7, 4).tolist(), normal(7, seed=1).tolist()), normal(50, 4, seed=2)
    before = head(features)
    align(head, 4)
    norms, after = head.weight.detach().norm(dim=1), head(features)
    assert float(norms[:4].mean()) == pytest.approx(float(norms[4:].mean()), abs=1e-12)
    for columns in (slice(0, 4), slice(4, 7)):
        assert torch.equal(before[:, columns].argmax(dim=1), after[:, columns].argmax(dim=1))
    assert align(head, 4) == pytest.approx(1.0, abs=1e-12)
