"""The README's section of evidence, made from the Parquet of the experiment `reduced`: `make evidence`.

Everything between the two marks in the README is written by this module; the words around it are not.
"""

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from pathlib import Path

import pandas as pd

from analysis.comparison_figures import by_ood_ratio, incremental
from analysis.drawing import Picture
from analysis.formats import Cell, Grid, signed, to_markdown
from analysis.page import rendered
from analysis.results import Results, load
from analysis.statistics import Paired, paired
from gd_ray.errors import UserError
from gd_ray.methods import METHODS

BEGIN, END = "<!-- made by 'make evidence' -->", "<!-- to here -->"
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
_ORDER = ("oracle", "gd+ext", "gd", "e2e", "dr", "lwf", "baseline")


@dataclass(frozen=True)
class Row:
    """Trials of one method that differ by their seed only."""

    method: str
    changes: Fields = field(default_factory=dict)
    """What is not as in the main comparison."""
    label: str = ""

    @property
    def title(self) -> str:
        return METHODS[self.method].title + (f", {self.label}" if self.label else "")

    @property
    def seeds(self) -> range:
        """More for the rows that the order of ACC is about."""
        return range(5 if self.method in _ORDER and not self.changes else 3)

    def of(self, trials: pd.DataFrame) -> pd.DataFrame:
        """The row's trials, by seed."""
        found = _with(trials, {**MAIN, **self.changes, "method": self.method}).set_index("seed").sort_index()
        return found[found.index.isin(self.seeds)]


def _with(trials: pd.DataFrame, fields: Fields) -> pd.DataFrame:
    """The trials that have these values."""
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
"""Every trial of the experiment, by seeds."""


@dataclass(frozen=True)
class Claim:
    """One row better than another, in one metric."""

    about: str
    better: Row
    worse: Row
    metric: str


