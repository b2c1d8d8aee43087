"""Write the tables of README.md and REPRODUCTION.md from the Parquet of the experiment `reduced`: `make evidence`.

It replaces everything between two marks of each file, and nothing else.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path
from typing import Any

import pandas as pd

from analysis.aggregate import summarize
from analysis.figures.comparison import by_ood_ratio, incremental
from analysis.figures.style import ReportFigure, render
from analysis.formats import Cell, Grid, interval, mean_sd, number, to_markdown
from analysis.results import Results, load
from analysis.stats import Paired, paired
from gd_ray.errors import UserError
from gd_ray.methods import METHODS
from gd_ray.paper import ORDER

BEGIN, END = "<!-- begin: written by 'make evidence' -->", "<!-- end -->"
EVIDENCE = "analysis/evidence"
Fields = Mapping[str, object]
MAIN: Fields = {
    "convention": "paper",
    "epoch_factor": 0.075,
    "batch_size": 32,
    "fine_tune_factor": 1.0,
    "ood_ratio": 0.7,
}
"""The settings of the experiment's comparison; its other parts change one of them."""
_METRICS = (("acc", "ACC"), ("fgt_paper", "FGT"))


@dataclass(frozen=True)
class Row:
    """Trials of one method that differ by their seed only."""

    method: str
    changes: Fields = field(default_factory=dict)
    """Fields that differ from the main comparison."""
    label: str = ""

    @property
    def title(self) -> str:
        return METHODS[self.method].title + (f", {self.label}" if self.label else "")

    @property
    def seeds(self) -> range:
        """Five for the rows that the order of ACC is about, three for the others."""
        return range(5 if self.method in ORDER and not self.changes else 3)

    def summary(self, trials: pd.DataFrame) -> dict[str, dict[Any, Any]]:
        """Return mean, spread and the value of each seed of every metric; empty without trials."""
        own = _with(trials, {**MAIN, **self.changes, "method": self.method}).sort_values("seed")
        cells = summarize(own[own["seed"].isin(self.seeds)], ["method"], dict(_METRICS))
        return {cell["metric"]: cell for cell in cells.to_dict("records")}


def _with(trials: pd.DataFrame, fields: Fields) -> pd.DataFrame:
    """Return the trials that have these values."""
    return trials[(trials[list(fields)].astype(object) == list(fields.values())).all(axis=1)]


def _rows(*methods: str, **changes: object) -> tuple[Row, ...]:
    return tuple(Row(method, changes) for method in methods)


_BASELINE_LONGER, _GD_LONGER, _GD_EXT_LONGER = (
    Row(method, {"epoch_factor": 0.15}, "twice the epochs") for method in ("baseline", "gd", "gd+ext")
)
_GD_LONGEST = Row("gd", {"epoch_factor": 0.3}, "four times the epochs")
_GD_EXT_FEWER = Row("gd+ext", {"batch_size": 64}, "batches of 64")
_E2E_TUNED = Row("e2e", {"fine_tune_factor": 13.0}, "13 times the fine-tuning")
_GD_TUNED = Row("gd", {"fine_tune_factor": 8.0}, "8 times the fine-tuning")
_OOD_RATIOS = {ratio: Row("gd+ext", {"ood_ratio": ratio}, f"OOD ratio {ratio:.1f}") for ratio in (0.0, 0.3, 0.5, 1.0)}
SECTIONS: tuple[tuple[str, tuple[Row, ...]], ...] = (
    ("", _rows("oracle")),
    ("Without external data", _rows("baseline", "lwf", "dr", "e2e", "gd")),
    ("With external data, OOD ratio 0.7", _rows("lwf+ext", "dr+ext", "e2e+ext", "gd+ext")),
    ("As many updates as GD+ext, without external data", (_BASELINE_LONGER, _GD_LONGER)),
    ("The same, all trainings twice as long", (_GD_EXT_LONGER, _GD_LONGEST)),
    ("As few updates as GD, each with as many labelled images", (_GD_EXT_FEWER,)),
    ("As many updates of fine-tuning as in the paper", (_E2E_TUNED, _GD_TUNED)),
    ("As the released program does it", _rows("gd", "gd+ext", convention="released")),
    ("Other OOD ratios", tuple(_OOD_RATIOS.values())),
)
"""Every trial of the experiment."""
HEADLINE = tuple(Row(method) for method in ORDER if method != "lwf")
"""The six rows of the README."""


