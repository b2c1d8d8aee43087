"""The paper's tables from results: means and spreads, the printed numbers beside them, and paired comparisons."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from analysis import statistics
from analysis.drawing import ordered
from analysis.published import PRINTED, TRIALS, Printed
from analysis.results import counted
from analysis.settings import Setting
from gd_ray.methods import PAPERS_METHODS

MARGIN = 1.0
"""Points of ACC or FGT within which a printed mean counts as reproduced."""
Block = tuple[str, tuple[str, ...]]
"""A heading and its methods."""
_WITHOUT = ("baseline", "lwf", "dr", "e2e", "gd")
_WITH = ("lwf+ext", "dr+ext", "e2e+ext", "gd+ext")


@dataclass(frozen=True)
class Layout:
    """The rows of a table and which of them are compared seed by seed."""

    key: str
    title: str
    blocks: tuple[Block, ...]
    pairs: tuple[tuple[str, str], ...]
    """(method, what it is compared with)."""

    @property
    def methods(self) -> tuple[str, ...]:
        return tuple(method for _, methods in self.blocks for method in methods)


def _against(reference: str, methods: Iterable[str]) -> tuple[tuple[str, str], ...]:
    return tuple((reference, method) for method in methods)


LAYOUTS: dict[str, Layout] = {
    layout.key: layout
    for layout in (
        Layout(
            "1",
            "Table 1: comparison of methods",
            (("", ("oracle",)), ("", (*_WITHOUT, "gd+ext"))),
            _against("gd+ext", _WITHOUT),
        ),
        Layout(
            "C.1",
            "Table C.1: comparison of methods, with and without external data",
            (("", ("oracle",)), ("Without an external dataset", _WITHOUT), ("With an external dataset", _WITH)),
            (
                *((method, "baseline") for method in (*_WITHOUT[1:], *_WITH)),
                *((f"{method}+ext", method) for method in ("lwf", "dr", "e2e", "gd")),
            ),
        ),
        Layout(
            "2",
            "Table 2: reference models",
            (("", ("ref-p", "ref-pc", "ref-q", "gd+ext")),),
            _against("gd+ext", ("ref-p", "ref-pc", "ref-q")),
        ),
        Layout(
            "3",
            "Table 3: the teacher of the current task",
            (("", ("ref-p", "teacher-cls", "teacher-cls-cnf", "teacher-dst", "ref-pc")),),
            _against("ref-pc", ("ref-p", "teacher-cls", "teacher-cls-cnf", "teacher-dst")),
        ),
        Layout(
            "4",
            "Table 4: balanced learning",
            (("", ("balance-none", "balance-dw", "balance-dset", "gd+ext")),),
            _against("gd+ext", ("balance-none", "balance-dw", "balance-dset")),
        ),
        Layout(
            "5",
            "Table 5: sampling of external data",
            (("", ("gd", "sample-ood", "sample-prev", "sample-ood-pred", "gd+ext")),),
            _against("gd+ext", ("gd", "sample-ood", "sample-prev", "sample-ood-pred")),
        ),
    )
}
_ROW_TITLES = {"5": {"gd": "no external data"}}
"""Rows that a table calls otherwise than the method's own title."""


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
    """A table of the methods that are none of the paper's, beside those of its Table 1 that they can be compared to."""
    own = ordered(set(setting.trials["method"]) - PAPERS_METHODS)
    if not own:
        return None
    known = tuple(m for m in LAYOUTS["C.1"].methods if m in set(setting.trials["method"]))
    pairs = tuple((method, "baseline") for method in own)
    return Layout("own", "Methods of your own", (("", known), ("Your own", tuple(own))), pairs)


def metrics_of(setting: Setting, *, with_printed: bool) -> tuple[str, ...]:
    """ACC and FGT under the setting's convention; beside printed values also the FGT that they were made with."""
    own = f"fgt_{setting.convention}"
    return ("acc", own) if own == "fgt_released" or not with_printed else ("acc", own, "fgt_released")


def metric_title(metric: str, convention: str) -> str:
    if metric == "acc":
        return "ACC ↑"
    return "FGT ↓" if metric == f"fgt_{convention}" else "FGT as released ↓"


