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
    form = "write one 'key: value' or 'key: [values]' a line"
    try:
        # As text and as pairs: the numbers are then read as on the command line, and no key is lost to a second one.
        root = yaml.compose(path.read_text(encoding="utf-8"), yaml.BaseLoader)
        pairs = _pairs(root) if isinstance(root, yaml.MappingNode) else []
    except OSError as error:
        raise UserError(f"grid file {name!r} cannot be read ({error.strerror}); check its path.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"grid file {name!r} is no YAML ({' '.join(str(error).split())}); {form}.") from error
    if not pairs:
        raise UserError(f"grid file {name!r} holds no keys; {form}.")
    lists: dict[str, list[Any]] = {}
    for key, values in pairs:
        if key in lists:
            raise UserError(f"grid file {name!r} names {key!r} twice; give all its values at once, as {key}: [values].")
        if not values:
            raise UserError(f"grid file {name!r} has no value for {key!r}; give one, or leave {key!r} out.")
        lists[key] = [_value(key, value) for value in values]
    return path.stem, _product([TrialSpec()], lists)


def _pairs(root: Any) -> list[tuple[str, list[str]]]:
    """The keys of a YAML mapping and the texts of their values."""
    import yaml

    def text(node: Any) -> str:
        return str(node.value if isinstance(node, yaml.ScalarNode) else yaml.serialize(node).strip())

    return [
        (text(key), [text(item) for item in (value.value if isinstance(value, yaml.SequenceNode) else [value])])
        for key, value in root.value
    ]


def with_settings(specs: list[TrialSpec], settings: Iterable[str]) -> list[TrialSpec]:
    """Every spec with every combination of 'key=value,value' settings."""
    return _product(specs, _parsed(settings, "--set"))


def selected(specs: list[TrialSpec], conditions: Iterable[str]) -> list[TrialSpec]:
    """The specs whose fields have one of the values of each 'key=value,value' condition."""
    found = specs
    for key, values in _parsed(conditions, "--where").items():
        here = {spec.flat()[key]: None for spec in found}
        found = [spec for spec in found if spec.flat()[key] in values]
        if not found:
            wanted = ",".join(map(str, values))
            raise UserError(f"--where {key}={wanted} leaves no trial; here {key} is {', '.join(map(str, here))}.")
    return found


def unique(specs: Iterable[TrialSpec]) -> list[TrialSpec]:
    """Equal trials once. Comes last: the copies of one trial may differ in fields that conditions ask for."""
    return list({spec.trial_id: spec for spec in specs}.values())


def _product(specs: list[TrialSpec], lists: dict[str, list[Any]]) -> list[TrialSpec]:
    for key in lists:
        if key not in _KEYS:
            raise unknown_name("grid key", key, _KEYS)
    combinations = [dict(zip(lists, values, strict=True)) for values in product(*lists.values())]
    return [replace(spec, **changes) for spec in specs for changes in combinations]


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
        lists[key] = [_value(key, value) for value in values.split(",")]
    return lists


def _value(key: str, text: str) -> Any:
    """A whole or real number, none, or the text itself, which the spec then refuses with its own sentence."""
    if key in _TEXT:
        return text
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None if text in ("none", "null") else text
