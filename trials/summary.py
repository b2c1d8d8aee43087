"""A plain table for the terminal: how experiments stand."""

from rich.table import Table

from trials.ledger import TrialState, seconds_left
from trials.view import duration, work_share


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
