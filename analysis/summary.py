"""What a run ends with on the terminal: a table, or a chart of what was forgotten."""

from collections import Counter
from typing import Any

import pandas as pd
from rich.bar import Bar
from rich.table import Column, Table

from analysis.aggregate import ordered, summarize, uses_external
from analysis.curves import METRICS
from analysis.formats import mean_sd, number
from analysis.frames import SPEC
from analysis.results import load, unreadable_note
from gd_ray.naming import setting
from gd_ray.spec import EXTERNAL_FIELDS

_FIELDS = [name for name in SPEC if name not in ("method", "seed")]
_COLUMNS = {"dataset": "data", "task_size": "task size"}
"""Fields with a column of their own if they vary; the others share one column."""


def accuracy_table(results: str, experiment: str) -> Table:
    """Return ACC and FGT of every setting of an experiment: mean, sample standard deviation, number of trials.

    Trials that differ in anything but the seed are never averaged. The values that most rows share, and files that
    cannot be read, are named below the table.
    """
    loaded = load(results, experiment=experiment)
    trials = loaded.trials.astype(dict.fromkeys(_FIELDS, object))
    trials.loc[~uses_external(trials), list(EXTERNAL_FIELDS)] = None
    trials = trials.fillna(dict.fromkeys(("train_per_class", "test_per_class"), "all"))
    cells = summarize(trials, ["method", "method_title", *_FIELDS], METRICS)
    groups: list[dict[str, Any]] = cells[cells["metric"] == "acc"].to_dict("records")  # type: ignore[assignment]
    forgetting = {name: cells[cells["metric"] == name].to_dict("records") for name in METRICS[1:]}
    usual = _usual(groups)
    columns = {name: title for name, title in _COLUMNS.items() if name in usual}
    named = {name: value for name, value in usual.items() if name not in columns}
    table = Table(title=f"{experiment}: mean ± standard deviation over seeds, in %", title_justify="left")
    notes = [f"Where no setting is named: {_named(named)}."] if named else []
    notes += [unreadable_note(list(loaded.unreadable))] if loaded.unreadable else []
    table.caption, table.caption_justify = "\n".join(notes), "left"
    for title in (*columns.values(), "method", *(["setting"] if named else []), "ACC ↑", "FGT ↓", "n"):
        is_text, wraps = title in ("data", "method", "setting"), title in ("data", "setting")
        table.add_column(title, justify="left" if is_text else "right", no_wrap=not wraps, overflow="fold")
    order = {method: k for k, method in enumerate(ordered(trials["method"]))}
    keys = [(g["dataset"], g["task_size"], order[g["method"]], str([g[name] for name in _FIELDS])) for g in groups]
    for _, k in sorted((key, k) for k, key in enumerate(keys)):
        group, fgt = groups[k], forgetting[f"fgt_{groups[k]['convention']}"][k]
        others = {name: group[name] for name in named if pd.notna(group[name]) and group[name] != named[name]}
        table.add_row(
            *(str(group[name]) for name in columns),
            str(group["method_title"]),
            *([_named(others)] if named else []),
            mean_sd(group["mean"], group["sd"]),
            mean_sd(fgt["mean"], fgt["sd"]),
            str(group["n"]),
        )
    return table


def forgetting_chart(results: str, experiment: str) -> Table:
    """Return a bar for each method: by how many points the accuracy on earlier tasks fell, on average over seeds."""
    trials = load(results, experiment=experiment).trials
    keys = ["method", "method_title", "method_replay_all"]
    cells: list[dict[str, Any]] = summarize(trials, keys, METRICS).to_dict("records")  # type: ignore[assignment]
    rows = {cell["method"]: cell for cell in cells if cell["metric"] == "fgt_paper"}
    acc = {cell["method"]: cell["mean"] for cell in cells if cell["metric"] == "acc"}
    most = max(row["mean"] for row in rows.values())
    table = Table(
        "method", Column("ACC ↑", justify="right"), Column("FGT ↓", justify="right"), box=None, pad_edge=False
    )
    table.add_column("forgotten, in points of accuracy on earlier tasks")
    for method in ordered(trials["method"]):
        title, fgt = rows[method]["method_title"], rows[method]["mean"]
        bar = Bar(most, 0, fgt, width=40) if fgt > 0 else "nothing: earlier tasks improved"
        table.add_row(title, number(acc[method]), number(fgt), bar)
    coreset = sorted((row["mean"], row["method_title"]) for row in rows.values() if not row["method_replay_all"])
    words = [f"{title} forgets {number(fgt)} points" for fgt, title in dict.fromkeys((*coreset[:1], *coreset[-1:]))]
    table.caption, table.caption_justify = f"With a coreset, {', '.join(words)}." if words else None, "left"
    table.caption_style = "bold"
    return table


def _usual(groups: list[dict[str, Any]]) -> dict[str, object]:
    """Return of each field that varies the value that most groups have; plugins vary with the methods they add."""
    counts = {name: Counter(group[name] for group in groups if pd.notna(group[name])) for name in _FIELDS}
    one_each = len({(group["method"], group["plugin"]) for group in groups}) == len({g["method"] for g in groups})
    return {
        name: values.most_common(1)[0][0]
        for name, values in counts.items()
        if len(values) > 1 and not (name == "plugin" and one_each)
    }


def _named(values: dict[str, object]) -> str:
    return ", ".join(setting(name, value) for name, value in values.items())
