import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gd_ray.errors import UserError
from gd_ray.metrics import average_forgetting, average_incremental_accuracy


def plain_acc(a, sizes):
    t = len(sizes)
    total = 0.0
    for s in range(2, t + 1):
        for r in range(1, s + 1):
            total += sizes[r - 1] / sum(sizes[:s]) * a[s - 1][r - 1]
    return total / (t - 1)


def plain_fgt(a, sizes, released):
    t = len(sizes)
    total = 0.0
    for s in range(2, t + 1):
        for r in range(1, s):
            weight = sizes[r - 1] / (sum(sizes) if released else sum(sizes[:s]))
            total += weight * (a[r - 1][r - 1] - a[s - 1][r - 1])
    return total / (t if released else t - 1)


@given(st.integers(0, 2**31), st.lists(st.integers(1, 20), min_size=2, max_size=8))
def test_metrics_are_the_papers_sums(seed, sizes):
    a = np.random.default_rng(seed).random((len(sizes), len(sizes)))
    a[np.triu_indices(len(sizes), 1)] = np.nan  # tasks not yet learned must not matter
    rows = a.tolist()
    assert average_incremental_accuracy(a, sizes) == pytest.approx(plain_acc(rows, sizes), rel=1e-9)
    assert average_forgetting(a, sizes) == pytest.approx(plain_fgt(rows, sizes, False), rel=1e-9, abs=1e-12)
    assert average_forgetting(a, sizes, "released") == pytest.approx(plain_fgt(rows, sizes, True), rel=1e-9, abs=1e-12)


def test_by_hand():
    a = [[0.9, np.nan, np.nan], [0.6, 0.8, np.nan], [0.3, 0.5, 0.7]]
    assert average_incremental_accuracy(a, (5, 5, 5)) == pytest.approx((0.7 + 0.5) / 2)
    # Stage 2: half of 0.3; stage 3: a third of 0.6 and of 0.3.
    assert average_forgetting(a, (5, 5, 5)) == pytest.approx((0.15 + 0.3) / 2)
    assert average_forgetting(a, (5, 5, 5), "released") == pytest.approx((0.1 + 0.3) / 3)


def test_unknown_convention_is_one_sentence():
    with pytest.raises(UserError, match="did you mean 'paper'"):
        average_forgetting(np.eye(2), (1, 1), "papers")
