"""Open registries of methods, learners, networks, rankings and data sets, and the user's own file that adds to them."""

import hashlib
import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, TypeVar

from gd_ray.errors import UserError, unknown_name

T = TypeVar("T")
V = TypeVar("V")


class Registry(dict[str, T]):
    """Entries of one kind by name. A plugin adds to it; nothing is ever replaced."""

    all: ClassVar[list["Registry[object]"]] = []

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.origins: dict[str, str] = {}
        """The digest of the plugin that added an entry."""
        Registry.all.append(self)  # type: ignore[arg-type]

    def __setitem__(self, name: str, entry: T) -> None:
        if name in self:
            raise UserError(f"{self.kind} {name!r} exists already; give yours another name.")
        super().__setitem__(name, entry)

    def register(self, name: str) -> Callable[[V], V]:
        """Return a decorator that adds what it decorates under this name."""

        def add(entry: V) -> V:
            self[name] = entry  # type: ignore[assignment]
            return entry

        return add

    def named(self, name: str) -> T:
        """Return the entry of that name, or raise a UserError with the nearest name."""
        if name not in self:
            raise unknown_name(self.kind, name, self)
        return self[name]


def imported(module: str, name: str) -> Callable[..., Any]:
    """Return a function of a module, or a class, that is imported when it is called: to name it needs no torch."""

    def call(*arguments: Any) -> Any:
        return getattr(importlib.import_module(module), name)(*arguments)

    return call


@dataclass(frozen=True)
class Plugin:
    """A user's Python file. It travels to other processes as text, so that all of them run the same code."""

    file: str
    source: str

    @property
    def digest(self) -> str:
        return hashlib.sha256(self.source.encode()).hexdigest()[:16]

    @property
    def module(self) -> str:
        return f"gd_ray_plugin_{self.digest}"


_loaded: dict[str, Plugin] = {}
_REGISTRIES = ("gd_ray.methods", "gd_ray.learners", "gd_ray.networks", "gd_ray.data", "gd_ray.wild.sampling")
"""Modules with registries: imported before a plugin runs, so that their own entries are not taken for its."""


def read_plugin(file: str) -> Plugin:
    """Read a plugin file without running it."""
    try:
        return Plugin(file, Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"plugin {file!r} cannot be read ({getattr(error, 'strerror', None) or error}).") from error


def load_plugins(*plugins: Plugin) -> None:
    """Run plugins, unless this process already has; what they register is marked with their digest."""
    for plugin in plugins:
        if plugin.digest not in _loaded:
            _run(plugin)
            _loaded[plugin.digest] = plugin


def loaded_plugins() -> tuple[Plugin, ...]:
    """Return the plugins of this process, for the processes that it starts."""
    return tuple(_loaded.values())


def plugin_of(kind: str, name: str) -> str:
    """Return the digest of the plugin that registered this name, or an empty string."""
    return next((r.origins[name] for r in Registry.all if r.kind == kind and name in r.origins), "")


def _run(plugin: Plugin) -> None:
    for name in _REGISTRIES:
        importlib.import_module(name)
    before = {id(registry): set(registry) for registry in Registry.all}
    module = ModuleType(plugin.module)
    module.__file__ = plugin.file
    sys.modules[plugin.module] = module  # pickle and dataclasses look classes up by their module's name
    try:
        exec(compile(plugin.source, plugin.file, "exec"), module.__dict__)
    except Exception as error:
        del sys.modules[plugin.module]
        for registry in Registry.all:
            for name in set(registry) - before[id(registry)]:
                del registry[name]
        raise UserError(f"plugin {plugin.file!r} {_problem(error, plugin.file)}") from error
    for registry in Registry.all:
        added = set(registry) - before[id(registry)]
        registry.origins.update(dict.fromkeys(added, plugin.digest))


def _problem(error: Exception, file: str) -> str:
    """Describe why a plugin failed, with the line of the plugin where it did."""
    if isinstance(error, SyntaxError):
        return f"has a syntax error in line {error.lineno}: {error.msg}."
    trace, line = error.__traceback__, 0
    while trace is not None:
        line = trace.tb_lineno if trace.tb_frame.f_code.co_filename == file else line
        trace = trace.tb_next
    name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
    return f"fails in line {line}: {name}{error}"
