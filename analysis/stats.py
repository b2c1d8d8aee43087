"""Statistics over few seeds, as pure functions of arrays.

Methods share seeds (same class order, and the same first model where both or neither learn with external data), so
they are compared seed by seed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import stats

Array = NDArray[np.float64]
Statistic = Callable[[Array], Array]
"""Reduces the last two axes, seeds and settings."""
Verdict = Literal["reproduced", "differs", "undecided"]

RESAMPLES = 4000
FEW = 8
"""Below this many seeds an interval is Student's: resamples of so few values do not reach their tails."""
_EXACT = 16
"""Up to this many seeds all sign flips are counted; above, _DRAWN random ones."""
_DRAWN = 10_000


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% confidence interval; both ends are NaN for a single seed."""

    estimate: float
    low: float
    high: float


@dataclass(frozen=True)
class Paired:
    """One method against another on the seeds that both have."""

    n: int
    difference: Interval
    """Mean of the differences seed by seed."""
    p: float
    """Exact two-sided sign-flip test."""
    wins: int
    improvement: float
    """Probability that a trial of the first is better than one of the second, over all pairs of trials."""


def _iqm(values: Array) -> Array:
    """Interquartile mean: a quarter of the values, rounded down, is cut from each end."""
    return np.asarray(stats.trim_mean(values.reshape(*values.shape[:-2], -1), 0.25, axis=-1))


def mean_interval(values: ArrayLike, seed: int = 0) -> Interval:
    """Return the mean over seeds with its 95% interval; see `cluster_interval`."""
    return cluster_interval(np.asarray(values, float)[:, None], lambda own: own.mean(axis=(-2, -1)), seed)


def iqm_interval(values: ArrayLike, seed: int = 0) -> Interval:
    """Return the interquartile mean of values[seed, setting], with an interval from resampling whole seeds."""
    return cluster_interval(np.asarray(values, float), _iqm, seed)


def cluster_interval(values: Array, statistic: Statistic, seed: int = 0) -> Interval:
    """Return a 95% interval of a statistic of values[seed, setting], from resampling whole seeds.

    The nominal 95% of a plain percentile bootstrap covers about 90% at ten seeds: a resample of n values has a
    variance too small by (n - 1) / n, and the tails of Student's t are missing. More extreme percentiles, those at
    Phi(-sqrt(n / (n - 1)) t(n - 1)), correct both (Hesterberg 2015, the expanded percentile interval) and cover 93 to
    97%. Below FEW seeds the resamples do not reach that far, and the interval is the estimate with t times the standard
    error of the seeds' means, which covers as much (a jackknife of an interquartile mean, whose cut changes with n,
    covers only 89% at five seeds).
    """
    n = len(values)
    estimate = float(statistic(values))
    if n < 2:
        return Interval(estimate, np.nan, np.nan)
    t = stats.t.ppf(0.975, n - 1)
    if n < FEW:
        error = float(stats.sem(values.mean(axis=1)))
        return Interval(estimate, estimate - t * error, estimate + t * error)
    tail = float(stats.norm.cdf(-np.sqrt(n / (n - 1)) * t))
    low, high = np.quantile(statistic(values[_resamples(n, RESAMPLES, seed)]), [tail, 1 - tail])
    return Interval(estimate, float(low), float(high))


@lru_cache(maxsize=4)
def _resamples(n: int, number: int, seed: int) -> NDArray[np.int64]:
    return np.random.default_rng(seed).integers(n, size=(number, n))


def least_p(n: int) -> float:
    """Return the least p value that a sign-flip test of n seeds can have."""
    return 2 / 2**n if n <= _EXACT else 1 / (_DRAWN + 1)


def sign_flip_test(differences: ArrayLike) -> float:
    """Return the exact two-sided p value that the mean of paired differences is zero, from flipping their signs.

    With n seeds it cannot fall below 2 / 2^n: 0.25 for three seeds. The same as `scipy.stats.permutation_test` with
    permutation_type="samples", which takes 300 times as long (0.7 s for one test of 16 seeds).
    """
    values = np.asarray(differences, float)
    n = len(values)
    if n == 0 or not np.isfinite(values).all():
        return float("nan")
    signs, extra = _signs(n)
    sums = np.abs(signs @ values)
    observed = abs(values.sum())
    close = 1e-12 * max(1.0, observed)
    return float(((sums >= observed - close).sum() + extra) / (len(sums) + extra))


@lru_cache(maxsize=4)
def _signs(n: int) -> tuple[Array, int]:
    """Return all rows of n signs, or random ones, and how many flips to count besides them."""
    if n <= _EXACT:
        flipped, extra = (np.arange(2**n)[:, None] >> np.arange(n)) & 1, 0
    else:
        flipped, extra = np.random.default_rng(0).integers(0, 2, size=(_DRAWN, n)), 1  # the one that was observed
    return 1 - 2 * flipped.astype(np.float64), extra


def holm(p_values: ArrayLike) -> Array:
    """Correct p values for their number (Holm); NaN stays NaN and is not counted."""
    p = np.asarray(p_values, float)
    corrected = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return corrected


def probability_of_improvement(first: ArrayLike, second: ArrayLike) -> float:
    """Return how often a value of the first is above one of the second, over all pairs; equal ones count half."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    return float(stats.mannwhitneyu(a, b, method="asymptotic").statistic) / (len(a) * len(b))


