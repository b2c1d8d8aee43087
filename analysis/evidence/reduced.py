"""The experiment `reduced`: its rows, its claims, and the parts of README.md and REPRODUCTION.md about it."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pandas as pd

from analysis.evidence.claims import (
    ACC,
    FGT,
    MAIN,
    METRICS,
    Claim,
    Row,
    Sections,
    claims_grid,
    compare,
    cpu_note,
    difference_text,
    results_grid,
    with_values,
)
from analysis.figures.comparison import by_ood_ratio, incremental
from analysis.figures.style import ReportFigure
from analysis.formats import Cell, Grid, mean_sd, to_markdown
from analysis.results import Results
from gd_ray.paper import ORDER


def main_row(method: str) -> Row:
    """Return a row of the main comparison: five seeds where the order of ACC is about it."""
    return Row(method, seeds=range(5 if method in ORDER else 3))


def _rows(*methods: str) -> tuple[Row, ...]:
    return tuple(map(main_row, methods))


BASELINE_LONGER, GD_LONGER, GD_EXT_LONGER = (
    Row(method, {"epoch_factor": 0.15}, "twice the epochs") for method in ("baseline", "gd", "gd+ext")
)
GD_LONGEST = Row("gd", {"epoch_factor": 0.3}, "four times the epochs")
GD_EXT_FEWER = Row("gd+ext", {"batch_size": 64}, "batches of 64")
E2E_TUNED = Row("e2e", {"fine_tune_factor": 13.0}, "13 times the fine-tuning")
GD_TUNED = Row("gd", {"fine_tune_factor": 8.0}, "8 times the fine-tuning")
RELEASED = tuple(Row(method, {"convention": "released"}, "released") for method in ("gd", "gd+ext"))
_OOD_RATIOS = {ratio: Row("gd+ext", {"ood_ratio": ratio}, f"OOD ratio {ratio:.1f}") for ratio in (0.0, 0.3, 0.5, 1.0)}
SECTIONS: Sections = (
    ("", _rows("oracle")),
    ("Without external data", _rows("baseline", "lwf", "dr", "e2e", "gd")),
    ("With external data, OOD ratio 0.7", _rows("lwf+ext", "dr+ext", "e2e+ext", "gd+ext")),
    ("As many updates as GD+ext, without external data", (BASELINE_LONGER, GD_LONGER)),
    ("The same, all trainings twice as long", (GD_EXT_LONGER, GD_LONGEST)),
    ("As few updates as GD, each with as many labelled images", (GD_EXT_FEWER,)),
    ("As many updates of fine-tuning as in the paper", (E2E_TUNED, GD_TUNED)),
    ("As the released program does it", RELEASED),
    ("Other OOD ratios", tuple(_OOD_RATIOS.values())),
)
"""Every trial of the experiment."""
HEADLINE = _rows(*(method for method in ORDER if method != "lwf"))
"""The six rows of the README."""

_GD, _GD_EXT = _rows("gd", "gd+ext")
_LEARNERS = _rows("baseline", "lwf", "dr", "e2e", "gd", "lwf+ext", "dr+ext", "e2e+ext")
CLAIMS: tuple[Claim, ...] = (
    *(Claim("The order of ACC", first, second, ACC) for first, second in pairwise(_rows(*ORDER))),
    *(Claim("The lowest FGT of all learners", _GD_EXT, other, FGT) for other in _LEARNERS),
    *(
        Claim("External data help other methods too", main_row(f"{method}+ext"), main_row(method), ACC)
        for method in ("lwf", "dr", "e2e")
    ),
    *(
        Claim("Images of previous classes and OOD ones are better than either alone", _GD_EXT, row, metric)
        for row in (_OOD_RATIOS[0.0], _OOD_RATIOS[1.0])
        for metric in METRICS
    ),
    *(
        Claim("At equal updates, where GD sees each label twice as often", _GD_EXT, GD_LONGER, metric)
        for metric in METRICS
    ),
    *(
        Claim("At equal epochs and at equal updates, all trainings twice as long", GD_EXT_LONGER, other, ACC)
        for other in (GD_LONGER, GD_LONGEST)
    ),
)
"""What the paper's Tables 1 and C.1 show at every task size, what Table 5 shows, and controls that they lack."""


def headline_grid(trials: pd.DataFrame) -> Grid:
    """Return the README's rows: mean and spread, n, and the paired difference in ACC from the next row."""
    rows: list[tuple[Cell, ...]] = []
    for row, worse in zip(HEADLINE, (*HEADLINE[1:], None), strict=True):
        if not (summary := row.summary(trials)):
            continue
        above = compare(Claim("", row, worse, ACC), trials) if worse else None
        cells = [mean_sd(cell["mean"], cell["sd"]) for cell in summary.values()]
        gain = difference_text(above) if above else ""
        rows.append(tuple(map(Cell, (row.title, *cells, str(len(summary["acc"]["values"])), gain))))
    header = ("", "ACC ↑", "FGT ↓", "n", "ACC above the next row (95% interval)")
    return Grid("ACC and FGT in %, mean ± standard deviation over n seeds", header, tuple(rows))


def figures(kinds: Sequence[Results]) -> list[ReportFigure]:
    """Draw the metrics as classes are added, over the seeds that all methods share, and over OOD ratios."""
    (results,) = kinds
    variants = with_values(results.trials, {name: value for name, value in MAIN.items() if name != "ood_ratio"})
    main = with_values(variants, MAIN)
    methods = main.groupby("seed", observed=True)["method"].nunique()
    main = main[main["seed"].isin(methods.index[methods == methods.max()])]
    dataset = str(main["dataset"].iloc[0])
    drawn = [incremental(results, main, dataset), by_ood_ratio(variants, dataset)]
    return [figure for figure in drawn if figure is not None]


def parts(kinds: Sequence[Results], _: Path, intro: str, images: list[str]) -> dict[str, list[str]]:
    """Return the paragraphs of each file."""
    (results,) = kinds
    trials = results.trials
    table, claims = results_grid(SECTIONS, trials), claims_grid(CLAIMS, trials)
    return {
        "README.md": [to_markdown(headline_grid(trials)), *images[:1]],
        "REPRODUCTION.md": [intro, cpu_note(CLAIMS, trials), to_markdown(table), *images, to_markdown(claims)],
    }
