"""Rows of trials that differ by their seed only, claims that one is better than another, and both as grids.

Trials of two kinds of CPU are never compared: their first models differ by rounding. A seed that ran on several kinds
counts with their mean.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Literal

import pandas as pd

from analysis.aggregate import summarize
from analysis.formats import Cell, Grid, interval, mean_sd, number
from analysis.stats import Paired, paired
from gd_ray.methods import METHODS

Fields = Mapping[str, object]
MAIN: Fields = {
    "convention": "paper",
    "epoch_factor": 0.075,
    "batch_size": 32,
    "fine_tune_factor": 1.0,
    "ood_ratio": 0.7,
    "stream": "tiny-imagenet",
    "window": 47_700,
}
"""The settings of the main comparison; other rows change some of them."""


@dataclass(frozen=True)
class Metric:
    """A column of the trials with values in [0, 1], shown in percent."""

    column: str
    title: str
    lower_is_better: bool = False


ACC, FGT = METRICS = Metric("acc", "ACC"), Metric("fgt_paper", "FGT", lower_is_better=True)


@dataclass(frozen=True)
class Row:
    """Trials of one method that differ by their seed only."""

    method: str
    changes: Fields = field(default_factory=dict)
    """Fields that differ from the main comparison."""
    label: str = ""
    seeds: range = range(3)

    @property
    def title(self) -> str:
        return METHODS[self.method].title + (f", {self.label}" if self.label else "")

    def of(self, trials: pd.DataFrame) -> pd.DataFrame:
        """Return the trials of this row, by seed; one for each kind of CPU that ran it."""
        own = trials[(trials["method"] == self.method) & trials["seed"].isin(self.seeds)]
        return with_values(own, {**MAIN, **self.changes}).sort_values("seed", kind="stable")

    def by_seed(self, trials: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
        """Return the means over kinds of CPU of some columns, by seed."""
        own = self.of(trials)
        return own[list(columns)].astype(float).groupby(own["seed"].astype(int)).mean()

    def summary(self, trials: pd.DataFrame, metrics: Iterable[Metric] = METRICS) -> dict[str, dict[Any, Any]]:
        """Return mean, spread and the value of each seed of every metric; empty without trials."""
        columns = [metric.column for metric in metrics]
        means = self.by_seed(trials, [*columns, "collapsed"]).reset_index().assign(method=self.method)
        cells = summarize(means, ["method"], columns)
        return {cell["metric"]: cell for cell in cells.to_dict("records")}


Sections = tuple[tuple[str, tuple[Row, ...]], ...]
"""Rows under their headings."""


def with_values(trials: pd.DataFrame, fields: Fields) -> pd.DataFrame:
    """Return the trials that have these values."""
    return trials[(trials[list(fields)].astype(object) == list(fields.values())).all(axis=1)]


Source = Literal["paper", "own", "within rounding"]
_WORDS = {"paper": ("agrees", "contradicts"), "own": ("better", "worse")}


@dataclass(frozen=True)
class Claim:
    """One row better than another, in one metric."""

    about: str
    better: Row
    worse: Row
    metric: Metric
    source: Source = "paper"
    """Whether the paper has this claim, nobody has, or the difference that it prints is too small for a claim."""

    @property
    def title(self) -> str:
        return f"{self.metric.title}: {self.better.title} against {self.worse.title}"


def pairs(claim: Claim, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the values of both rows in percent on the seeds that both have, and whether one kind of CPU had both."""
    better = _values(claim.better, claim.metric, trials).rename(columns={"value": "better"})
    worse = _values(claim.worse, claim.metric, trials).rename(columns={"value": "worse"})
    every = better.merge(worse, on="seed", suffixes=("", "_of_worse"))
    every = every.assign(one_cpu=every["cpu"] == every["cpu_of_worse"])
    kept = every[every["one_cpu"] | ~every.groupby("seed")["one_cpu"].transform("any")]
    return kept.groupby("seed")[["better", "worse", "one_cpu"]].mean().astype({"one_cpu": bool})


