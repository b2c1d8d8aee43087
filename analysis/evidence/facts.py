"""Numbers for the findings of REPRODUCTION.md, looked up by the titles of rows.

Calls in the template state the verdict that their sentence claims; `make evidence` fails if the trials contradict it.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd

from analysis.evidence.claims import Claim, Metric, Row, Sections, compare, difference, verdict
from analysis.results import Results
from analysis.stats import Paired
from gd_ray.errors import UserError, unknown_name


@dataclass(frozen=True)
class Facts:
    """The trials of an experiment, for sentences about its rows."""

    results: Sequence[Results]
    """One for each kind of CPU that ran the experiment."""
    trials: pd.DataFrame
    """With a column for every metric."""
    rows: Mapping[str, Row]
    metrics: Mapping[str, Metric]

    def gain(
        self, better: str, worse: str, metric: str = "ACC", *, sure: bool | None = None, every_seed: bool = False
    ) -> str:
        """Return by how many points one row is better than another, paired by seed.

        `sure` is whether the sentence says that this is beyond chance (True) or undecided (False).
        """
        claim, values = self._paired(better, worse, metric)
        points = values.difference.estimate * (-1 if claim.metric.lower_is_better else 1)
        _require(points > 0, f"{claim.title} is no gain: {points:+.1f} points")
        _require_sure(sure, claim, values)
        _require(values.wins == values.n or not every_seed, f"{claim.title} wins on {values.wins} of {values.n} seeds")
        return f"{points:.1f}"

    def difference(self, first: str, second: str, metric: str = "ACC", *, sure: bool | None = None) -> str:
        """Return the paired difference of two rows, with its sign; `sure` as for a gain."""
        claim, values = self._paired(first, second, metric)
        _require_sure(sure, claim, values)
        return difference(values)[0]

    def interval(self, first: str, second: str, metric: str = "ACC") -> str:
        """Return the 95% interval of that difference."""
        return difference(self._paired(first, second, metric)[1])[1]

    def wins(self, better: str, worse: str, metric: str = "ACC") -> str:
        """Return on how many seeds one row is better than another."""
        values = self._paired(better, worse, metric)[1]
        return f"{values.wins} of {values.n} seeds"

    def mean(self, title: str, metric: str = "ACC", seeds: Iterable[int] = range(3)) -> str:
        """Return the mean of a row over some seeds, in percent."""
        return f"{self._mean(title, metric, seeds):.1f}"

    def spread(self, titles: Iterable[str], metric: str = "ACC", seeds: Iterable[int] = range(3)) -> str:
        """Return how far the means of several rows are apart, in points."""
        means = [self._mean(title, metric, seeds) for title in titles]
        return f"{max(means) - min(means):.1f}"

    def best(self, titles: Mapping[str, str], metric: str = "ACC", seeds: Iterable[int] = range(3)) -> str:
        """Return the name of the row with the best mean, of rows by names."""
        sign = -1 if self._metric(metric).lower_is_better else 1
        return max(titles, key=lambda name: sign * self._mean(titles[name], metric, seeds))

    def sampled(self, title: str, stage: int) -> dict[str, str]:
        """Return how many images trials sampled at a stage, and their lowest scores in percent: least and most."""
        ids = self._row(title).of(self.trials)["trial_id"].astype(str).tolist()
        _require(bool(ids), f"{title!r} has no trials")
        samples = pd.concat(
            own.rows("samples", ids, filters=[("stage", "=", stage)])
            .astype({"trial_id": str})
            .assign(folder=own.address)
            for own in self.results
        )
        by_trial = samples.groupby(["folder", "trial_id"])
        numbers, scores = by_trial.size(), 100 * by_trial["score"].min()
        return {
            "images": f"{numbers.min():,} to {numbers.max():,}",
            "lowest": f"{scores.min():.0f} to {scores.max():.0f}%",
        }

    def apart(self, other: "Facts", title: str, metric: str = "ACC") -> dict[str, str]:
        """Return how far the same trials are apart on all kinds of CPU of two experiments, in points: most and mean."""
        own = pd.concat([facts._row(title).of(facts.trials) for facts in (self, other)])
        values = 100 * own[self._metric(metric).column].astype(float)
        by_seed = values.groupby(own["seed"].astype(int)).agg(["min", "max", "count"])
        apart = (by_seed["max"] - by_seed["min"])[by_seed["count"] > 1]
        return {"most": f"{apart.max():.1f}", "mean": f"{apart.mean():.1f}", "n": str(len(apart))}

    def _row(self, title: str) -> Row:
        if title not in self.rows:
            raise unknown_name("row of the evidence", title, self.rows)
        return self.rows[title]

    def _metric(self, title: str) -> Metric:
        if title not in self.metrics:
            raise unknown_name("metric of the evidence", title, self.metrics)
        return self.metrics[title]

    def _by_seed(self, title: str, metric: str) -> "pd.Series[float]":
        """Return the values of a row in percent, by seed."""
        column = self._metric(metric).column
        return 100 * self._row(title).by_seed(self.trials, [column])[column]

    def _mean(self, title: str, metric: str, seeds: Iterable[int]) -> float:
        values = self._by_seed(title, metric)
        values = values[values.index.isin(seeds)]
        _require(len(values) == len(set(seeds)), f"{title!r} lacks seeds")
        return float(values.mean())

    def _paired(self, first: str, second: str, metric: str) -> tuple[Claim, Paired]:
        claim = Claim("", self._row(first), self._row(second), self._metric(metric), "own")
        values = compare(claim, self.trials)
        if values is None:
            raise UserError(f"{claim.title} has no pair of trials on one kind of CPU.")
        return claim, values


def facts_of(results: Sequence[Results], trials: pd.DataFrame, sections: Sections, metrics: Iterable[Metric]) -> Facts:
    """Return the facts of all rows, whose titles must differ."""
    rows = [row for _, members in sections for row in members]
    by_title = {row.title: row for row in rows}
    assert len(by_title) == len(rows)
    return Facts(results, trials, by_title, {metric.title: metric for metric in metrics})


def _require_sure(sure: bool | None, claim: Claim, values: Paired) -> None:
    is_sure = verdict(claim, values) != "undecided"
    _require(sure in (None, is_sure), f"{claim.title} is {'' if is_sure else 'not '}beyond chance")


def _require(true: bool, otherwise: str) -> None:
    if not true:
        raise UserError(f"a sentence of the findings does not hold: {otherwise}; change the sentence.")