def fill(layout: Layout, setting: Setting) -> Table | None:
    """The table from the trials of one setting; None where it has no row to show."""
    trials = setting.trials[setting.trials["method"].isin(layout.methods)]
    columns = trials[["dataset", "task_size"]].drop_duplicates()
    if layout.key in ("2", "3", "4", "5"):  # rows shared with Table 1 alone make no column of an ablation
        columns = trials[~trials["method"].isin(LAYOUTS["C.1"].methods)][["dataset", "task_size"]].drop_duplicates()
    trials = trials.merge(columns, on=["dataset", "task_size"]) if len(columns) else trials.iloc[:0]
    if trials.empty or (layout.key in LAYOUTS and trials["method"].nunique() < 2 and layout.key != "1"):
        return None
    frame = _cells(layout, setting, trials)
    comparisons, notes = _comparisons(layout, setting, trials)
    return Table(layout, setting, frame, comparisons, (*_remarks(setting, frame), *notes))


def all_tables(found: Iterable[Setting]) -> list[Table]:
    """Every table of the paper that these settings can fill, and the user's own methods."""
    tables = []
    for setting in found:
        own = own_methods(setting)
        layouts = [*LAYOUTS.values(), *([own] if own else [])]
        tables += [table for layout in layouts if (table := fill(layout, setting)) is not None]
    return tables


def _printed(dataset: str, task_size: int, method: str, metric: str) -> Printed | None:
    """The printed cell. The printed FGT was very likely made as the released program makes it."""
    name = {"acc": "acc", "fgt_released": "fgt"}.get(metric)
    return PRINTED.get((dataset, task_size, method, name)) if name else None


def _cells(layout: Layout, setting: Setting, trials: pd.DataFrame) -> pd.DataFrame:
    rows = []
    titles = trials.drop_duplicates("method").set_index("method")["method_title"].to_dict()
    has_printed = any(key[0] in set(trials["dataset"]) for key in PRINTED)
    groups: dict[Any, pd.DataFrame] = dict(list(trials.groupby(["dataset", "task_size", "method"], observed=True)))
    for block, methods in layout.blocks:
        for method in methods:
            for (dataset, size, name), group in groups.items():
                if name != method:
                    continue
                for metric in metrics_of(setting, with_printed=has_printed):
                    title = _ROW_TITLES.get(layout.key, {}).get(method, titles[method])
                    place = {"block": block, "method": method, "title": str(title), "dataset": dataset}
                    rows.append(place | {"task_size": int(size), "metric": metric} | _cell(setting, group, metric))
    frame = pd.DataFrame(rows)
    frame["best"] = _best(frame)
    return frame


def _cell(setting: Setting, trials: pd.DataFrame, metric: str) -> dict[str, object]:
    first = trials.iloc[0]
    values = 100 * trials[metric].to_numpy(float)
    printed = _printed(first["dataset"], int(first["task_size"]), first["method"], metric)
    mean = values.mean()
    verdict = ""
    if printed is not None and setting.is_papers(trials):
        n = TRIALS[first["dataset"]]
        verdict = statistics.equivalence(
            values, printed.mean, margin=MARGIN, printed_sd=printed.sd, printed_n=n
        ).verdict
    return {
        "mean": mean,
        "sd": values.std(ddof=1) if len(values) > 1 else np.nan,
        "n": len(values),
        "seeds": tuple(sorted(trials["seed"].astype(int))),
        "collapsed": int(trials["collapsed"].sum()),
        "printed": printed.mean if printed else np.nan,
        "printed_sd": printed.sd if printed else np.nan,
        "difference": mean - printed.mean if printed else np.nan,
        "verdict": verdict,
    }


def _best(frame: pd.DataFrame) -> pd.Series:
    """The best mean of each block and column, as far as it is printed; Oracle does not compete."""
    competes = frame["method"] != "oracle"
    score = frame["mean"].round(1).where(frame["metric"] == "acc", -frame["mean"].round(1)).where(competes)
    keys = [frame[name] for name in ("block", "dataset", "task_size", "metric")]
    several = competes.groupby(keys, observed=True).transform("sum") > 1
    return competes & several & (score == score.groupby(keys, observed=True).transform("max"))


def _remarks(setting: Setting, frame: pd.DataFrame) -> list[str]:
    notes = []
    if (frame["n"] == 1).all():
        notes.append(
            "There is one seed only: no standard deviations, intervals or tests. Run more with --set seed=0,1,2."
        )
    elif frame["n"].nunique() > 1:
        seeds = frame.drop_duplicates(["method", "dataset", "task_size"])
        few = seeds[seeds["n"] < seeds["n"].max()]
        names = ", ".join(f"{row.title} at {row.task_size} (n = {row.n})" for row in few.head(6).itertuples())
        notes.append(f"Some cells have fewer seeds than others: {names}{', …' if len(few) > 6 else ''}.")
    if frame["printed"].notna().any() and setting.differs:
        notes.append(
            f"These are not the paper's settings ({setting.differs}), so that differences from its numbers are no "
            f"verdict."
        )
    if frame["printed"].notna().any() and setting.convention == "paper":
        notes.append(
            "The printed FGT was very likely made by the released program's formula, so that it stands beside "
            "'FGT as released', worked out from the same counts."
        )
    return notes


