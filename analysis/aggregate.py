"""Which trials may be averaged (equal in all but method, data set, task size and seed), and their means."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pandas as pd

from analysis.frames import DEFAULTS, METHOD, SPEC
from analysis.published import dataset_title
from analysis.results import Results
from gd_ray.methods import METHODS
from gd_ray.naming import counted
from gd_ray.paper import STREAMS, VALIDATION
from gd_ray.spec import EXTERNAL_FIELDS

_FREE = ("method", "plugin", "seed", "task_size", "dataset", *EXTERNAL_FIELDS)
COMMON = tuple(name for name in SPEC if name not in _FREE)
_MEANING = (*METHOD, "plugin")
"""Fields that define a method; trials of one name that differ in them are never averaged."""
_VALIDATION = "the validation split"


@dataclass(frozen=True, eq=False)
class Setting:
    """Trials with the same settings. Compared by identity: DataFrames do not support ==."""

    label: str
    """Where these settings are not the paper's."""
    convention: str
    differs: str
    """What is not the paper's, except external data and convention; empty if nothing."""
    trials: pd.DataFrame
    """What tables show: for each method the main variant of its external data."""
    variants: pd.DataFrame
    """All trials of the setting, with every stream, window and OOD ratio."""
    notes: tuple[str, ...]
    number: int | None = None
    """Its number if there are several settings."""

    @property
    def suffix(self) -> str:
        return f", setting {self.number}" if self.number else ""

    def is_papers(self, trials: pd.DataFrame) -> bool:
        """Return whether trials of this setting may be compared with the printed numbers."""
        return not self.differs and not _other_external(trials)


def summarize(trials: pd.DataFrame, by: Sequence[str], metrics: Iterable[str]) -> pd.DataFrame:
    """Return the mean, sample standard deviation and number of trials, in percent: a row per group and metric.

    `values` are those of each seed, `collapsed` counts the trials that are no better than guessing.
    """
    rows = []
    metrics = tuple(metrics)
    for key, group in trials.groupby(list(by), observed=True, dropna=False, sort=False):
        for metric in metrics:
            values = 100 * group[metric].to_numpy(float)
            rows.append(
                {
                    **dict(zip(by, key, strict=True)),
                    "metric": metric,
                    "mean": values.mean(),
                    "sd": values.std(ddof=1) if len(values) > 1 else np.nan,
                    "n": len(values),
                    "values": dict(zip(group["seed"].astype(int), values.tolist(), strict=True)),
                    "collapsed": int(group["collapsed"].sum()),
                }
            )
    return pd.DataFrame(rows, columns=[*by, "metric", "mean", "sd", "n", "values", "collapsed"])


def ordered(methods: Iterable[str]) -> list[str]:
    """Return the methods in the order of METHODS, then the others by name."""
    names = set(methods)
    return [name for name in METHODS if name in names] + sorted(names - set(METHODS))


def task_text(trials: pd.DataFrame, size: int) -> str:
    """Name the tasks of trials of one setting: their size, and that of a first task of its own."""
    first = int(trials["first_task_size"].iloc[0])
    return f"task size {size} after a first of {first}" if first else f"task size {size}"


def place(trials: pd.DataFrame) -> str:
    """Name the data set and the tasks of trials that have one of each."""
    first = trials.iloc[0]
    return f"{dataset_title(first['dataset'])}, {task_text(trials, first['task_size'])}"


def at_main_size(trials: pd.DataFrame) -> pd.DataFrame:
    """Return the trials of the task size that most methods have; among equals of 10, as in the paper's ablations."""
    counts = trials.groupby("task_size", observed=True)["method"].nunique()
    sizes = counts.index[counts == counts.max()]
    return trials[trials["task_size"] == (10 if 10 in sizes else sizes[0])]


def uses_external(trials: pd.DataFrame) -> "pd.Series[bool]":
    """Return which trials learn with external data; an unknown method counts as one that does not."""
    return trials["method_external"].fillna(False).astype(bool)


def settings(results: Results) -> list[Setting]:
    """Return the settings of the finished trials, the one with most trials first."""
    trials = results.trials
    if trials.empty:
        return []
    validation = (trials["dataset"] == VALIDATION[0]) & (trials["seed"] == VALIDATION[1])
    groups = trials.groupby([*COMMON, validation.rename("validation")], observed=True, dropna=False, sort=False)
    varying = [name for name in COMMON if trials[name].nunique(dropna=False) > 1]
    parts = [_setting(group, varying, bool(validation[group.index[0]])) for _, group in groups]
    parts.sort(key=lambda setting: -len(setting.trials))
    return [replace(part, number=k) for k, part in enumerate(parts, start=1)] if len(parts) > 1 else parts


def by_coreset_size(settings: list[Setting]) -> list[pd.DataFrame]:
    """Return trials of one data set and task size that differ in the size of the coreset, and in no other setting.

    The column `setting` is the number of their setting.
    """
    if len(settings) < 2:
        return []
    trials = pd.concat([setting.trials.assign(setting=setting.number) for setting in settings])
    same = [*(name for name in COMMON if name != "coreset_size"), "dataset", "task_size"]
    groups = [part for _, part in trials.groupby(same, observed=True, dropna=False)]
    return [part for part in groups if part["coreset_size"].nunique() > 1]


