"""What the terminal shows: progress bars, the live view of a run, tables of states, and `gd-ray list`."""

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.progress_bar import ProgressBar
from rich.table import Column, Table
from rich.text import Text

import gd_ray.data
import gd_ray.wild.sampling  # noqa: F401 (both register names)
from gd_ray.errors import UserError
from gd_ray.methods import METHODS, second_implementation
from gd_ray.naming import counted, trial_names
from gd_ray.paper import TABLES
from gd_ray.plugins import Registry
from gd_ray.spec import TrialSpec
from gd_ray.store import STATES, TrialState, seconds_left
from trials.claim import repeated
from trials.experiments import EXPERIMENTS

_LISTED = 12
"""Running trials that are listed one by one."""


def progress_bar(console: Console) -> Progress:
    """Return a bar with the time left; it prints nothing in a pipe."""
    return Progress(
        BarColumn(20),
        TextColumn("{task.percentage:3.0f}%"),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.description}"),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )


@contextmanager
def live_view(
    states: Callable[[], list[TrialState]], console: Console, *, every: float = 1.0, line_every: float = 60.0
) -> Iterator[None]:
    """Show running trials on a terminal `every` so many seconds, or print a line every `line_every` in a pipe."""

    def show() -> None:
        now = list[TrialState]()
        try:
            now = states()
            line = summary(now)
        except (OSError, UserError) as error:
            line = f"trials wait for storage: {error}"
        if not live:
            console.print(f"{time.strftime('%H:%M')} {line}", markup=False, highlight=False, soft_wrap=True)
        elif now:
            bar = ProgressBar(total=1.0, completed=work_share(now), width=40)
            live.update(Group(bar, line, running_table(now)), refresh=True)
        else:
            live.update(Text(line), refresh=True)

    shown = Live(console=console, transient=True, auto_refresh=False, redirect_stdout=False)
    with shown if console.is_terminal else nullcontext() as live, repeated(show, every if live else line_every):
        yield


def summary(states: list[TrialState]) -> str:
    counts = Counter(state.state for state in states)
    parts = [f"{counts['done']} of {counted(len(states), 'trial')} done"]
    parts += [f"{counts[kind]} {kind}" for kind in ("running", "failed") if counts[kind]]
    return f"{', '.join(parts)}, {100 * work_share(states):.0f}% of the work, {duration(seconds_left(states))} left"


def work_share(states: list[TrialState]) -> float:
    return sum(state.work_done for state in states) / (sum(state.work for state in states) or 1.0)


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "unknown time"
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 48 * 3600 else f"{seconds / 86400:.1f} days"


def running_table(states: list[TrialState]) -> Table:
    """Return a table of the running trials: stage and step, rate, share done, time left."""
    table = Table("trial", "at", *_numbers("images/s", "done", "left"), box=None, pad_edge=False)
    names = state_names(states)
    running = [(state, state.progress) for state in states if state.progress is not None]
    for state, progress in running[:_LISTED]:
        rate = f"{progress.images_per_second:.0f}" if progress.images_per_second else ""
        left = duration(state.seconds_left) if state.seconds_left is not None else ""
        table.add_row(names[state.experiment, state.trial_id], state.detail, rate, f"{100 * progress.share:.0f}%", left)
    if len(running) > _LISTED:
        table.add_row(f"and {len(running) - _LISTED} more")
    return table


def state_names(states: list[TrialState]) -> dict[tuple[str, str], str]:
    """Name the trials by what varies in their experiment; of several experiments, name that too."""
    experiments = _by_experiment(states)
    names = {}
    for experiment, own in experiments.items():
        for state, name in zip(own, trial_names([state.spec for state in own]), strict=True):
            names[experiment, state.trial_id] = name if len(experiments) == 1 else f"{experiment}: {name}"
    return names


def _by_experiment(states: list[TrialState]) -> dict[str, list[TrialState]]:
    names = dict.fromkeys(state.experiment for state in states)
    return {name: [state for state in states if state.experiment == name] for name in names}


def status_table(states: list[TrialState]) -> Table:
    """Return the trials of each experiment by state, the share of the work done, and the time left."""
    table = Table("experiment", *_numbers(*STATES, "work done", "time left"), box=None)
    for experiment, own in _by_experiment(states).items():
        counts = Counter(state.state for state in own)
        left = duration(seconds_left(own)) if counts["running"] else ""
        table.add_row(experiment, *(str(counts[kind]) for kind in STATES), f"{100 * work_share(own):.0f}%", left)
    return table


def _numbers(*names: str) -> list[Column]:
    return [Column(name, justify="right") for name in names]


def print_names(runs: Mapping[str, str]) -> None:
    """Print the names that grids may use: experiments, methods, other registries, and the fields of a trial.

    `runs` has how much of each method has run.
    """
    wide, narrow = Console(width=200), Console(width=120, highlight=False)
    experiments = Table("experiment", *_numbers("trials"), "content", box=None)
    for name, experiment in EXPERIMENTS.items():
        experiments.add_row(name, str(len(experiment.specs())), experiment.about)
    wide.print(experiments, "", _methods(runs), "")
    narrow.print("Checked: what agrees with a second implementation in the tests. Run: trials that come with gd_ray.")
    for registry in Registry.all:
        if registry is not METHODS and registry:
            own = [f"{name} (plugin)" if name in registry.origins else name for name in registry]
            narrow.print(f"{registry.kind}: {', '.join(own)}.", markup=False)
    defaults = {f.name: getattr(f.default, "name", f.default) for f in fields(TrialSpec) if f.name != "plugin"}
    values = (f"{name}={'none' if value is None else value}" for name, value in defaults.items())
    text = f"Fields of a trial, for --set, --where and YAML, with the paper's values: {', '.join(values)}."
    narrow.print("", text, markup=False)
    clusters = Path(__file__).with_name("clusters")
    templates = ", ".join(sorted(file.name for file in clusters.iterdir()))
    wide.print(f"\nTemplates for clusters, in {clusters}: {templates}.", markup=False, highlight=False, soft_wrap=True)


def _methods(runs: Mapping[str, str]) -> Table:
    columns = ("learner", "previous model", "teacher", "Q", "balancing", "fine-tuned", "external", "tables")
    table = Table("method", "title", *columns, "checked", "run", box=None)
    for method in METHODS.values():
        table.add_row(
            method.name,
            method.title,
            method.learner,
            method.previous,
            method.teacher,
            "yes" if method.ensemble else "-",
            method.balancing,
            method.fine_tuned,
            f"{method.previous_sampling} + {method.ood_sampling}" if method.external else "-",
            ", ".join(str(number) for number, rows in TABLES.items() if method.name in rows),
            second_implementation(method.name),
            runs.get(method.name, "not yet"),
        )
    return table
