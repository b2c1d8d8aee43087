"""What the tests of learners beyond the paper share: logits, their losses with gradients, trials with checkpoints."""

import pytest
import torch
from torch import nn

from gd_ray.trial import run_trial

LABELS = [0, 3, -1, 4, 2, -1]
PREV = 3


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_same_value_and_gradient(terms, expected, columns=5):
    """`terms` of a (6, 5) tensor of logits; `expected` of the same as lists, differentiated by differences."""
    logits = normal(6, columns).requires_grad_()
    total = sum(terms(logits).values())
    total.backward()
    rows = logits.tolist()
    assert total.item() == pytest.approx(expected(rows), abs=1e-9)
    for i in range(6):
        for j in range(columns):
            sides = []
            for change in (1e-5, -1e-5):
                moved = [list(row) for row in rows]
                moved[i][j] += change
                sides.append(expected(moved))
            assert float(logits.grad[i, j]) == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-9)


def head_of(rows, biases):
    head = nn.Linear(len(rows[0]), len(rows)).double()
    with torch.no_grad():
        head.weight[:], head.bias[:] = torch.tensor(rows), torch.tensor(biases)
    return head


def run(spec, data, stream=None, **options):
    checkpoints = []
    result = run_trial(spec, data, stream, on_stage=lambda _, c: checkpoints.append(c), **options)
    return result, checkpoints


def sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text
