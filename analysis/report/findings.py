"""What the results show, first on the page: one table and a sentence for each finding, computed from the trials."""

from collections.abc import Mapping
from typing import Any

import pandas as pd

from analysis.aggregate import Setting, at_main_size, place, summarize
from analysis.formats import Cell, Grid, frame_grid, interval, mean_sd, number
from analysis.tables import ORACLE, Table, metric_title


def findings(setting: Setting, tables: list[Table]) -> tuple[Grid, list[str]]:
    """Return ACC and FGT of every method where most were run, the highest ACC first, and what follows from them."""
    dataset = str(setting.trials.groupby("dataset", observed=True)["method"].nunique().idxmax())
    trials = at_main_size(setting.trials[setting.trials["dataset"] == dataset])
    where = place(trials) + setting.suffix
    shown = pd.DataFrame({"method": trials.drop_duplicates("method").set_index("method")["method_title"]})
    sentences = []
    for metric in ("acc", f"fgt_{setting.convention}"):
        cells = summarize(trials, ["method", "method_title"], [metric]).set_index("method").loc[shown.index]
        shown[metric_title(metric, setting.convention)] = pd.Series(
            {method: _mean(cell) for method, cell in cells.to_dict("index").items()}
        )
        sentences.append(_best(cells, metric, where))
    shown["n"] = cells["n"]
    for table in tables:
        rows = table.comparisons[table.comparisons["task_size"] == trials["task_size"].iloc[0]]
        rows = rows[(rows["dataset"] == dataset) & (rows["method"] == rows["against"].astype(str) + "+ext")]
        for method, own in rows.groupby("against", sort=False) if table.setting is setting else ():
            sentences.append(f"{shown['method'][method]} with external data{setting.suffix}: {_changes(own)}.")
    shown = shown.sort_values("ACC ↑", key=lambda cells: -cells.map(lambda cell: cell.value), kind="stable")
    title = f"{where}: mean ± standard deviation in %, over n seeds"
    return frame_grid(shown, title), [text for text in dict.fromkeys(sentences) if text]


def _mean(cell: Mapping[Any, Any]) -> Cell:
    return Cell(mean_sd(cell["mean"], cell["sd"]) + (" †" if cell["collapsed"] else ""), float(cell["mean"]))


def _best(cells: pd.DataFrame, metric: str, where: str) -> str:
    """Return which method but Oracle is best on the seeds that all of them have; nothing if they share none."""
    values = pd.DataFrame(cells["values"].drop(ORACLE, errors="ignore").to_dict()).dropna()
    if values.empty or values.shape[1] < 2:
        return ""
    means = values.mean().sort_values(ascending=metric != "acc", kind="stable")
    first, second = (f"{cells['method_title'][name]} with {number(means[name])}%" for name in means.index[:2])
    seeds = "one seed" if len(values) == 1 else f"the {len(values)} seeds that all have"
    what = "The highest ACC" if metric == "acc" else "The lowest FGT"
    then = "level with" if number(means.iloc[0]) == number(means.iloc[1]) else "before"
    return f"{what} of {len(means)} methods, Oracle apart: {first}, {then} {second} ({where}, mean over {seeds})."


def _changes(rows: pd.DataFrame) -> str:
    texts = []
    for row in rows.to_dict("records"):
        sure = f", 95% interval {interval(row['low'], row['high'])}" if pd.notna(row["low"]) else ""
        what = f"{'ACC' if row['metric'] == 'acc' else 'FGT'} {number(row['difference'], '+.1f')} points"
        texts.append(f"{what} (better on {row['wins']} of {row['n']} seeds{sure})" if row["n"] > 1 else what)
    return ", ".join(texts)