def _values(row: Row, metric: Metric, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the values of a row in percent, with their seeds and kinds of CPU."""
    own = row.of(trials).dropna(subset=metric.column)
    cpus = own["cpu_model"].astype(object).fillna("")
    return pd.DataFrame({"seed": own["seed"].astype(int), "cpu": cpus, "value": 100 * own[metric.column].astype(float)})


def compared(claim: Claim, trials: pd.DataFrame) -> pd.DataFrame:
    """Return the pairs without those of two kinds of CPU."""
    rows = pairs(claim, trials)
    return rows[rows["one_cpu"]]


def compare(claim: Claim, trials: pd.DataFrame) -> Paired | None:
    """Compare the two rows seed by seed; None without a seed."""
    return _paired(claim, rows) if len(rows := compared(claim, trials)) else None


def _paired(claim: Claim, rows: pd.DataFrame) -> Paired:
    return paired(rows["better"], rows["worse"], higher_is_better=not claim.metric.lower_is_better)


def cpu_note(claims: Iterable[Claim], trials: pd.DataFrame) -> str:
    """Name the pairs that are left out because their trials ran on different kinds of CPU; empty if there are none."""
    left_out: dict[str, None] = {}
    for claim in claims:
        rows = pairs(claim, trials)
        if seeds := rows.index[~rows["one_cpu"]].tolist():
            which = f"seed{'s' * (len(seeds) > 1)} {', '.join(map(str, seeds))}"
            left_out[f"{claim.better.title} against {claim.worse.title} ({which})"] = None
    return (
        f"Not compared, because their trials ran on different kinds of CPU: {'; '.join(left_out)}." if left_out else ""
    )


def verdict(claim: Claim, values: Paired) -> str:
    """Return whether the paired interval is on the claim's side of zero, on the other, or on both."""
    if claim.source == "within rounding":
        return "no sign printed"
    low, high = values.difference.low, values.difference.high
    if claim.metric.lower_is_better:
        low, high = -high, -low
    for_it, against_it = _WORDS[claim.source]
    return for_it if low > 0 else against_it if high < 0 else "undecided"


def count_verdicts(claims: Iterable[Claim], trials: pd.DataFrame) -> Counter[str]:
    """Count the claims of each verdict, without those that have no pair of trials."""
    return Counter(verdict(claim, values) for claim in claims if (values := compare(claim, trials)) is not None)


def results_grid(sections: Sections, trials: pd.DataFrame) -> Grid:
    """Return every row with its mean, its spread and the value of each seed."""
    arrows = {metric: "↓" if metric.lower_is_better else "↑" for metric in METRICS}
    header = ("", *(text for metric in METRICS for text in (f"{metric.title} {arrows[metric]}", "seeds 0, 1, …")))
    rows: list[tuple[Cell, ...]] = []
    for heading, members in sections:
        shown = [(row, summary) for row in members if (summary := row.summary(trials))]
        if heading and shown:
            rows.append((Cell(heading),))
        for row, summary in shown:
            cells = [Cell(row.title)]
            for cell in summary.values():
                values = [f"{cell['values'][seed]:.1f}" if seed in cell["values"] else "–" for seed in row.seeds]
                cells += [Cell(mean_sd(cell["mean"], cell["sd"])), Cell(", ".join(values))]
            rows.append(tuple(cells))
    title = "ACC and FGT in %: mean ± standard deviation, and the value of each seed"
    return Grid(title, header, tuple(rows))


PAIRED = "Differences in points, paired by seed; intervals by Student's t, not corrected for their number"


def claims_grid(
    claims: Iterable[Claim],
    trials: pd.DataFrame,
    title: str = PAIRED,
    more: Mapping[str, Callable[[Claim, pd.DataFrame], str]] | None = None,
) -> Grid:
    """Return each claim with the paired difference of its two rows and its 95% interval.

    `more` are columns before these: a function of the claim and its pairs for each.
    """
    more = more or {}
    rows: list[tuple[Cell, ...]] = []
    known = [(claim, own) for claim in claims if len(own := compared(claim, trials))]
    for about, group in groupby(known, key=lambda pair: pair[0].about):
        rows.append((Cell(about),))
        for claim, own in group:
            values = _paired(claim, own)
            result = verdict(claim, values)
            rows.append(
                (
                    Cell(claim.title),
                    *(Cell(column(claim, own)) for column in more.values()),
                    *map(Cell, difference(values)),
                    Cell(f"{values.wins} of {values.n}" if claim.source != "within rounding" else ""),
                    Cell(result, bold=result in (*_WORDS["paper"], *_WORDS["own"])),
                )
            )
    header = ("claim: the first is better", *more, "difference", "95% interval", "seeds where it is", "verdict")
    return Grid(title, header, tuple(rows))


def difference(values: Paired) -> tuple[str, str]:
    """Return the difference and its interval as text."""
    return number(values.difference.estimate, "+.1f"), interval(values.difference.low, values.difference.high)


def difference_text(values: Paired) -> str:
    """Return the difference and, in brackets, its interval, which a single seed does not have."""
    text, between = difference(values)
    return f"{text} ({between})" if between else text
