"""A user's own grid: keys and lists of values, from a YAML file or from the command line."""

from collections.abc import Iterable
from dataclasses import fields, replace
from itertools import product
from pathlib import Path
from typing import Any

from gd_ray.errors import UserError, unknown_name
from gd_ray.spec import TrialSpec
from trials.experiments import experiment_named

_KEYS = tuple(field.name for field in fields(TrialSpec))
_TEXT = ("method", "dataset", "stream", "convention", "precision")


def read_grid(name: str) -> tuple[str, list[TrialSpec]]:
    """The name and the trials of an experiment of ours, or of a YAML file with a value or a list for each key."""
    if not name.endswith((".yaml", ".yml")):
        return name, experiment_named(name).specs()
    import yaml

    path = Path(name)
    try:
        content = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"grid file {name!r} cannot be read ({error.strerror}); check its path.") from error
    except yaml.YAMLError as error:
        reason = " ".join(str(error).split())
        raise UserError(
            f"grid file {name!r} is no YAML ({reason}); write one 'key: value' or 'key: [values]' a line."
        ) from error
    if not isinstance(content, dict):
        raise UserError(f"grid file {name!r} holds no keys; write one 'key: value' or 'key: [values]' a line.")
    lists = {str(key): value if isinstance(value, list) else [value] for key, value in content.items()}
    return path.stem, _product([TrialSpec()], lists)


def with_settings(specs: list[TrialSpec], settings: Iterable[str]) -> list[TrialSpec]:
    """Every spec with every combination of 'key=value,value' settings; equal ones once."""
    return _product(specs, _parsed(settings, "--set"))


def selected(specs: list[TrialSpec], conditions: Iterable[str]) -> list[TrialSpec]:
    """The specs whose fields have one of the values of each 'key=value,value' condition."""
    wanted = _parsed(conditions, "--where")
    found = [spec for spec in specs if all(spec.flat()[key] in values for key, values in wanted.items())]
    if not found:
        raise UserError(f"--where {' '.join(conditions)} leaves no trial; loosen it.")
    return found


def _product(specs: list[TrialSpec], lists: dict[str, list[Any]]) -> list[TrialSpec]:
    for key in lists:
        if key not in _KEYS:
            raise unknown_name("grid key", key, _KEYS)
    combinations = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    found = [replace(spec, **changes) for spec in specs for changes in combinations]
    return list({spec.trial_id: spec for spec in found}.values())


def _parsed(entries: Iterable[str], option: str) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for entry in entries:
        key, equals, values = entry.partition("=")
        if not equals or not values:
            raise UserError(f"{option} {entry!r} has no value; write {option} key=value or key=value,value.")
        if key in lists:
            raise UserError(f"{option} names {key!r} twice; give all its values at once, as {key}=value,value.")
        if key not in _KEYS:
            raise unknown_name("grid key", key, _KEYS)
        lists[key] = [value if key in _TEXT else _number(value) for value in values.split(",")]
    return lists


def _number(text: str) -> Any:
    """A whole or real number, none, or the text itself, which the spec then refuses with its own sentence."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text == "none" else text
