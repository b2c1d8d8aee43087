"""Plain tables for the terminal: how an experiment ended, and how it stands."""

from collections import defaultdict
from collections.abc import Iterable
from statistics import mean, stdev

import pyarrow.dataset as ds
from rich.table import Table

from gd_ray.filesystems import filesystem_of
from gd_ray.methods import METHODS
from trials.ledger import TrialState, seconds_left
from trials.view import duration, work_share


def accuracy_table(results: str, experiment: str) -> Table:
    """ACC and FGT of every setting of an experiment: mean, sample standard deviation, number of trials."""
    filesystem, root = filesystem_of(results)
    columns = ["dataset", "task_size", "method", "ood_ratio", "convention", "acc", "fgt_paper", "fgt_released"]
    rows = ds.dataset(f"{root}/trials/experiment={experiment}", filesystem=filesystem).to_table(columns).to_pylist()
    groups: dict[tuple[object, ...], list[dict[str, float]]] = defaultdict(list)
    for row in rows:
        groups[tuple(row[name] for name in columns[:5])].append(row)
    names = list(METHODS)
    table = Table(title=f"{experiment}: mean ± standard deviation over seeds, in %", title_justify="left")
    for name in ("data", "task size", "method", "OOD ratio", "ACC ↑", "FGT ↓", "n"):
        table.add_column(name, justify="left" if name in ("data", "method") else "right")
    order = sorted(
        groups, key=lambda key: (key[0], key[1], names.index(str(key[2])) if key[2] in names else 99, key[3])
    )
    for key in order:
        dataset, task_size, method, ratio, convention = key
        members = groups[key]
        external = method in METHODS and METHODS[str(method)].external
        table.add_row(
            str(dataset),
            str(task_size),
            METHODS[str(method)].title if method in METHODS else str(method),
            f"{ratio:.1f}" if external else "",
            _spread(row["acc"] for row in members),
            _spread(row[f"fgt_{convention}"] for row in members),
            str(len(members)),
        )
    return table


def _spread(values: Iterable[float]) -> str:
    percent = [100 * value for value in values]
    return f"{mean(percent):.1f} ± {stdev(percent):.1f}" if len(percent) > 1 else f"{percent[0]:.1f}"


def status_table(states: list[TrialState]) -> Table:
    """Trials of each experiment by how they stand, the share of the work done, and the time left."""
    table = Table(box=None)
    for name in ("experiment", "done", "running", "failed", "waiting", "work done", "time left"):
        table.add_column(name, justify="left" if name == "experiment" else "right")
    for experiment in dict.fromkeys(state.experiment for state in states):
        own = [state for state in states if state.experiment == experiment]
        counts = [str(sum(state.state == kind for state in own)) for kind in ("done", "running", "failed", "waiting")]
        left = duration(seconds_left(own)) if any(state.state == "running" for state in own) else ""
        table.add_row(experiment, *counts, f"{100 * work_share(own):.0f}%", left)
    return table
