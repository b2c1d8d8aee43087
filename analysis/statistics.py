"""Honest statistics over few seeds, as pure functions over arrays.

Seeds are shared between methods (same class order, and the same first model where both learn with external data or
both without), so methods are compared seed by seed.
"""

from collections.abc import Callable, Sequence
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
"""Seeds below which an interval comes from Student's t: so few values cannot be resampled into their own tails."""
_EXACT = 16
"""Seeds up to which all sign flips are counted."""
_DRAWN = 10_000
"""Sign flips drawn for more seeds than that."""


@dataclass(frozen=True)
class Interval:
    """An estimate and its 95% confidence interval; NaN ends where there is none."""

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
    ties: int
    improvement: float
    """Probability that a trial of the first is better than one of the second, over all pairs of trials."""


def _iqm(values: Array) -> Array:
    """The mean of the middle half: a quarter of the values, rounded down, is cut from each end."""
    flat = np.sort(values.reshape(*values.shape[:-2], -1), axis=-1)
    cut = flat.shape[-1] // 4
    middle: Array = flat[..., cut : flat.shape[-1] - cut].mean(axis=-1)
    return middle


def _mean(values: Array) -> Array:
    mean: Array = values.mean(axis=(-2, -1))
    return mean


def mean_interval(values: ArrayLike, level: float = 0.95, seed: int = 0) -> Interval:
    """The mean over seeds with its bootstrap confidence interval; see `cluster_interval`."""
    return cluster_interval(np.asarray(values, float)[:, None], _mean, level, seed)


def iqm_interval(values: ArrayLike, level: float = 0.95, seed: int = 0) -> Interval:
    """The interquartile mean of values[seed, setting], with an interval from resampling whole seeds."""
    return cluster_interval(np.asarray(values, float), _iqm, level, seed)


def cluster_interval(values: Array, statistic: Statistic, level: float = 0.95, seed: int = 0) -> Interval:
    """A confidence interval of a statistic of values[seed, setting], from resampling whole seeds.

    A plain percentile bootstrap of ten seeds covers about 90% where it says 95%: a resample of n values has a
    variance too small by (n - 1) / n, and knows nothing of the tails of Student's t. Both are made good by taking
    more extreme percentiles, those at Phi(-sqrt(n / (n - 1)) t(n - 1)) (Hesterberg 2015, the expanded percentile
    interval), which then covers 93 to 97%. Below FEW seeds the resamples do not reach that far out, and the interval
    is the estimate with t times the standard error of the seeds' means, which covers as much (a jackknife of an
    interquartile mean, whose cut changes with n, covers only 89% at five seeds). One seed has none.
    """
    n = len(values)
    estimate = float(statistic(values))
    if n < 2:
        return Interval(estimate, np.nan, np.nan)
    t = stats.t.ppf((1 + level) / 2, n - 1)
    if n < FEW:
        error = float(stats.sem(values.mean(axis=1)))
        return Interval(estimate, estimate - t * error, estimate + t * error)
    tail = float(stats.norm.cdf(-np.sqrt(n / (n - 1)) * t))
    chosen = np.random.default_rng(seed).integers(n, size=(RESAMPLES, n))
    low, high = np.quantile(statistic(values[chosen]), [tail, 1 - tail])
    return Interval(estimate, float(low), float(high))


def least_p(n: int) -> float:
    """What no sign-flip test of n seeds can fall below."""
    return 2 / 2**n if n <= _EXACT else 1 / (_DRAWN + 1)


