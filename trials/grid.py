"""Grids of trials: keys and lists of values, from a YAML file or from the command line."""

import re
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

from gd_ray.errors import UserError, unknown_name
from gd_ray.plugins import load_plugins, read_plugin
from gd_ray.spec import TrialSpec
from trials.experiments import combine, experiment_named

_TYPES = {name: kind for name, kind in get_type_hints(TrialSpec).items() if name != "plugin"}
_TEXT = {"method", *(name for name, kind in _TYPES.items() if kind is str)}
_FORM = "write one 'key: value' or 'key: [values]' a line"


def read_grid(name: str) -> tuple[str, list[TrialSpec]]:
    """Return the name and the trials of an experiment, or of a YAML file with a value or a list for each key.

    The key `plugin` of a file names plugin files, relative to it; they are loaded first.
    """
    if not name.endswith((".yaml", ".yml")):
        return name, experiment_named(name).specs()
    path, lists = Path(name), _read_lists(name)
    load_plugins(*(read_plugin(str(path.parent / file)) for file in lists.pop("plugin", [])))
    return path.stem, combine([TrialSpec()], {key: _values(key, texts) for key, texts in lists.items()})


def _read_lists(name: str) -> dict[str, list[str]]:
    """Read a YAML file as text and as pairs: numbers are parsed as on the command line, no key hides another."""
    import yaml

    def text(node: yaml.Node) -> str:
        return str(node.value if isinstance(node, yaml.ScalarNode) else yaml.serialize(node).strip())

    try:
        root = yaml.compose(Path(name).read_text(encoding="utf-8"), yaml.BaseLoader)
    except OSError as error:
        raise UserError(f"grid file {name!r} cannot be read ({error.strerror}); check its path.") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"grid file {name!r} is not YAML ({' '.join(str(error).split())}); {_FORM}.") from error
    if not isinstance(root, yaml.MappingNode) or not root.value:
        raise UserError(f"grid file {name!r} has no keys; {_FORM}.")
    lists: dict[str, list[str]] = {}
    for node, value in root.value:
        key = text(node)
        if key in lists:
            raise UserError(f"grid file {name!r} names {key!r} twice; give all its values at once, as {key}: [values].")
        lists[key] = [text(item) for item in (value.value if isinstance(value, yaml.SequenceNode) else [value])]
        if not lists[key]:
            raise UserError(f"grid file {name!r} has no value for {key!r}; give one, or leave {key!r} out.")
    return lists


def with_settings(specs: list[TrialSpec], settings: Iterable[str]) -> list[TrialSpec]:
    """Return every spec with every combination of 'key=value,value' settings."""
    return combine(specs, _parse(settings, "--set"))


def select(specs: list[TrialSpec], conditions: Iterable[str]) -> list[TrialSpec]:
    """Return the specs whose fields have one of the values of each 'key=value,value' condition."""
    for key, values in _parse(conditions, "--where").items():
        present = {spec.flat()[key]: None for spec in specs}
        specs = [spec for spec in specs if spec.flat()[key] in values]
        if not specs:
            wanted = ",".join(map(str, values))
            raise UserError(f"--where {key}={wanted} leaves no trial; here {key} is {', '.join(map(str, present))}.")
    return specs


def unique(specs: Iterable[TrialSpec]) -> list[TrialSpec]:
    """Return equal trials once. Comes last: copies of one trial may differ in fields that conditions ask for."""
    return list({spec.trial_id: spec for spec in specs}.values())


def _parse(entries: Iterable[str], option: str) -> dict[str, list[Any]]:
    lists: dict[str, list[Any]] = {}
    for entry in entries:
        key, equals, values = entry.partition("=")
        if not equals or not values:
            raise UserError(f"{option} {entry!r} has no value; write {option} key=value or key=value,value.")
        if key in lists:
            raise UserError(f"{option} names {key!r} twice; give all its values at once, as {key}=value,value.")
        lists[key] = _values(key, values.split(","))
    return lists


def _values(key: str, texts: list[str]) -> list[Any]:
    """Check the key; parse whole or real numbers or none, and leave other text for the spec to refuse."""
    if key in ("depth", "width"):
        raise UserError(
            f"grid key {key!r} is now part of network; write network=wrn-DEPTH-WIDTH, such as network=wrn-10-1."
        )
    if key == "plugin":
        raise UserError("grid key 'plugin' cannot be set here; give --plugin FILE, or 'plugin: FILE' in a grid file.")
    if key not in _TYPES:
        raise unknown_name("grid key", key, _TYPES)
    return texts if key in _TEXT else [_number(key, text) for text in texts]


def _number(key: str, text: str) -> Any:
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    if several := re.fullmatch(r"(\d+)(-|:|\.\.)(\d+)|[\d.]+(?:[\s;]+[\d.]+)+", text):
        low, _, high = several.groups()
        values = map(str, range(int(low), int(high) + 1)) if low else re.split(r"[\s;]+", text)
        listed = ",".join(values) if not low or int(high) - int(low) < 10 else f"{low},{int(low) + 1},…,{high}"
        raise UserError(f"{key} {text!r} is no value; give several with commas, {key}={listed}.")
    return None if text in ("none", "null") else text
