"""Names of trials for people: by what differs among those that are shown together."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

from gd_ray.methods import Method
from gd_ray.spec import EXTERNAL_FIELDS, TrialSpec

_DEFAULTS = {f.name: f.default for f in fields(TrialSpec) if f.name not in ("method", "plugin")}
_MEANING = ("method", "plugin", *(f"method_{f.name}" for f in fields(Method) if f.name not in ("name", "title")))
"""What the title of a method means; named only where one title has several meanings."""


def trial_names(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Name each trial, given as TrialSpec.flat(), by its method, its seed and the fields that vary among the trials."""
    titles = [str(trial.get("method_title") or trial["method"]) for trial in trials]
    named = ["seed", *varying_fields(trials)]
    by_title: dict[str, list[Mapping[str, Any]]] = {}
    for title, trial in zip(titles, trials, strict=True):
        by_title.setdefault(title, []).append(trial)
    meaning = {title: [name for name in _MEANING if _varies(name, own)] for title, own in by_title.items()}
    names = []
    for title, trial in zip(titles, trials, strict=True):
        shown = (name for name in (*named, *meaning[title]) if uses(trial, name))
        names.append(", ".join([title, *(setting(name, field_of(trial, name)) for name in shown)]))
    return names


def varying_fields(trials: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the fields besides method and seed that vary among trials that use them."""
    return [name for name in _DEFAULTS if name != "seed" and _varies(name, [t for t in trials if uses(t, name)])]


def uses(trial: Mapping[str, Any], name: str) -> bool:
    """Return whether a field can change the result of the trial."""
    return name not in EXTERNAL_FIELDS or bool(trial.get("method_external", True))


def field_of(trial: Mapping[str, Any], name: str) -> Any:
    """Return a field; the default where it is younger than the trial, None where all images are used."""
    value = trial.get(name, _DEFAULTS.get(name))
    return None if isinstance(value, float) and math.isnan(value) else value


def setting(name: str, value: object) -> str:
    """Return a field and its value, such as 'OOD ratio 0.5'."""
    text = "all" if value is None else f"{value:.12g}" if isinstance(value, float) else str(value)
    return f"{field_title(name)} {text}"


def field_title(name: str) -> str:
    return name.replace("_", " ").replace("ood", "OOD")


def _varies(name: str, trials: Sequence[Mapping[str, Any]]) -> bool:
    return len({field_of(trial, name) for trial in trials}) > 1


def counted(number: int, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{number} {noun if number == 1 else plural}"