def _comparisons(layout: Layout, setting: Setting, trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    rows, notes = [], []
    present = set(trials["method"])
    lacking = {reference for _, reference in layout.pairs} - present
    if "baseline" in lacking and any(second == "baseline" and first in present for first, second in layout.pairs):
        notes.append("No finished trial of Baseline is here, so that nothing can be compared with it; run it as well.")
    by_cell = {
        key: group.set_index("seed")[["acc", "fgt_paper", "fgt_released"]].astype(float) * 100
        for key, group in trials.groupby(["dataset", "task_size", "method"], observed=True)
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
            for metric in ("acc", f"fgt_{setting.convention}"):
                values = statistics.paired(
                    a.loc[shared, metric], b.loc[shared, metric], higher_is_better=metric == "acc"
                )
                rows.append(
                    {
                        "method": first,
                        "against": second,
                        "dataset": dataset,
                        "task_size": int(size),
                        "metric": metric,
                        "n": values.n,
                        "difference": values.difference.estimate,
                        "low": values.difference.low,
                        "high": values.difference.high,
                        "p": values.p,
                        "wins": values.wins,
                        "ties": values.ties,
                        "improvement": values.improvement,
                        "remark": remark,
                    }
                )
    columns = ["method", "against", "dataset", "task_size", "metric", "n", "difference", "low", "high", "p"]
    frame = pd.DataFrame(rows, columns=[*columns, "wins", "ties", "improvement", "remark"])
    families = frame.groupby(["dataset", "task_size", "metric"], observed=True)
    frame.insert(10, "p_holm", families["p"].transform(lambda p: statistics.holm(p.to_numpy(float))))
    sizes = families.agg(tests=("p", "count"), n=("n", "max"))
    sizes = sizes[sizes["tests"] > 0]
    least = min((tests * statistics.least_p(n) for tests, n in sizes.itertuples(index=False)), default=0.0)
    if least > 0.05:
        n, tests = int(sizes["n"].max()), int(sizes["tests"].min())
        notes.append(
            f"With {n} seeds and {counted(tests, 'test')} of a kind or more no corrected p can fall below "
            f"{min(1.0, least):.2g}; look at the differences."
        )
    return frame, notes


def gap_closed(setting: Setting) -> tuple[pd.DataFrame, list[str]]:
    """How much of the way from Baseline to Oracle each method goes, over all task sizes: IQM, cluster bootstrap."""
    rows, notes = [], []
    for dataset, trials in setting.trials.groupby("dataset", observed=True):
        ends = {"baseline": "Baseline", "oracle": "Oracle"}
        lacking = [title for name, title in ends.items() if name not in set(trials["method"])]
        if lacking:
            notes.append(
                f"{dataset}: the gap between Baseline and Oracle needs trials of {' and '.join(lacking)}; run them as "
                f"well."
            )
            continue
        for method in ordered(set(trials["method"]) - ends.keys()):
            for metric in ("acc", f"fgt_{setting.convention}"):
                values = _gaps(trials, method, metric)
                if values.empty:
                    continue
                interval = statistics.iqm_interval(values.to_numpy())
                rows.append(
                    {
                        "dataset": dataset,
                        "method": method,
                        "metric": metric,
                        "settings": values.shape[1],
                        "n": len(values),
                        "iqm": interval.estimate,
                        "low": interval.low,
                        "high": interval.high,
                    }
                )
    columns = ["dataset", "method", "metric", "settings", "n", "iqm", "low", "high"]
    return pd.DataFrame(rows, columns=columns), notes


def _gaps(trials: pd.DataFrame, method: str, metric: str) -> pd.DataFrame:
    """gap[seed, task size], for the seeds that have all three methods at every task size where any has."""
    wide = trials.pivot_table(
        index="seed", columns=["task_size", "method"], values=metric, observed=True, aggfunc="first"
    )
    sizes = [
        size
        for size in trials["task_size"].unique()
        if all((size, name) in wide.columns for name in (method, "baseline", "oracle"))
    ]
    gaps = {
        size: statistics.gap_closed(wide[size, method], wide[size, "baseline"], wide[size, "oracle"]) for size in sizes
    }
    return pd.DataFrame(gaps, index=wide.index).dropna()