@dataclass(frozen=True)
class Claim:
    """One row better than another, in one metric."""

    about: str
    better: Row
    worse: Row
    metric: str


_LEARNERS = ("baseline", "lwf", "dr", "e2e", "gd", "lwf+ext", "dr+ext", "e2e+ext")
CLAIMS: tuple[Claim, ...] = (
    *(Claim("The order of ACC", Row(first), Row(second), "acc") for first, second in pairwise(ORDER)),
    *(Claim("The lowest FGT of all learners", Row("gd+ext"), Row(other), "fgt_paper") for other in _LEARNERS),
    *(Claim("External data help other methods too", Row(f"{m}+ext"), Row(m), "acc") for m in ("lwf", "dr", "e2e")),
    *(
        Claim("Images of previous classes and OOD ones are better than either alone", Row("gd+ext"), row, metric)
        for row in (_OOD_RATIOS[0.0], _OOD_RATIOS[1.0])
        for metric, _ in _METRICS
    ),
    *(Claim("At equal updates and equal labelled images", _GD_EXT_FEWER, Row("gd"), metric) for metric, _ in _METRICS),
    *(
        Claim("At equal updates, where GD sees each label twice as often", Row("gd+ext"), _GD_LONGER, metric)
        for metric, _ in _METRICS
    ),
    *(
        Claim("At equal epochs and at equal updates, all trainings twice as long", _GD_EXT_LONGER, other, "acc")
        for other in (_GD_LONGER, _GD_LONGEST)
    ),
    *(
        Claim("With as much fine-tuning as in the paper", first, _E2E_TUNED, metric)
        for first in (Row("gd+ext"), _GD_TUNED)
        for metric, _ in _METRICS
    ),
)
"""What the paper's Tables 1 and C.1 show at every task size, what Table 5 shows, and controls that they lack."""


def compare(claim: Claim, trials: pd.DataFrame) -> Paired | None:
    """Compare the two rows on the seeds that both have; None for fewer than two seeds."""
    summaries = [row.summary(trials) for row in (claim.better, claim.worse)]
    first, second = (summary[claim.metric]["values"] if summary else {} for summary in summaries)
    seeds = [seed for seed in first if seed in second]
    if len(seeds) < 2:
        return None
    values = ([own[seed] for seed in seeds] for own in (first, second))
    return paired(*values, higher_is_better=claim.metric == "acc")


def verdict(claim: Claim, values: Paired) -> str:
    """Return whether the paired interval is on the claim's side of zero, on the other, or on both."""
    low, high = values.difference.low, values.difference.high
    if claim.metric != "acc":
        low, high = -high, -low
    return "agrees" if low > 0 else "contradicts" if high < 0 else "undecided"


def results_grid(trials: pd.DataFrame) -> Grid:
    """Return every row with its mean, its spread and the value of each seed."""
    arrows = {"ACC": "↑", "FGT": "↓"}
    header = ("", *(text for _, name in _METRICS for text in (f"{name} {arrows[name]}", "seeds 0, 1, …")))
    rows: list[tuple[Cell, ...]] = []
    for heading, members in SECTIONS:
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


def headline_grid(trials: pd.DataFrame) -> Grid:
    """Return the README's rows: mean and spread, n, and the paired difference in ACC from the next row."""
    rows: list[tuple[Cell, ...]] = []
    for row, worse in zip(HEADLINE, (*HEADLINE[1:], None), strict=True):
        if not (summary := row.summary(trials)):
            continue
        above = compare(Claim("", row, worse, "acc"), trials) if worse else None
        cells = [mean_sd(cell["mean"], cell["sd"]) for cell in summary.values()]
        gain = "{} ({})".format(*_difference(above)) if above else ""
        rows.append(tuple(map(Cell, (row.title, *cells, str(len(summary["acc"]["values"])), gain))))
    header = ("", "ACC ↑", "FGT ↓", "n", "ACC above the next row (95% interval)")
    return Grid("ACC and FGT in %, mean ± standard deviation over n seeds", header, tuple(rows))


