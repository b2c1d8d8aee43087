"""The experiments `reduced-more` and `reduced-controls`: their rows, claims, and part of REPRODUCTION.md."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pandas as pd

from analysis.conventions_table import calibration, trial_measures
from analysis.evidence.claims import (
    ACC,
    FGT,
    METRICS,
    PAIRED,
    Claim,
    Metric,
    Row,
    Sections,
    Source,
    claims_grid,
    compare,
    cpu_note,
    difference_text,
    results_grid,
    verdict,
    with_values,
)
from analysis.evidence.reduced import E2E_TUNED, GD_EXT_FEWER, GD_TUNED
from analysis.evidence.wordnet_labels import NEAR, NEAR_SHARE, sampling_grid, with_distances
from analysis.figures.comparison import by_distance
from analysis.figures.style import ReportFigure
from analysis.formats import Cell, Grid, mean_sd, number, to_markdown
from analysis.published import PUBLISHED
from analysis.results import Results
from analysis.stats import paired
from analysis.tables import LAYOUTS, Layout, own_pairs
from gd_ray.methods import METHODS
from gd_ray.paper import TABLES

HEADING = "## Tables 2 to 5, methods beyond the paper, distance, calibration, sampling"
_TABLES = tuple(LAYOUTS[number] for number in ("2", "3", "4", "5"))
_BEYOND = (
    *("sample-nearest", "sample-nearest-far", "wa", "wa+ext", "bic", "bic+ext", "icarl", "icarl+ext"),
    *("dmc", "dmc+coreset"),
)
_WINDOW = {"window": 14_400}
RANDOM = Row("gd+ext", _WINDOW, "random part")
NEAREST, MIDDLE, FARTHEST = (
    Row("gd+ext", {**_WINDOW, "stream": f"tiny-imagenet-distance-{k}"}, f"{label} part")
    for k, label in enumerate(("nearest", "middle", "farthest"), start=1)
)
E2E_LONGER = Row("e2e", {"epoch_factor": 0.15, "fine_tune_factor": 6.5}, "twice the epochs, 6.5 times the fine-tuning")
GD_LONGER = Row("gd", {"epoch_factor": 0.15, "fine_tune_factor": 4.0}, "twice the epochs, 4 times the fine-tuning")


def _new_rows(layouts: Iterable[Layout]) -> Sections:
    """Return the rows of each table that no table before it has."""
    shown: set[str] = set()
    sections = []
    for layout in layouts:
        sections.append((layout.title, tuple(Row(method) for method in layout.methods if method not in shown)))
        shown |= {*layout.methods}
    return tuple(sections)


SECTIONS: Sections = (
    ("", (Row("oracle"), Row("baseline"))),
    *_new_rows(_TABLES),
    ("Beyond the paper", tuple(map(Row, _BEYOND))),
    ("Stages that see 14,400 images of the stream", (RANDOM, NEAREST, MIDDLE, FARTHEST)),
    ("Controls that `reduced` has of another kind of CPU", (GD_EXT_FEWER, E2E_TUNED, GD_TUNED)),
    ("As many updates of fine-tuning as in the paper, all trainings twice as long", (E2E_LONGER, GD_LONGER)),
)
"""Every trial of both experiments."""
Pairs = Iterable[tuple[Row, Row]]


def _rows(pairs: Iterable[tuple[str, str]]) -> Pairs:
    """Return pairs of methods as pairs of rows of the main comparison."""
    return [(Row(first), Row(second)) for first, second in pairs]


def _claims(about: str, pairs: Pairs, source: Source = "own", metrics: Iterable[Metric] = METRICS) -> tuple[Claim, ...]:
    return tuple(Claim(about, better, worse, metric, source) for better, worse in pairs for metric in metrics)


def printed(claim: Claim) -> tuple[float, float]:
    """Return what the paper prints of both rows, for CIFAR-100 at task size 10."""
    metric = claim.metric.title.lower()
    better, worse = (PUBLISHED["cifar100", 10, row.method, metric] for row in (claim.better, claim.worse))
    return better.mean, worse.mean


def _as_printed(claim: Claim) -> Claim:
    """Return the claim with the sign that the paper prints; none where rounding alone may make the difference."""
    better, worse = printed(claim)
    gain = round(worse - better if claim.metric.lower_is_better else better - worse, 1)
    if abs(gain) <= 0.1:
        return replace(claim, source="within rounding")
    return claim if gain > 0 else replace(claim, better=claim.worse, worse=claim.better)


TABLE_CLAIMS = tuple(
    _as_printed(claim) for table in _TABLES for claim in _claims(table.title, _rows(table.pairs), "paper")
)
"""The last row of each table against its others."""
_CONFIDENCE = "With the confidence loss or without"
CONFIDENCE_PAIRS = tuple(
    (calibrated, plain)
    for plain in TABLES[3]
    for calibrated in TABLES[3]
    if METHODS[calibrated].confidence
    and replace(METHODS[calibrated], name=plain, title=METHODS[plain].title, confidence=False) == METHODS[plain]
)
"""Rows of Table 3 that differ in the confidence loss alone."""
_MEANS = "Previous classes by nearest mean or by prediction"
_MEANS_PAIRS = [(name, "gd+ext") for name in _BEYOND if METHODS[name].previous_sampling.startswith("nearest-mean")]
_FINE_TUNED = [(Row("gd+ext"), E2E_TUNED), (GD_TUNED, E2E_TUNED), (GD_LONGER, E2E_LONGER)]
CLAIMS = (
    *_claims("Beyond the paper", _rows(own_pairs(_BEYOND))),
    *_claims(_MEANS, _rows(_MEANS_PAIRS)),
    *_claims("By distance, or a random part", [(part, RANDOM) for part in (NEAREST, MIDDLE, FARTHEST)]),
    *_claims("The nearer the stream, the better", [(NEAREST, FARTHEST)], "paper"),
    *_claims("At equal updates and equal labelled images", [(GD_EXT_FEWER, Row("gd"))], "paper"),
    *_claims("With as much fine-tuning as in the paper", _FINE_TUNED, "paper"),
)
OF_C, OF_M, OF_FIRST = (
    (Metric(f"{prefix}ece", f"ECE of {model}", lower_is_better=True), Metric(f"{prefix}auroc", f"AUROC of {model}"))
    for prefix, model in (("teacher_", "C"), ("", "M"), ("first_", "M₁"))
)
CALIBRATION_CLAIMS = (
    *_claims(_CONFIDENCE, _rows(CONFIDENCE_PAIRS), metrics=(*OF_C, *OF_M)),
    *_claims(_CONFIDENCE, _rows(CONFIDENCE_PAIRS[-1:]), metrics=OF_FIRST),  # which the other pair shares
)
SAMPLING_CLAIMS = (
    *_claims(_CONFIDENCE, _rows(CONFIDENCE_PAIRS), metrics=[NEAR_SHARE]),
    *_claims(_MEANS, _rows(_MEANS_PAIRS), metrics=[NEAR_SHARE]),
)
OF_HEAD = Metric("head_hits", "ACC of the head")
"""Where a method does not predict by its head."""
INTRANSIGENCE = Metric("intransigence", "intransigence", lower_is_better=True)
"""How far tasks just learned are below Oracle's."""
ALL_METRICS = (*METRICS, INTRANSIGENCE, *OF_C, *OF_M, *OF_FIRST, OF_HEAD, NEAR_SHARE)
SAMPLED_ROWS = [Row(method) for method in dict.fromkeys(m for pair in (*CONFIDENCE_PAIRS, *_MEANS_PAIRS) for m in pair)]

