"""Add the finished trials of a results folder to the published ones: `make publish FROM=results`.

Each kind of CPU has a folder of its own under analysis/evidence/more. A trial that is there already stays as it is.
`make evidence` then writes the tables, figures and findings anew.
"""

import re
import sys
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path

from analysis.evidence import FOLDER
from analysis.results import Results, load
from gd_ray import store
from gd_ray.errors import UserError
from gd_ray.naming import counted
from gd_ray.storage import delete_file, join
from gd_ray.table_files import write_table

EXPERIMENTS = ("reduced-more", "reduced-controls")
"""Experiments whose trials are published under `more`."""
_SMALL_WORDS = re.compile(r"\((r|tm)\)|\b(processor|cpu)\b|@ *[\d.]+ *ghz|[^a-z0-9]")


def folder_of(cpu_model: str) -> str:
    """Return the name of the folder of a kind of CPU, such as intel-xeon-family-6-model-85."""
    return "-".join(_SMALL_WORDS.sub(" ", cpu_model.lower()).split())


def publish(source: str, target: Path) -> dict[str, int]:
    """Add finished trials to the folder of their kind of CPU under `target`; return the new ones of each folder."""
    results = load(source)
    selected = {trial for name in EXPERIMENTS for trial in results.experiments.get(name, ())}
    trials = results.trials[results.trials["trial_id"].isin(selected)].astype({"trial_id": str})
    if trials.empty:
        raise UserError(f"results {source!r} have no finished trial of {' or '.join(EXPERIMENTS)}; run these first.")
    if unknown := trials.loc[trials["cpu_model"].isna(), "trial_id"].tolist():
        raise UserError(f"trials {', '.join(unknown)} do not name their CPU and pair with no others; run them again.")
    by_folder = trials.groupby(trials["cpu_model"].astype(str).map(folder_of))["trial_id"]
    return {name: _add(results, set(ids), target / name) for name, ids in by_folder}


def _add(results: Results, finished: set[str], target: Path) -> int:
    address = str(target)
    new = finished - store.finished(address)
    for kind in reversed(store.KINDS):  # the row in `trials` last, for it marks a trial as finished
        for trial in sorted(new):
            rows, _ = store.read_rows(results.address, kind, [trial])
            if len(rows):
                place = rows.column_names.index("trial_id")
                write_table(address, kind, trial, rows.set_column(place, "trial_id", rows["trial_id"].cast("string")))
    for dataset, names in results.class_names.items():
        store.write_class_names(address, dataset, names)
    _add_selections(results.address, address, finished)
    store.pack(address)
    return len(new)


def _add_selections(source: str, target: str, finished: Collection[str]) -> None:
    """Copy the selections of published trials without paths; one with more trials replaces that of the same command."""
    known = store.read_selections(target)
    for selection in store.read_selections(source):
        rows = [row for row in selection.trials if row["trial_id"] in finished]
        if selection.experiment not in EXPERIMENTS or not rows:
            continue
        own = replace(selection, storage="", trials=rows)
        for before in known:
            same = (before.experiment, before.command) == (own.experiment, own.command)
            if same and before.digest != own.digest and {row["trial_id"] for row in before.trials} <= set(finished):
                delete_file(join(target, f"experiments/{before.experiment}/{before.digest}.parquet"))
        store.write_selection(target, own)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("publish: name one results folder: make publish FROM=results")
    try:
        for name, number in publish(sys.argv[1], FOLDER / "more").items():
            print(f"{name}: {counted(number, 'new trial')}")
    except UserError as error:
        sys.exit(f"publish: {error}")