def claims_grid(trials: pd.DataFrame) -> Grid:
    """Return each claim with the paired difference of its two rows and its 95% interval."""
    names = dict(_METRICS)
    rows: list[tuple[Cell, ...]] = []
    known = [(claim, values) for claim in CLAIMS if (values := compare(claim, trials)) is not None]
    for about, group in groupby(known, key=lambda pair: pair[0].about):
        rows.append((Cell(about),))
        for claim, values in group:
            result = verdict(claim, values)
            rows.append(
                (
                    Cell(f"{names[claim.metric]}: {claim.better.title} against {claim.worse.title}"),
                    *map(Cell, _difference(values)),
                    Cell(f"{values.wins} of {values.n}"),
                    Cell(result, bold=result != "undecided"),
                )
            )
    header = ("claim: the first is better", "difference", "95% interval", "seeds where it is", "verdict")
    title = "Differences in points, paired by seed; intervals by Student's t, not corrected for their number"
    return Grid(title, header, tuple(rows))


def _difference(values: Paired) -> tuple[str, str]:
    """Return the difference and its interval as text."""
    return number(values.difference.estimate, "+.1f"), interval(values.difference.low, values.difference.high)


def figures(results: Results) -> list[ReportFigure]:
    """Draw the metrics as classes are added, over the seeds that all methods share, and over OOD ratios."""
    variants = _with(results.trials, {name: value for name, value in MAIN.items() if name != "ood_ratio"})
    main = _with(variants, MAIN)
    methods = main.groupby("seed", observed=True)["method"].nunique()
    main = main[main["seed"].isin(methods.index[methods == methods.max()])]
    dataset = str(main["dataset"].iloc[0])
    drawn = [incremental(results, main, dataset), by_ood_ratio(variants, dataset)]
    return [figure for figure in drawn if figure is not None]


def clock_hours(results: Results) -> float:
    """Return the wall-clock time of all trials; a first stage that several share counts once."""
    stages = results.rows("stages").drop_duplicates(["trial_id", "stage"])
    seconds = stages.filter(like="seconds_").sum(axis=1)
    first = stages["stage"] == 1
    return float(seconds[~first].sum() + seconds[first].drop_duplicates().sum()) / 3600


def sections(results: Results, shown: Iterable[ReportFigure], folder: str) -> dict[str, str]:
    """Return the generated part of each file."""
    trials = results.trials
    total = sum(len(row.seeds) for _, rows in SECTIONS for row in rows)
    versions = ", ".join(f"{name} {'/'.join(sorted(map(str, trials[name].unique())))}" for name in ("torch", "ray"))
    intro = f"{len(trials)} of {total} trials; {clock_hours(results):.1f} hours of wall-clock time on one core each"
    images = [f"![{figure.title}]({folder}/{figure.name}.svg)" for figure in shown]
    headline, table, claims = (to_markdown(grid(trials)) for grid in (headline_grid, results_grid, claims_grid))
    parts = {
        "README.md": (headline, *images[:1]),
        "REPRODUCTION.md": (f"{intro}; {versions}.", table, *images, claims),
    }
    return {file: "\n\n".join((BEGIN, *map(str.strip, texts), END)) for file, texts in parts.items()}


def replace_section(file: str, text: str, new: str) -> str:
    """Return a file's text with another generated part."""
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise UserError(f"{file} has no place for the evidence; add the lines {BEGIN!r} and {END!r}.")
    return text[:begin] + new + text[end + len(END) :]


def main(root: Path, folder: str = EVIDENCE) -> None:
    """Write the generated parts and their figures."""
    results = load(str(root / folder))
    shown = figures(results)
    for figure in shown:
        (root / folder / f"{figure.name}.svg").write_bytes(render(figure.figure)["svg"])
    for file, new in sections(results, shown, folder).items():
        path = root / file
        path.write_text(replace_section(file, path.read_text(), new))


if __name__ == "__main__":
    try:
        main(Path(__file__).parents[2])
    except UserError as error:
        sys.exit(f"evidence: {error}")
