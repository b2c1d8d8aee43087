"""The table that a run ends with, for the terminal."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import fields
from statistics import mean, stdev
from typing import Any

import pandas as pd
from rich.table import Table

from analysis.results import load, unreadable_note
from gd_ray.methods import METHODS
from gd_ray.spec import EXTERNAL_FIELDS, TrialSpec

_OTHERS = [field.name for field in fields(TrialSpec) if field.name not in ("dataset", "task_size", "method", "seed")]


def accuracy_table(results: str, experiment: str) -> Table:
    """ACC and FGT of every setting of an experiment: mean, sample standard deviation, number of trials.

    Trials that differ in anything but the seed are never averaged; a field that varies has a column. Files that cannot
    be read are named below it.
    """
    found = load(results, experiment=experiment)
    frame = found.trials.astype(object)
    groups: dict[tuple[object, ...], list[dict[str, Any]]] = defaultdict(list)
    rows: list[dict[str, Any]] = frame.where(pd.notna(frame), None).to_dict("records")  # type: ignore[assignment]
    for row in rows:
        own = {**row, **({} if row["method_external"] else dict.fromkeys(EXTERNAL_FIELDS))}
        groups[(row["dataset"], row["task_size"], row["method"], *(own[name] for name in _OTHERS))].append(row)
    varying = [
        name
        for place, name in enumerate(_OTHERS, start=3)
        if name == "ood_ratio" or len({key[place] for key in groups} - {None}) > 1
    ]
    table = Table(title=f"{experiment}: mean ± standard deviation over seeds, in %", title_justify="left")
    if found.unreadable:
        table.caption, table.caption_justify = unreadable_note(found.unreadable), "left"
    shown = [name.replace("_", " ").replace("ood", "OOD") for name in varying]
    for name in ("data", "task size", "method", *shown, "ACC ↑", "FGT ↓", "n"):
        number = name in ("ACC ↑", "FGT ↓", "n")
        table.add_column(
            name, justify="left" if name in ("data", "method") else "right", no_wrap=number, overflow="fold"
        )
    names = list(METHODS)
    order = sorted(
        groups,
        key=lambda key: (key[0], key[1], names.index(str(key[2])) if key[2] in names else 99, str(key[3:])),
    )
    for key in order:
        members, values = groups[key], dict(zip(_OTHERS, key[3:], strict=True))
        table.add_row(
            str(key[0]),
            str(key[1]),
            str(members[0]["method_title"]),
            *("" if values[name] is None else str(values[name]) for name in varying),
            _spread(row["acc"] for row in members),
            _spread(row[f"fgt_{values['convention']}"] for row in members),
            str(len(members)),
        )
    return table


def _spread(values: Iterable[float]) -> str:
    percent = [100 * value for value in values]
    return f"{mean(percent):.1f} ± {stdev(percent):.1f}" if len(percent) > 1 else f"{percent[0]:.1f}"
