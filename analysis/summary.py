"""The table that a run ends with, for the terminal."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import fields
from statistics import mean, stdev
from typing import Any

import pandas as pd
from rich.table import Table

from analysis.results import load, unreadable_note
from gd_ray.methods import METHODS
from gd_ray.spec import EXTERNAL_FIELDS, TrialSpec

_SPEC = [field.name for field in fields(TrialSpec) if field.name not in ("method", "seed")]
_COLUMNS = {"dataset": "data", "task_size": "task size"}
"""Fields with a column of their own where they vary; the others that do are told in one column together."""


def accuracy_table(results: str, experiment: str) -> Table:
    """ACC and FGT of every setting of an experiment: mean, sample standard deviation, number of trials.

    Trials that differ in anything but the seed are never averaged. What most rows have in common is told once, below;
    so are files that cannot be read.
    """
    found = load(results, experiment=experiment)
    frame = found.trials.astype(object)
    groups: dict[tuple[str, tuple[object, ...]], list[dict[str, Any]]] = defaultdict(list)
    rows: list[dict[str, Any]] = frame.where(pd.notna(frame), None).to_dict("records")  # type: ignore[assignment]
    for row in rows:
        own = {**row, **{name: "all" for name in _SPEC if row[name] is None}}  # images of each class
        own |= {} if row["method_external"] else dict.fromkeys(EXTERNAL_FIELDS)
        groups[row["method"], tuple(own[name] for name in _SPEC)].append(row)
    usual = _usual([dict(zip(_SPEC, values, strict=True)) for _, values in groups])
    columns = {name: title for name, title in _COLUMNS.items() if name in usual}
    told = {name: value for name, value in usual.items() if name not in columns}
    table = Table(title=f"{experiment}: mean ± standard deviation over seeds, in %", title_justify="left")
    notes = [f"Where no setting is named: {_named(told)}."] if told else []
    notes += [unreadable_note(found.unreadable)] if found.unreadable else []
    table.caption, table.caption_justify = "\n".join(notes), "left"
    for name in (*columns.values(), "method", *(["setting"] if told else []), "ACC ↑", "FGT ↓", "n"):
        words = name in ("data", "method", "setting")
        table.add_column(
            name, justify="left" if words else "right", no_wrap=name not in ("data", "setting"), overflow="fold"
        )
    for (_, key), members in sorted(groups.items(), key=lambda group: _place(*group[0])):
        values = dict(zip(_SPEC, key, strict=True))
        others = {name: values[name] for name in told if values[name] not in (None, told[name])}
        table.add_row(
            *(str(values[name]) for name in columns),
            str(members[0]["method_title"]),
            *([_named(others)] if told else []),
            _spread(row["acc"] for row in members),
            _spread(row[f"fgt_{values['convention']}"] for row in members),
            str(len(members)),
        )
    return table


def _usual(settings: list[dict[str, object]]) -> dict[str, object]:
    """Of each field that varies the value that most settings have."""
    counts = {name: Counter(own[name] for own in settings if own[name] is not None) for name in _SPEC}
    return {name: values.most_common(1)[0][0] for name, values in counts.items() if len(values) > 1}


def _named(values: dict[str, object]) -> str:
    whole = {name: int(v) if isinstance(v, float) and v.is_integer() else v for name, v in values.items()}
    return ", ".join(f"{name.replace('_', ' ').replace('ood', 'OOD')} {value}" for name, value in whole.items())


def _place(method: str, values: tuple[object, ...]) -> tuple[object, ...]:
    """Data set, task size, the paper's order of methods, then the rest."""
    own, names = dict(zip(_SPEC, values, strict=True)), list(METHODS)
    return own["dataset"], own["task_size"], names.index(method) if method in names else len(names), str(values)


def _spread(values: Iterable[float]) -> str:
    percent = [100 * value for value in values]
    return f"{mean(percent):.1f} ± {stdev(percent):.1f}" if len(percent) > 1 else f"{percent[0]:.1f}"