TABLES_NOTE = (
    "Printed are means of ten trials on CIFAR-100 at full size, task size 10; ours are means over the seeds compared. "
    "A claim has the sign of the printed difference; where that is at most 0.1, rounding alone may make it, and no "
    "sign is claimed."
)
CALIBRATION_NOTE = (
    "C is the teacher of stages 2 to 4 (P+cls has none), M the model after them, and M₁ = C₁ the first model, which "
    "samples at stage 2 and is the same in both pairs. ECE is over 15 ranges of confidence, on the classes that a "
    "model has learned. AUROC is how often it is more confident on an image of these than on one of the other classes "
    "among the 20: those of all other tasks for C, those of later tasks for M, of which stage 4 has none."
)
DISTANCE_NOTE = (
    "`GD+ext, random part` draws other 14,400 images of the whole stream at each stage. A part by distance has 14,400 "
    "to 18,300 images in all, so its stages see nearly the same ones."
)
SAMPLING_NOTE = (
    f"For each image sampled for a previous class: the shortest path in WordNet from its Tiny-ImageNet class, which no "
    f"trial sees, to the CIFAR-100 class that it was sampled for. Near are at most {NEAR} steps, a cut chosen before "
    f"any trial was finished: the longest path that less than 5% of random pairs of a CIFAR-100 class and a stream "
    f"image have. Random images are all those of the trial's stream, for the same classes."
)


