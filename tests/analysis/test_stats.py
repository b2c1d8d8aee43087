"""Statistics against closed forms, and against scipy where the code does not call it."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from analysis import stats as own

RNG = np.random.default_rng(7)


def test_interquartile_mean_by_hand():
    for n in (4, 5, 7, 10, 30):
        values = RNG.normal(size=n)
        middle = np.sort(values)[n // 4 : n - n // 4]
        assert own.iqm_interval(values[:, None]).estimate == pytest.approx(middle.mean())
    assert own.iqm_interval([[0, 1, 2, 3], [4, 5, 6, 100]]).estimate == 3.5


def test_a_constant_has_an_interval_of_no_width():
    for n in (2, 5, 10):
        assert own.mean_interval(np.full(n, 3.0)) == own.Interval(3.0, 3.0, 3.0)
    one = own.mean_interval([3.0])
    assert one.estimate == 3.0
    assert np.isnan([one.low, one.high]).all()


def test_few_seeds_have_students_interval():
    values = RNG.normal(size=5)
    found = own.mean_interval(values)
    low, high = stats.t.interval(0.95, 4, values.mean(), values.std(ddof=1) / np.sqrt(5))
    assert (found.low, found.high) == pytest.approx((low, high))


def test_many_seeds_have_scipys_bootstrap():
    values = RNG.lognormal(size=200)
    found = own.mean_interval(values)
    other = stats.bootstrap((values,), np.mean, n_resamples=4000, method="percentile", rng=1).confidence_interval
    width = other.high - other.low
    assert found.low == pytest.approx(other.low, abs=0.05 * width)
    assert found.high == pytest.approx(other.high, abs=0.05 * width)


def coverage(draw, interval, truth, times, monkeypatch):
    monkeypatch.setattr(own, "RESAMPLES", 1000)
    found = [interval(draw(), seed=k) for k in range(times)]
    return np.mean([each.low <= truth <= each.high for each in found])


@pytest.mark.parametrize("kind", ["normal", "skewed"])
def test_95_percent_intervals_of_ten_seeds_cover_93_to_97(kind, monkeypatch):
    rng = np.random.default_rng(1)
    draw, truth = {
        "normal": (lambda: rng.normal(size=10), 0.0),
        "skewed": (lambda: rng.lognormal(0, 0.3, size=10), np.exp(0.045)),
    }[kind]
    assert 0.93 <= coverage(draw, own.mean_interval, truth, 3000, monkeypatch) <= 0.97


def test_cluster_intervals_cover_though_settings_of_a_seed_go_together(monkeypatch):
    rng = np.random.default_rng(2)

    def draw():
        return rng.normal(size=(10, 1)) + rng.normal(size=(10, 3))

    assert 0.93 <= coverage(draw, own.iqm_interval, 0.0, 1000, monkeypatch) <= 0.97
    # Resampling all thirty values as if they were independent does not.
    naive = coverage(lambda: draw().reshape(30, 1), own.iqm_interval, 0.0, 500, monkeypatch)
    assert naive < 0.9


@pytest.mark.parametrize(("seeds", "sizes"), [(3, 1), (5, 1), (5, 3), (7, 1)])
def test_intervals_of_an_interquartile_mean_of_few_seeds_cover_too(seeds, sizes, monkeypatch):
    rng = np.random.default_rng(3)

    def draw():
        return rng.normal(size=(seeds, 1)) + rng.normal(size=(seeds, sizes))

    assert 0.93 <= coverage(draw, own.iqm_interval, 0.0, 2000, monkeypatch) <= 0.97


def test_sign_flips_are_counted_exactly():
    assert own.sign_flip_test([1, 2, 3]) == 0.25
    assert own.sign_flip_test([1, -1]) == 1.0
    assert own.sign_flip_test([0, 0, 0]) == 1.0
    assert np.isnan(own.sign_flip_test([1, np.nan]))
    values = RNG.normal(0.5, size=9)
    sums = [abs(sum(s * v for s, v in zip(signs, values, strict=True))) for signs in product((1, -1), repeat=9)]
    plain = np.mean([total >= abs(values.sum()) - 1e-12 for total in sums])
    assert own.sign_flip_test(values) == pytest.approx(plain)
    scipys = stats.permutation_test((values,), np.mean, permutation_type="samples", n_resamples=np.inf).pvalue
    assert own.sign_flip_test(values) == pytest.approx(scipys)


def test_many_sign_flips_are_drawn():
    values = RNG.normal(0.4, size=25)
    assert own.sign_flip_test(values) == pytest.approx(stats.ttest_1samp(values, 0).pvalue, abs=0.02)


def test_holm_by_hand():
    np.testing.assert_allclose(own.holm([0.01, 0.04, 0.03]), [0.03, 0.06, 0.06])
    np.testing.assert_allclose(own.holm([0.5, np.nan, 0.9]), [1.0, np.nan, 1.0])


def test_probability_of_improvement_counts_all_pairs():
    a, b = RNG.integers(0, 5, 8), RNG.integers(0, 5, 11)
    pairs = [(x > y) + 0.5 * (x == y) for x, y in product(a, b)]
    assert own.probability_of_improvement(a, b) == pytest.approx(np.mean(pairs))


def test_paired_comparison_by_hand():
    found = own.paired([3, 5, 7], [1, 5, 4])
    assert (found.n, found.wins) == (3, 2)
    assert found.difference.estimate == pytest.approx(5 / 3)
    assert found.p == 0.5  # of the 8 flips of (2, 0, 3), +5 and -5 come twice each
    lower = own.paired([3, 5, 7], [1, 5, 4], higher_is_better=False)
    assert lower.wins == 0
    assert lower.improvement == pytest.approx(1 - found.improvement)


def test_gap_closed():
    np.testing.assert_allclose(own.gap_closed([50, 60], [40, 60], [80, 60]), [0.25, np.nan])
    np.testing.assert_allclose(own.gap_closed([15.0], [20.0], [0.0]), [0.25])  # FGT goes down


def test_equivalence_is_two_one_sided_tests_of_welch():
    values = RNG.normal(10, 1, size=12)
    for printed in (10.0, 10.4, 12.0):
        p_equivalent, p_differs = own.equivalence(values, printed, 0.8, 10, margin=1.0)
        parts = values.var(ddof=1) / 12, 0.8**2 / 10
        error = np.sqrt(sum(parts))
        freedom = error**4 / (parts[0] ** 2 / 11 + parts[1] ** 2 / 9)
        difference = values.mean() - printed
        assert p_equivalent == pytest.approx(stats.t.sf((1.0 - abs(difference)) / error, freedom))
        assert p_differs == pytest.approx(2 * stats.t.sf(abs(difference) / error, freedom))


def test_verdicts():
    tight = np.array([9.9, 10.0, 10.1, 10.0, 9.95, 10.05])
    assert own.verdict(tight, 10.2, 0.1, 10, margin=1.0) == "reproduced"
    assert own.verdict(tight, 12.0, 0.1, 10, margin=1.0) == "differs"
    assert own.verdict([8.0, 12.0, 10.5], 10.0, 0.1, 10, margin=1.0) == "undecided"
    assert own.verdict([10.0], 10.0, 0.1, 10, margin=1.0) == "undecided"
    assert own.verdict([10.0, 10.0], 10.0, 0.1, 10, margin=1.0) == "reproduced"
    assert own.verdict([12.0, 12.0], 10.0, 0.1, 10, margin=1.0) == "differs"
