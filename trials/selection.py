"""The trials of a command: an experiment or a grid, its settings, conditions and plugins. Imports torch late."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

if TYPE_CHECKING:
    from gd_ray.spec import TrialSpec
    from trials.registry import DataLocations

Plugins = tyro.conf.UseAppendAction[tuple[str, ...]]


@dataclass(frozen=True)
class Trials:
    """Which trials."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """An experiment of 'gd-ray list', or a YAML file with 'key: [values]' for the fields that it lists."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Change a field of every trial, as key=value or key=value,value for a grid; may be repeated."""
    where: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Keep only trials whose field has one of the values, as key=value,value; may be repeated."""
    plugin: Plugins = ()
    """A Python file that adds methods, learners, networks, rankings or data sets; may be repeated."""
    results: str = "results"
    """Folder or address of the Parquet results."""

    def specs(self, data: tuple[str, ...], stream: tuple[str, ...]) -> "tuple[str, list[TrialSpec], DataLocations]":
        """Load the plugins; return the name of the experiment, its trials, and where their images are."""
        from trials.grid import read_grid, select, unique, with_settings
        from trials.registry import DataLocations
        from trials.resources import parse_folders

        load_files(self.plugin)
        name, specs = read_grid(self.name)
        specs = unique(select(with_settings(specs, self.set), self.where))
        locations = DataLocations(parse_folders(data, "--data"), parse_folders(stream, "--stream"))
        locations.check_names(specs)
        return name, specs, locations


def load_files(files: tuple[str, ...]) -> None:
    from gd_ray.plugins import load_plugins, read_plugin

    load_plugins(*map(read_plugin, files))
