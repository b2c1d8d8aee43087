"""The paper's tables from results: means and spreads, the printed numbers beside them, and paired comparisons."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from analysis import stats
from analysis.aggregate import Setting, ordered, summarize
from analysis.published import PUBLISHED, TRIALS
from gd_ray.methods import METHODS
from gd_ray.naming import counted
from gd_ray.paper import METHODS as PAPERS_METHODS
from gd_ray.paper import TABLES

MARGIN = 1.0
"""Points of ACC or FGT within which a printed mean counts as reproduced."""
_CELL = ("dataset", "task_size", "method")
_PRINTED_AS = {"acc": "acc", "fgt_released": "fgt"}
"""The printed FGT very likely follows the released program's formula."""


@dataclass(frozen=True)
class Layout:
    """The rows of a table and which of them are compared seed by seed."""

    key: str
    title: str
    blocks: tuple[tuple[str, tuple[str, ...]], ...]
    """A heading and its methods."""
    pairs: tuple[tuple[str, str], ...]
    """(method, what it is compared with)."""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(method for _, methods in self.blocks for method in methods)


ORACLE, *_OTHERS = TABLES[1]
_WITHOUT = tuple(method for method in _OTHERS if not METHODS[method].external)
_WITH = tuple(method for method in _OTHERS if METHODS[method].external)
_ABLATIONS = {
    2: "reference models",
    3: "the teacher of the current task",
    4: "balanced learning",
    5: "sampling of external data",
}
LAYOUTS: dict[str, Layout] = {
    "1": Layout(
        "1",
        "Table 1: comparison of methods",
        (("", (ORACLE,)), ("", (*_WITHOUT, _WITH[-1]))),
        tuple((_WITH[-1], method) for method in _WITHOUT),
    ),
    "C.1": Layout(
        "C.1",
        "Table C.1: comparison of methods, with and without external data",
        (("", (ORACLE,)), ("Without an external dataset", _WITHOUT), ("With an external dataset", _WITH)),
        (
            *((method, "baseline") for method in _OTHERS if method != "baseline"),
            *((method, method.removesuffix("+ext")) for method in _WITH),
        ),
    ),
    **{
        str(number): Layout(
            str(number),
            f"Table {number}: {title}",
            (("", TABLES[number]),),
            tuple((TABLES[number][-1], method) for method in TABLES[number][:-1]),
        )
        for number, title in _ABLATIONS.items()
    },
}
_ROW_TITLES = {("5", "gd"): "no external data"}
"""Rows whose title in a table is not the method's own."""


@dataclass(frozen=True)
class Table:
    """A table of the paper, filled from results."""

    layout: Layout
    setting: Setting
    frame: pd.DataFrame
    """A row per cell: means and sample standard deviations in percent, n, best, the printed value, the verdict."""
    comparisons: pd.DataFrame
    """A row per pair of methods, data set, task size and metric."""
    notes: tuple[str, ...]


def own_methods(setting: Setting) -> Layout | None:
    """Return a table of the methods that are not the paper's, beside the methods of its Table 1."""
    present = set(setting.trials["method"])
    own = ordered(present - PAPERS_METHODS)
    if not own:
        return None
    known = tuple(m for m in LAYOUTS["C.1"].methods if m in present)
    return Layout("own", "Methods beyond the paper", (("", known), ("Beyond the paper", tuple(own))), own_pairs(own))