def sign_flip_test(differences: ArrayLike) -> float:
    """The exact two-sided p value that the mean of paired differences is zero, from flipping their signs.

    With n seeds it cannot fall below 2 / 2^n: three seeds never go under 0.25. Above 16 seeds, ten thousand random
    flips stand for all of them.
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
    """All rows of n signs, or random ones; and how many flips to count besides them."""
    if n <= _EXACT:
        flipped, extra = (np.arange(2**n)[:, None] >> np.arange(n)) & 1, 0
    else:
        flipped, extra = np.random.default_rng(0).integers(0, 2, size=(_DRAWN, n)), 1  # the one that was observed
    return 1 - 2 * flipped.astype(np.float64), extra


def holm(p_values: ArrayLike) -> Array:
    """Holm's correction for as many tests as there are p values; NaN stays NaN and counts for nothing."""
    p = np.asarray(p_values, float)
    corrected = np.full(p.shape, np.nan)
    known = np.flatnonzero(~np.isnan(p))
    order = known[np.argsort(p[known], kind="stable")]
    factors = np.arange(len(order), 0, -1)
    corrected[order] = np.minimum(1.0, np.maximum.accumulate(factors * p[order]))
    return corrected


def probability_of_improvement(first: ArrayLike, second: ArrayLike) -> float:
    """How often a value of the first is above one of the second, over all pairs; equal ones count half."""
    a, b = np.asarray(first, float)[:, None], np.asarray(second, float)[None, :]
    return float(((a > b) + 0.5 * (a == b)).mean())


def paired(first: ArrayLike, second: ArrayLike, *, higher_is_better: bool = True) -> Paired:
    """Compares two methods on the same seeds, in the same order."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    differences = a - b
    sign = 1 if higher_is_better else -1
    return Paired(
        n=len(a),
        difference=mean_interval(differences),
        p=sign_flip_test(differences) if len(a) > 1 else float("nan"),
        wins=int((sign * differences > 0).sum()),
        ties=int((differences == 0).sum()),
        improvement=probability_of_improvement(sign * a, sign * b),
    )


def gap_closed(method: ArrayLike, baseline: ArrayLike, oracle: ArrayLike) -> Array:
    """The share of the way from Baseline (0) to Oracle (1), for ACC and FGT alike; NaN where there is no way."""
    m, b, o = (np.asarray(values, float) for values in (method, baseline, oracle))
    with np.errstate(divide="ignore", invalid="ignore"):
        share: Array = np.where(o != b, (m - b) / (o - b), np.nan)
    return share


@dataclass(frozen=True)
class Equivalence:
    """The difference from a printed value, the p values of both tests, and what they say together."""

    difference: float
    p_equivalent: float
    """That the difference is not inside the margin (the larger of the two one-sided tests)."""
    p_differs: float
    """That there is no difference."""
    verdict: Verdict


def equivalence(
    values: Sequence[float] | Array,
    printed: float,
    *,
    margin: float,
    printed_sd: float = 0.0,
    printed_n: int = 0,
    alpha: float = 0.05,
) -> Equivalence:
    """Two one-sided tests (TOST) of the mean against a printed one.

    'reproduced': the difference is inside ±margin, at level alpha. 'differs': it is not shown to be inside, and a
    t test says that it is not zero. 'undecided': neither, for lack of seeds. A printed mean is itself the mean of
    `printed_n` trials: with them its error counts too (Welch); without them it is taken as exact.
    """
    own = np.asarray(values, float)
    difference = float(own.mean() - printed)
    n = len(own)
    if n < 2:
        return Equivalence(difference, float("nan"), float("nan"), "undecided")
    parts = [own.var(ddof=1) / n] + ([printed_sd**2 / printed_n] if printed_n > 1 else [])
    degrees = [n - 1] + ([printed_n - 1] if printed_n > 1 else [])
    error = float(np.sqrt(sum(parts)))
    if error == 0:
        p_equivalent, p_differs = float(abs(difference) >= margin), float(difference == 0)
    else:
        freedom = error**4 / sum(part**2 / df for part, df in zip(parts, degrees, strict=True))
        p_equivalent = float(stats.t.sf((margin - abs(difference)) / error, freedom))
        p_differs = float(2 * stats.t.sf(abs(difference) / error, freedom))
    verdict: Verdict = "undecided"
    if p_equivalent < alpha:
        verdict = "reproduced"
    elif p_differs < alpha:
        verdict = "differs"
    return Equivalence(difference, p_equivalent, p_differs, verdict)
