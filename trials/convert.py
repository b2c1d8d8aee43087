"""`gd-ray convert`: results of version 0.1 in the present layout, with their new ids."""

import json
from dataclasses import fields
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from gd_ray.errors import UserError
from gd_ray.methods import Method
from gd_ray.rows import table_of
from gd_ray.spec import TrialSpec
from gd_ray.storage import read_files
from gd_ray.store import Selection, finished, pack, write_class_names, write_selection
from gd_ray.table_files import write_table
from trials.runner import selection_row

_DROPPED = ("depth", "width", "hits", "totals", "status", "experiment")
_OF_TRIAL = ("method", "dataset", "task_size", "seed", "experiment")


def convert_results(old: str, new: str) -> tuple[int, int]:
    """Write the finished trials of OLD to NEW, packed, and its experiments as selections.

    Return their number, and that of the unfinished trials, which are left out.
    """
    if finished(new):
        raise UserError(f"results {new!r} exist already; give a new folder.")
    specs: dict[str, TrialSpec] = {}
    experiments: dict[str, list[str]] = {}
    for path, content in read_files(old, "trials", ".parquet"):
        experiments.setdefault(path.parent.name.removeprefix("experiment="), []).append(path.stem)
        if path.stem not in specs:
            (row,) = _table(content).to_pylist()
            specs[path.stem] = spec = _spec(row)
            flat = {"trial_id": spec.trial_id, **spec.flat()}
            others = {name: value for name, value in row.items() if name not in {*flat, *_DROPPED}}
            digests = {name: row.get(name) for name in ("data_digest", "stream_digest")}
            write_table(new, "trials", spec.trial_id, table_of([flat | others | digests | {"old_trial_id": path.stem}]))
    if not specs:
        raise UserError(f"results {old!r} have no finished trial of version 0.1; give the folder that it wrote to.")
    for kind in ("stages", "confusions", "samples"):
        for path, content in read_files(old, kind, ".parquet"):
            if path.stem in specs:
                table, spec = _table(content), specs[path.stem]
                if kind == "stages":
                    table = _stages(table)
                elif kind == "samples":
                    table = _samples(table, spec)
                ids = pa.array([spec.trial_id] * len(table), pa.string())
                write_table(new, kind, spec.trial_id, table.set_column(0, "trial_id", ids))
    for name, old_ids in experiments.items():
        runs = [json.loads(content) for path, content in read_files(old, f"ledger/experiment={name}", ".json")]
        for run in runs or [{"trials": [{"trial_id": trial_id} for trial_id in old_ids]}]:
            rows = [selection_row(specs[row["trial_id"]]) for row in run["trials"] if row["trial_id"] in specs]
            selection = Selection(name, run.get("storage", ""), run.get("command"), rows, float(run.get("time", 0)))
            write_selection(new, selection)
    for path, content in read_files(old, "classes", ".json"):
        write_class_names(new, path.stem, json.loads(content)["names"])
    ledgers = [json.loads(content) for _, content in read_files(old, "ledger", ".json")]
    planned = {row["trial_id"] for ledger in ledgers for row in ledger["trials"]}
    begun = {path.stem for path, _ in read_files(old, "stages", ".parquet")}
    return pack(new)["trials"], len((planned | begun) - specs.keys())


def _table(content: bytes) -> pa.Table:
    return pq.ParquetFile(pa.BufferReader(content)).read()


def _spec(row: dict[str, Any]) -> TrialSpec:
    of_method = {f.name: row[f"method_{f.name}"] for f in fields(Method) if f"method_{f.name}" in row}
    own = {f.name: row[f.name] for f in fields(TrialSpec) if f.name in row and f.name != "method"}
    network = f"wrn-{row['depth']}-{row['width']}"
    return TrialSpec(**own, network=network, method=Method(name=row["method"], **of_method))


def _stages(table: pa.Table) -> pa.Table:
    """Drop the trial's fields, losses that it has not, and steps that it does not take."""
    empty = [name for name in table.column_names if name.startswith("loss_") and table[name].null_count == len(table)]
    for step in (name.removeprefix("images_") for name in table.column_names if name.startswith("images_")):
        columns = [f"images_{step}", f"seconds_{step}"]
        empty += columns if not any(pc.sum(table[name]).as_py() for name in columns) else []
    kept = [name for name in table.column_names if name not in {*_OF_TRIAL, *empty}]
    return table.select(kept).rename_columns([name.replace("mean_confidence", "mean_score") for name in kept])


def _samples(table: pa.Table, spec: TrialSpec) -> pa.Table:
    table = table.rename_columns([{"confidence": "score"}.get(name, name) for name in table.column_names])
    previous = "logit" if spec.convention == "released" else "probability"
    kind = pc.if_else(pc.equal(table["source"], "ood"), "log likelihood", previous)
    kind = pc.if_else(pc.is_nan(table["score"]), "none", kind)
    return table.add_column(table.column_names.index("score") + 1, "score_kind", kind)