_LEARNERS = ("baseline", "lwf", "dr", "e2e", "gd", "lwf+ext", "dr+ext", "e2e+ext")
CLAIMS: tuple[Claim, ...] = (
    *(Claim("The order of ACC", Row(first), Row(second), "acc") for first, second in pairwise(_ORDER)),
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
"""What the paper's Tables 1 and C.1 say at every task size, what Table 5 says, and controls that they lack."""


def compared(claim: Claim, trials: pd.DataFrame) -> Paired | None:
    """The two rows on the seeds that both have; None where that are fewer than two."""
    first, second = (row.of(trials)[claim.metric] for row in (claim.better, claim.worse))
    seeds = first.index.intersection(second.index)
    if len(seeds) < 2:
        return None
    return paired(100 * first[seeds], 100 * second[seeds], higher_is_better=claim.metric == "acc")


def verdict(claim: Claim, found: Paired) -> str:
    """Whether the paired interval lies on the claim's side of zero, on the other, or on both."""
    low, high = found.difference.low, found.difference.high
    if claim.metric != "acc":
        low, high = -high, -low
    return "agrees" if low > 0 else "contradicts" if high < 0 else "undecided"


_TITLE = (
    "ACC and FGT in %, mean ± standard deviation over seeds, and each seed (some rows have more than others: the table "
    "of differences compares seed by seed)"
)


def results_grid(trials: pd.DataFrame) -> Grid:
    """Every row with its mean, its spread and the value of each seed."""
    arrows = {"ACC": "↑", "FGT": "↓"}
    header = ("", *(text for _, name in _METRICS for text in (f"{name} {arrows[name]}", "seeds 0, 1, …")))
    rows: list[tuple[Cell, ...]] = []
    for heading, members in SECTIONS:
        shown = [(row, found) for row in members if len(found := row.of(trials))]
        if heading and shown:
            rows.append((Cell(heading),))
        rows += [(Cell(row.title), *_values(found, row.seeds)) for row, found in shown]
    return Grid(_TITLE, header, tuple(rows))


def _values(found: pd.DataFrame, seeds: Iterable[int]) -> list[Cell]:
    cells = []
    for metric, _ in _METRICS:
        values = 100 * found[metric].astype(float)
        spread = f" ± {values.std(ddof=1):.1f}" if len(values) > 1 else ""
        cells.append(Cell(f"{values.mean():.1f}{spread}"))
        cells.append(Cell(", ".join(f"{values[seed]:.1f}" if seed in values.index else "–" for seed in seeds)))
    return cells


def claims_grid(trials: pd.DataFrame) -> Grid:
    """Each claim with the paired difference of its two rows and its 95% interval."""
    names = dict(_METRICS)
    rows: list[tuple[Cell, ...]] = []
    found = [(claim, values) for claim in CLAIMS if (values := compared(claim, trials)) is not None]
    for about, group in groupby(found, key=lambda pair: pair[0].about):
        rows.append((Cell(about),))
        for claim, values in group:
            difference, told = values.difference, verdict(claim, values)
            rows.append(
                (
                    Cell(f"{names[claim.metric]}: {claim.better.title} against {claim.worse.title}"),
                    Cell(signed(difference.estimate, 1)),
                    Cell(f"{signed(difference.low, 1)} to {signed(difference.high, 1)}"),
                    Cell(f"{values.wins} of {values.n}"),
                    Cell(told, bold=told != "undecided"),
                )
            )
    header = ("the first is said to be better", "difference", "95% interval", "better on", "here")
    title = "Differences in points, paired by seed; intervals from Student's t, not corrected for their number"
    return Grid(title, header, tuple(rows))


def pictures(results: Results) -> list[Picture]:
    """As classes are added, over the seeds that all methods share, and over OOD ratios; what the trials can fill."""
    variants = _with(results.trials, {name: value for name, value in MAIN.items() if name != "ood_ratio"})
    main = _with(variants, MAIN)
    methods = main.groupby("seed", observed=True)["method"].nunique()
    main = main[main["seed"].isin(methods.index[methods == methods.max()])]
    dataset, size = str(main["dataset"].iloc[0]), int(main["task_size"].iloc[0])
    drawn = [incremental(results, main, dataset, size, "paper"), by_ood_ratio(variants, dataset, "paper")]
    return [picture for picture in drawn if picture is not None]


def clock_hours(results: Results) -> float:
    """What the trials took, other work beside them included; a first stage that several share counts once."""
    stages = results.rows("stages").drop_duplicates(["trial_id", "stage"])
    seconds = stages.filter(like="seconds_").sum(axis=1)
    first = stages["stage"] == 1
    return float(seconds[~first].sum() + seconds[first].drop_duplicates().sum()) / 3600


def section(results: Results, shown: Iterable[Picture], folder: str) -> str:
    """The part of the README between the marks."""
    trials = results.trials
    total = sum(len(row.seeds) for _, rows in SECTIONS for row in rows)
    hours = clock_hours(results)
    versions = ", ".join(f"{name} {'/'.join(sorted(map(str, trials[name].unique())))}" for name in ("torch", "ray"))
    lines = [
        BEGIN,
        "",
        f"{len(trials)} of {total} trials, {hours:.1f} hours by their own clocks, one core each; {versions}.",
        "",
        to_markdown(results_grid(trials)),
    ]
    lines += [f"![{picture.title}]({folder}/{picture.name}.svg)\n" for picture in shown]
    return "\n".join([*lines, to_markdown(claims_grid(trials)), END])


def replaced(readme: str, new: str) -> str:
    """The README with another section."""
    begin, end = readme.find(BEGIN), readme.find(END)
    if begin < 0 or end < begin:
        raise UserError(f"README.md has no place for the evidence: the lines {BEGIN!r} and {END!r} are to stand in it.")
    return readme[:begin] + new + readme[end + len(END) :]


def main(root: Path, folder: str = EVIDENCE) -> None:
    """Writes the section and its figures."""
    results = load(str(root / folder))
    shown = pictures(results)
    for picture in shown:
        (root / folder / f"{picture.name}.svg").write_bytes(rendered(picture.figure)["svg"])
    readme = root / "README.md"
    readme.write_text(replaced(readme.read_text(), section(results, shown, folder)))


if __name__ == "__main__":
    try:
        main(Path(__file__).parent.parent)
    except UserError as error:
        sys.exit(f"evidence: {error}")