def paired(first: ArrayLike, second: ArrayLike, *, higher_is_better: bool = True) -> Paired:
    """Compare two methods on the same seeds, in the same order."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    differences = a - b
    sign = 1 if higher_is_better else -1
    return Paired(
        n=len(a),
        difference=mean_interval(differences),
        p=sign_flip_test(differences) if len(a) > 1 else float("nan"),
        wins=int((sign * differences > 0).sum()),
        improvement=probability_of_improvement(sign * a, sign * b),
    )


def gap_closed(method: ArrayLike, baseline: ArrayLike, oracle: ArrayLike) -> Array:
    """Return the part of the gap from Baseline (0) to Oracle (1) that is closed, for ACC or FGT; NaN for no gap."""
    m, b, o = (np.asarray(values, float) for values in (method, baseline, oracle))
    with np.errstate(divide="ignore", invalid="ignore"):
        closed: Array = np.where(o != b, (m - b) / (o - b), np.nan)
    return closed


def equivalence(
    values: ArrayLike, printed: float, printed_sd: float, printed_n: int, *, margin: float
) -> tuple[float, float]:
    """Compare a mean with a printed one, itself the mean of `printed_n` trials, by Welch's t tests.

    Return the p value that the difference is not inside ±margin (two one-sided tests, the larger of the two), and the p
    value that there is no difference; both are NaN for a single value.
    """
    own = np.asarray(values, float)
    n, mean = len(own), float(own.mean())
    if n < 2:
        return np.nan, np.nan

    def p(center: float, alternative: Literal["two-sided", "less", "greater"]) -> float:
        test = stats.ttest_ind_from_stats(
            mean, own.std(ddof=1), n, center, printed_sd, printed_n, equal_var=False, alternative=alternative
        )
        return float(test.pvalue)

    return max(p(printed - margin, "greater"), p(printed + margin, "less")), p(printed, "two-sided")


def verdict(values: ArrayLike, printed: float, printed_sd: float, printed_n: int, *, margin: float) -> Verdict:
    """Return 'reproduced' if the difference is inside ±margin at 5%, 'differs' if that is not shown and a t test finds
    a difference, 'undecided' if neither, for lack of seeds."""
    p_equivalent, p_differs = equivalence(values, printed, printed_sd, printed_n, margin=margin)
    return "reproduced" if p_equivalent < 0.05 else "differs" if p_differs < 0.05 else "undecided"