def own_pairs(methods: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """Return what methods beyond the paper are compared with: Baseline, and themselves without external data."""
    own = tuple(methods)
    with_external = ((method, plain) for method in own if (plain := method.removesuffix("+ext")) != method)
    return (*((method, "baseline") for method in own), *with_external)


def metric_title(metric: str, convention: str) -> str:
    if metric == "acc":
        return "ACC ↑"
    return "FGT ↓" if metric == f"fgt_{convention}" else "FGT as released ↓"


def fill(layout: Layout, setting: Setting) -> Table | None:
    """Fill a table from the trials of one setting; None if it has no row to show."""
    trials = setting.trials[setting.trials["method"].isin(layout.methods)]
    columns = trials
    if layout.key in map(str, _ABLATIONS):  # rows shared with Table 1 alone do not make a column of an ablation
        columns = trials[~trials["method"].isin(LAYOUTS["C.1"].methods)]
    trials = trials.merge(columns[["dataset", "task_size"]].drop_duplicates(), on=["dataset", "task_size"])
    if trials.empty or (layout.key in LAYOUTS and trials["method"].nunique() < 2 and layout.key != "1"):
        return None
    frame = _cells(layout, setting, trials)
    comparisons, notes = _comparisons(layout, setting, trials)
    return Table(layout, setting, frame, comparisons, (*_remarks(setting, frame), *notes))


def all_tables(settings: Iterable[Setting]) -> list[Table]:
    """Return every table of the paper that these settings can fill, and the user's own methods."""
    tables = [fill(layout, own) for own in settings for layout in (*LAYOUTS.values(), own_methods(own)) if layout]
    return [table for table in tables if table is not None]


def _cells(layout: Layout, setting: Setting, trials: pd.DataFrame) -> pd.DataFrame:
    of_papers_data = trials["dataset"].isin(list(TRIALS)).any()
    metrics = dict.fromkeys(["acc", f"fgt_{setting.convention}", *(["fgt_released"] if of_papers_data else [])])
    printed_cells = {} if trials["first_task_size"].any() else PUBLISHED  # the paper has tasks of one size
    titles = trials.drop_duplicates("method").set_index("method")["method_title"].to_dict()
    comparable = {key: setting.is_papers(group) for key, group in trials.groupby(list(_CELL), observed=True)}
    blocks = {method: name for name, methods in layout.blocks for method in methods}
    rows = []
    for cell in summarize(trials, _CELL, metrics).to_dict("records"):
        key = (cell["dataset"], cell["task_size"], cell["method"])
        printed = printed_cells.get((*key, _PRINTED_AS.get(cell["metric"], "")))
        values, verdict = cell.pop("values"), ""
        if printed is not None and comparable[key]:
            n = TRIALS[cell["dataset"]]
            verdict = stats.verdict([*values.values()], printed.mean, printed.sd, n, margin=MARGIN)
        rows.append(
            {
                "block": blocks[cell["method"]],
                "title": _ROW_TITLES.get((layout.key, cell["method"]), str(titles[cell["method"]])),
                **cell,
                "seeds": tuple(sorted(values)),
                "printed": printed.mean if printed else np.nan,
                "printed_sd": printed.sd if printed else np.nan,
                "difference": cell["mean"] - printed.mean if printed else np.nan,
                "verdict": verdict,
            }
        )
    order = {method: k for k, method in enumerate(layout.methods)}
    rows.sort(key=lambda row: (order[row["method"]], row["dataset"], row["task_size"]))
    frame = pd.DataFrame(rows)
    return frame.assign(best=_best(frame))


def _best(frame: pd.DataFrame) -> pd.Series:
    """Mark the best mean of each block and column, as rounded in print; Oracle does not compete."""
    competes = frame["method"] != ORACLE
    score = frame["mean"].round(1).where(frame["metric"] == "acc", -frame["mean"].round(1)).where(competes)
    keys = [frame[name] for name in ("block", "dataset", "task_size", "metric")]
    several = competes.groupby(keys, observed=True).transform("sum") > 1
    return competes & several & (score == score.groupby(keys, observed=True).transform("max"))


def _remarks(setting: Setting, frame: pd.DataFrame) -> list[str]:
    notes = []
    if (frame["n"] == 1).all():
        notes.append("Only one seed: no standard deviations, intervals or tests. Run more with --set seed=0,1,2.")
    elif frame["n"].nunique() > 1:
        seeds = frame.drop_duplicates(list(_CELL))
        few = seeds[seeds["n"] < seeds["n"].max()]
        names = ", ".join(f"{row.title} at {row.task_size} (n = {row.n})" for row in few.head(6).itertuples())
        notes.append(f"Some cells have fewer seeds than others: {names}{' and others' if len(few) > 6 else ''}.")
    if frame["printed"].notna().any() and setting.differs:
        notes.append(f"These are not the paper's settings ({setting.differs}): no verdicts against its numbers.")
    if frame["printed"].notna().any() and setting.convention == "paper":
        notes.append(
            "The printed FGT very likely follows the released program's formula, so it is compared with 'FGT as "
            "released', computed from the same counts."
        )
    return notes


def _comparisons(layout: Layout, setting: Setting, trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    rows, notes = [], []
    present = set(trials["method"])
    if "baseline" not in present and any(second == "baseline" and first in present for first, second in layout.pairs):
        notes.append("No finished trial of Baseline, so nothing is compared with it; run it as well.")
    metrics = ["acc", f"fgt_{setting.convention}"]
    by_cell = {
        key: 100 * group.set_index("seed")[metrics].astype(float)
        for key, group in trials.groupby(list(_CELL), observed=True)
    }
    for dataset, size in trials[["dataset", "task_size"]].drop_duplicates().itertuples(index=False):
        for first, second in layout.pairs:
            a, b = by_cell.get((dataset, size, first)), by_cell.get((dataset, size, second))
            if a is None or b is None:
                continue
            shared = sorted(set(a.index) & set(b.index))
            if not shared:
                notes.append(f"{first} and {second} have no seed in common at task size {size}; they are not compared.")
                continue
            remark = ""
            if len(shared) < max(len(a), len(b)):
                remark = f"on the {len(shared)} seeds that both have: {', '.join(map(str, shared))}"
            for metric in metrics:
                pair = stats.paired(a.loc[shared, metric], b.loc[shared, metric], higher_is_better=metric == "acc")
                difference = (pair.difference.estimate, pair.difference.low, pair.difference.high)
                place = (first, second, dataset, int(size), metric)
                rows.append((*place, pair.n, *difference, pair.p, pair.wins, pair.improvement, remark))
    columns = ["method", "against", "dataset", "task_size", "metric", "n", "difference", "low", "high", "p"]
    frame = pd.DataFrame(rows, columns=[*columns, "wins", "improvement", "remark"])
    families = frame.groupby(["dataset", "task_size", "metric"], observed=True)
    frame.insert(10, "p_holm", families["p"].transform(lambda p: stats.holm(p.to_numpy(float))))
    sizes = families.agg(tests=("p", "count"), n=("n", "max"))
    sizes = sizes[sizes["tests"] > 0]
    least = min((tests * stats.least_p(n) for tests, n in sizes.itertuples(index=False)), default=0.0)
    if least > 0.05:
        n, tests = int(sizes["n"].max()), int(sizes["tests"].min())
        notes.append(
            f"With {n} seeds and {counted(tests, 'test')} of a kind or more no corrected p can fall below "
            f"{min(1.0, least):.2g}; look at the differences."
        )
    return frame, notes


def gap_closed(setting: Setting) -> tuple[pd.DataFrame, list[str]]:
    """Return how much of the gap from Baseline to Oracle each method closes, over all task sizes: IQM and interval."""
    rows, notes = [], []
    for dataset, trials in setting.trials.groupby("dataset", observed=True):
        present = set(trials["method"])
        lacking = [METHODS[name].title for name in ("baseline", ORACLE) if name not in present]
        if lacking:
            notes.append(
                f"{dataset}: the gap between Baseline and Oracle needs trials of {' and '.join(lacking)}; run them as "
                f"well."
            )
            continue
        metrics = ["acc", f"fgt_{setting.convention}"]
        wide = trials.pivot_table(
            index="seed", columns=["task_size", "method"], values=metrics, observed=True, aggfunc="first"
        )
        for method in ordered(present - {"baseline", ORACLE}):
            for metric in metrics:
                values = _gaps(pd.DataFrame(wide[metric]), method)
                if len(values):
                    gap = stats.iqm_interval(values.to_numpy())
                    rows.append((dataset, method, metric, *values.shape[::-1], gap.estimate, gap.low, gap.high))
    columns = ["dataset", "method", "metric", "settings", "n", "iqm", "low", "high"]
    return pd.DataFrame(rows, columns=columns), notes


def _gaps(wide: pd.DataFrame, method: str) -> pd.DataFrame:
    """Return gap[seed, task size], for the seeds that have all three methods at every task size where any has."""
    gaps = {
        size: stats.gap_closed(*(wide[size, name] for name in (method, "baseline", ORACLE)))
        for size in dict.fromkeys(wide.columns.get_level_values(0))
        if all((size, name) in wide.columns for name in (method, "baseline", ORACLE))
    }
    return pd.DataFrame(gaps, index=wide.index).dropna()