def with_measures(results: Iterable[Results], labels: Path) -> pd.DataFrame:
    """Return the trials of all kinds of CPU with their calibration and with what they sampled."""
    frames = []
    for own in results:
        first = calibration(own.rows("confidences", filters=[("stage", "=", 1)])).add_prefix("first_")
        frames.append(with_distances(own, trial_measures(own, own.trials).join(first, on="trial_id"), labels))
    return pd.concat(frames, ignore_index=True)


def _means(_: Claim, values: pd.DataFrame) -> str:
    return f"{number(values['better'].mean())} / {number(values['worse'].mean())}"


def _printed_values(claim: Claim, _: pd.DataFrame) -> str:
    return "{:.1f} / {:.1f}".format(*printed(claim))


def _printed_difference(claim: Claim, _: pd.DataFrame) -> str:
    better, worse = printed(claim)
    return number(better - worse, "+.1f")


IN_TABLES = {"printed": _printed_values, "their difference": _printed_difference, "ours": _means}
"""Columns that Tables 2 to 5 have before the paired difference."""


def classifiers_grid(rows: Iterable[Row], trials: pd.DataFrame) -> Grid:
    """Return ACC by both classifiers of the same models, for rows that do not predict by their head."""
    cells = []
    for row in rows:
        values = 100 * row.by_seed(trials.dropna(subset=OF_HEAD.column), [ACC.column, OF_HEAD.column])
        if values.empty:
            continue
        own, head = values[ACC.column], values[OF_HEAD.column]
        texts = [mean_sd(each.mean(), each.std()) for each in (own, head)]
        cells.append(tuple(map(Cell, (row.title, str(len(values)), *texts, difference_text(paired(own, head))))))
    header = ("", "n", "by the nearest mean", "by the head", "difference (95% interval)")
    return Grid("ACC in % by each of two classifiers of the same models", header, tuple(cells))


def released_note(trials: pd.DataFrame) -> str:
    """Name the verdicts of Tables 2 to 5 that change where FGT is computed as the released program does."""
    released = replace(FGT, column="fgt_released")
    changed = []
    for claim in (claim for claim in TABLE_CLAIMS if claim.metric == FGT):
        verdicts = [
            verdict(claim, values)
            for metric in (FGT, released)
            if (values := compare(replace(claim, metric=metric), trials)) is not None
        ]
        if len(set(verdicts)) > 1:
            changed.append(f"{claim.better.title} against {claim.worse.title} ({verdicts[1]})")
    return f"By the released program's formula of FGT other verdicts: {'; '.join(changed) or 'none'}."


def figures(results: Sequence[Results]) -> list[ReportFigure]:
    """Draw the metrics over the distance of the stream, on seeds of which one kind of CPU ran all trials."""
    trials = pd.concat([with_values(own.trials, _WINDOW) for own in results], ignore_index=True)
    whole = trials.groupby(["seed", "cpu_model"], observed=True, dropna=False)["stream"].transform("nunique")
    shown = trials[whole == trials["stream"].nunique()].drop_duplicates("trial_id")
    figure = by_distance(shown, "cifar100")
    return [] if figure is None else [figure]


def parts(results: Sequence[Results], labels: Path, intro: str, images: list[str]) -> dict[str, list[str]]:
    """Return the paragraphs of the file; tables without a row are left out."""
    trials = with_measures(results, labels)
    means = {"means": _means}
    grids = (
        (results_grid(SECTIONS, trials), ""),
        (
            claims_grid(TABLE_CLAIMS, trials, f"Tables 2 to 5. {PAIRED}", IN_TABLES),
            f"{TABLES_NOTE} {released_note(trials)}",
        ),
        (claims_grid(CLAIMS, trials), "\n\n".join([*images, DISTANCE_NOTE] if images else [])),
        (classifiers_grid(map(Row, _BEYOND), trials), ""),
        (claims_grid(CALIBRATION_CLAIMS, trials, f"Calibration in %. {PAIRED}", means), CALIBRATION_NOTE),
        (sampling_grid(SAMPLED_ROWS, trials), SAMPLING_NOTE),
        (claims_grid(SAMPLING_CLAIMS, trials, f"Near images in %. {PAIRED}", means), ""),
    )
    paragraphs = [text for grid, note in grids if grid.rows for text in (to_markdown(grid), note)]
    every = (*TABLE_CLAIMS, *CLAIMS, *CALIBRATION_CLAIMS, *SAMPLING_CLAIMS)
    return {"REPRODUCTION.md": [HEADING, intro, cpu_note(every, trials), *paragraphs]}
