"""Which trials may stand in one table: equal in all but method, data set, task size and seed."""

from collections.abc import Iterable
from dataclasses import dataclass, fields

import pandas as pd

from analysis.results import METHOD, SPEC, Results, counted
from gd_ray.spec import EXTERNAL_FIELDS, PAPERS_STREAMS, VALIDATION, TrialSpec

_FREE = ("method", "seed", "task_size", "dataset", *EXTERNAL_FIELDS)
COMMON = tuple(name for name in SPEC if name not in _FREE)
_VALIDATION = "the validation split"
_DEFAULTS = {field.name: field.default for field in fields(TrialSpec)}


@dataclass(frozen=True, eq=False)
class Setting:
    """Trials with the same settings. Two are the same only where they are one: frames have no plain equality."""

    label: str
    """Where these settings are not the paper's."""
    convention: str
    differs: str
    """What is not the paper's, external data and convention apart; empty where all is."""
    trials: pd.DataFrame
    """What tables show: for each method the main variant of its external data."""
    variants: pd.DataFrame
    """All trials of the setting, with every stream, window and OOD ratio."""
    notes: tuple[str, ...]

    def is_papers(self, trials: pd.DataFrame) -> bool:
        """Whether trials of this setting may be held against the printed numbers."""
        return not self.differs and not _other_external(trials)


def settings(results: Results) -> list[Setting]:
    """The settings of the finished trials, the one with most trials first."""
    trials = results.trials
    if trials.empty:
        return []
    validation = (trials["dataset"] == VALIDATION[0]) & (trials["seed"] == VALIDATION[1])
    groups = trials.groupby([*COMMON, validation.rename("validation")], observed=True, dropna=False, sort=False)
    varying = [name for name in COMMON if trials[name].nunique(dropna=False) > 1]
    found = [_setting(group, varying, bool(validation[group.index[0]])) for _, group in groups]
    return sorted(found, key=lambda setting: -len(setting.trials))


def uses_external(trials: pd.DataFrame) -> "pd.Series[bool]":
    """Which trials learn with external data; a method whose rules are unknown counts as one that does not."""
    return trials["method_external"].fillna(False).astype(bool)


def mixed_note(found: list[Setting]) -> str | None:
    """The sentence for results that do not belong in one table."""
    if len(found) < 2:
        return None
    varying = [name for name in COMMON if pd.concat([s.variants[name] for s in found]).nunique(dropna=False) > 1]
    if any(_VALIDATION in s.label for s in found):
        varying.append("whether they are reported or for validation")
    return (
        f"The trials differ in {', '.join(varying)} and cannot be averaged: each of the {len(found)} settings has "
        f"tables and figures of its own."
    )


def _setting(trials: pd.DataFrame, varying: list[str], validation: bool) -> Setting:
    first = trials.iloc[0]
    others = [name for name in COMMON if not _same(first[name], _DEFAULTS[name])]
    # The settings of a whole folder may vary in a field that is the paper's here; it is named all the same.
    named = [name for name in COMMON if name in others or name in varying]
    split = [_VALIDATION] if validation else []
    label = ", ".join([*(f"{name} {_text(first[name])}" for name in named), *split]) or "the paper's settings"
    differs = ", ".join([*(f"{name} {_text(first[name])}" for name in others if name != "convention"), *split])
    shown, notes = _main_variant(trials)
    for dataset, group in shown.groupby("dataset", observed=True):
        if not differs and dataset in PAPERS_STREAMS and (other := _other_external(group)):
            notes.append(
                f"External data of {dataset!s} are not the paper's ({other}): no verdict on what learns from them."
            )
    collapsed = shown[shown["collapsed"]]
    if len(collapsed):
        names = ", ".join(
            f"{row.method_title} at {row.task_size} seed {row.seed}" for row in collapsed[:6].itertuples()
        )
        notes.append(
            f"{counted(len(collapsed), 'trial')} collapsed, being no better than guessing in the end, and counted all "
            f"the same: {names}{', …' if len(collapsed) > 6 else ''}. They are marked † in the tables."
        )
    return Setting(label, str(first["convention"]), differs, shown, trials, tuple(notes))


def _other_external(trials: pd.DataFrame) -> str:
    """What of the external data of trials of one data set is not the paper's."""
    external = trials[uses_external(trials)]
    if external.empty:
        return ""
    papers = {**_DEFAULTS, "stream": PAPERS_STREAMS.get(str(external["dataset"].iloc[0]))}
    others = {name: external[name][external[name] != papers[name]].unique() for name in EXTERNAL_FIELDS}
    return ", ".join(f"{name} {_listed(values)}" for name, values in others.items() if len(values))


def _same(value: object, default: object) -> bool:
    return bool(value == default or (default is None and pd.isna(value)))  # type: ignore[call-overload]


def _text(value: object) -> str:
    if isinstance(value, float):
        return "all" if pd.isna(value) else f"{value:.12g}"
    return str(value)


def _main_variant(trials: pd.DataFrame) -> tuple[pd.DataFrame, list[str]]:
    """For each data set one choice of stream, window and OOD ratio, and for each method one meaning of its name."""
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
                f"Tables of {dataset} show external data with {shown}; {len(left)} trials with other values "
                f"({other}) are left out of them."
            )
        kept.append(group[~external | main])
    shown_trials = pd.concat(kept)
    parts = []
    for method, group in shown_trials.groupby("method", observed=True):
        meaning = _most_common(group, METHOD)
        same = (group[list(METHOD)] == meaning).all(axis=1) if meaning is not None else pd.Series(True, group.index)
        if not same.all():
            notes.append(
                f"{counted(int((~same).sum()), 'trial')} with another meaning of {method!r} than the other "
                f"{same.sum()} are left out. Give methods with different rules different names."
            )
        parts.append(group[same])
    return pd.concat(parts), notes


def _most_common(trials: pd.DataFrame, names: Iterable[str]) -> pd.Series | None:
    """The values that the most (method, task size) cells have, then those nearest the paper's, then the most trials."""
    if trials.empty:
        return None
    names = list(names)
    distinct = trials[names].drop_duplicates().astype(object)
    if len(distinct) == 1:
        return distinct.iloc[0]
    trials = trials.astype(dict.fromkeys(names, object))
    groups = trials.groupby(names, observed=True, dropna=False, sort=False)
    sizes = pd.DataFrame(
        {
            "cells": groups[["method", "task_size"]].apply(lambda part: len(part.drop_duplicates())),
            "trials": groups.size(),
        }
    ).reset_index()
    sizes["papers"] = sum((sizes[name] == _DEFAULTS.get(name)).astype(int) for name in names)
    best = sizes.sort_values(["cells", "papers", "trials"], ascending=False, kind="stable").iloc[0]
    return best[names]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(sorted(_text(value) for value in values))