def mixed_note(settings: list[Setting]) -> str | None:
    """Return the note for results of more than one setting."""
    if len(settings) < 2:
        return None
    varying = [name for name in COMMON if pd.concat([s.variants[name] for s in settings]).nunique(dropna=False) > 1]
    if any(_VALIDATION in s.label for s in settings):
        varying.append("whether they are reported or for validation")
    return (
        f"The trials differ in {', '.join(varying)} and cannot be averaged: each of the {len(settings)} settings has "
        f"tables and figures of its own."
    )


def _setting(trials: pd.DataFrame, varying: list[str], validation: bool) -> Setting:
    first = trials.iloc[0]
    others = [name for name in COMMON if not _same(first[name], DEFAULTS[name])]
    # A field that varies in the folder is named even if it has the paper's value here.
    named = [name for name in COMMON if name in others or name in varying]
    split = [_VALIDATION] if validation else []
    label = ", ".join([*(f"{name} {_text(first[name])}" for name in named), *split]) or "the paper's settings"
    differs = ", ".join([*(f"{name} {_text(first[name])}" for name in others if name != "convention"), *split])
    shown, notes = _main_variant(trials)
    for dataset, group in shown.groupby("dataset", observed=True):
        if not differs and dataset in STREAMS and (other := _other_external(group)):
            notes.append(
                f"External data of {dataset!s} are not the paper's ({other}): methods that learn from them get no "
                f"verdict."
            )
    collapsed = shown[shown["collapsed"]]
    if len(collapsed):
        names = [f"{row.method_title} at {row.task_size} seed {row.seed}" for row in collapsed[:6].itertuples()]
        notes.append(
            f"{counted(len(collapsed), 'trial')} collapsed (no better than guessing at the end), marked † and included "
            f"in the means: {', '.join(names)}{', …' if len(collapsed) > 6 else ''}."
        )
    return Setting(label, str(first["convention"]), differs, shown, trials, tuple(notes))


def _other_external(trials: pd.DataFrame) -> str:
    """Return how the external data of trials of one data set differ from the paper's."""
    external = trials[uses_external(trials)]
    if external.empty:
        return ""
    papers = {**DEFAULTS, "stream": STREAMS.get(str(external["dataset"].iloc[0]))}
    others = {name: external[name][external[name] != papers[name]].unique() for name in EXTERNAL_FIELDS}
    return ", ".join(f"{name} {_listed(values)}" for name, values in others.items() if len(values))


def _same(value: object, default: object) -> bool:
    return bool(value == default or (default is None and pd.isna(value)))  # type: ignore[call-overload]


def _text(value: object) -> str:
    if isinstance(value, float):
        return "all" if pd.isna(value) else f"{value:.12g}"
    return str(value)


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(_text(value) for value in values))


def _main_variant(trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """Choose for each data set one stream, window and OOD ratio, and for each method one meaning of its name."""
    kept, notes = [], []
    for dataset, group in trials.groupby("dataset", observed=True):
        external = uses_external(group)
        choice = _most_common(group[external], EXTERNAL_FIELDS)
        main = external & (group[list(EXTERNAL_FIELDS)] == choice).all(axis=1) if choice is not None else external
        left = group[external & ~main]
        if choice is not None and len(left):
            shown = ", ".join(f"{name} {_text(value)}" for name, value in choice.items())
            names = [name for name in EXTERNAL_FIELDS if left[name].nunique() > 1 or (left[name] != choice[name]).any()]
            other = "; ".join(f"{name} {_listed(left[name].unique())}" for name in names)
            notes.append(
                f"Tables of {dataset} show external data with {shown}; left out of them: {counted(len(left), 'trial')} "
                f"with other values ({other})."
            )
        for method, part in group[~external | main].groupby("method", observed=True):
            meaning = _most_common(part, _MEANING)
            same = (part[list(_MEANING)] == meaning).all(axis=1)
            kept.append(part[same])
            if not same.all():
                notes.append(
                    f"{counted(int((~same).sum()), 'trial')} with another meaning of {method!r} than the other "
                    f"{same.sum()} are left out. Give methods with different rules different names."
                )
    return pd.concat(kept), notes


def _most_common(trials: pd.DataFrame, names: Iterable[str]) -> pd.Series | None:
    """Return the values that most (method, task size) cells have; ties: nearest the paper's, then most trials."""
    if trials.empty:
        return None
    names = list(names)
    distinct = trials[names].drop_duplicates().astype(object)
    if len(distinct) == 1:
        return distinct.iloc[0]
    trials = trials.astype(dict.fromkeys(names, object))
    groups = trials.groupby(names, observed=True, dropna=False, sort=False)
    cells = groups[["method", "task_size"]].apply(lambda part: len(part.drop_duplicates()))
    sizes = pd.DataFrame({"cells": cells, "trials": groups.size()}).reset_index()
    sizes["papers"] = sum((sizes[name] == DEFAULTS.get(name)).astype(int) for name in names)
    best = sizes.sort_values(["cells", "papers", "trials"], ascending=False, kind="stable").iloc[0]
    return best[names]
