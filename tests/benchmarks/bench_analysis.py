"""Analysis of made trials of 20 stages: 1,000 in files of their own, 10,000 packed. Seconds to load and fill tables.

The trials are ten methods of Table 1 with a hundred seeds, at ten learning rates for the packed ones. The measured
process does nothing else; its peak memory is the system's count. Then the commands `plan`, `status` and `report` on an
experiment of 3,000 such trials at three learning rates: none finished, 1,000 in files of their own, all packed. The
results (300 MB) are made in the folder given as the only argument and kept there, or removed at the end.
"""

import json
import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

from gd_ray.paper import TABLES
from gd_ray.spec import TrialSpec

SEEDS, RATES, TASK_SIZE = 100, 10, 5
PLANNED_RATES = 3
GD_RAY = str(Path(sys.executable).with_name("gd-ray"))
KINDS = ("trials", "stages")


def specs_of(rates: int) -> list[TrialSpec]:
    """Return the trials of an experiment, one learning rate after the other."""
    return [
        TrialSpec(method=method, task_size=TASK_SIZE, seed=seed, learning_rate=0.01 * (1 + rate))
        for rate in range(rates)
        for method in TABLES[1]
        for seed in range(SEEDS)
    ]


def make(folder: Path, rates: int, planned: int = 0) -> None:
    """Write one trial of each method through the store, and copies of it with other seeds, rates and counts.

    The experiment has the trials of `planned` rates, if these are more: those are not finished.
    """
    from gd_ray.store import read_rows
    from gd_ray.table_files import write_table
    from tests.helpers.made import select, write_made

    rng = np.random.default_rng(0)
    patterns: dict[str, dict[str, pa.Table]] = {}
    for spec in specs_of(rates):
        if spec.method.name not in patterns:
            scratch = str(folder / "scratch")
            write_made(scratch, "made", spec, lambda s, r: 60)
            patterns[spec.method.name] = {kind: read_rows(scratch, kind)[0] for kind in KINDS}
            shutil.rmtree(scratch)
        fields = {"seed": spec.seed, "learning_rate": spec.learning_rate}
        for kind, table in patterns[spec.method.name].items():
            changed = {
                "trials": fields | {"acc": rng.uniform(0.5, 0.7), "fgt_paper": rng.uniform(0, 0.2)},
                "stages": {"hits": rng.integers(30, 90, len(table)).tolist()},
            }
            row = _replaced(table, {"trial_id": spec.trial_id, **changed[kind]})
            write_table(str(folder), kind, spec.trial_id, row)
    select(str(folder), "made", specs_of(max(rates, planned)))


def _replaced(table: pa.Table, values: dict[str, object]) -> pa.Table:
    for name, value in values.items():
        index = table.schema.get_field_index(name)
        kind = pa.string() if name == "trial_id" else table.schema.field(name).type
        column = pa.array(value if isinstance(value, list) else [value] * len(table), kind)
        table = table.set_column(index, name, column)
    return table


def measure(folder: str) -> None:
    """In a process of its own."""
    import analysis
    from analysis.aggregate import settings
    from analysis.formats import grids
    from analysis.tables import all_tables, gap_closed

    started = perf_counter()
    results = analysis.load(folder)
    trials = perf_counter() - started
    rows = len(results.stages)
    loaded = perf_counter()
    print(
        f"load: {loaded - started:.1f} s, of it {trials:.1f} s for {len(results.trials)} trials and the rest for "
        f"{rows} rows of stages; under 2 s",
        flush=True,
    )
    found = settings(results)
    tables = all_tables(found)
    parts = [part for table in tables for part in grids(table)]
    for setting in found:
        gap_closed(setting)
    print(f"all {len(tables)} tables, {len(parts)} grids: {perf_counter() - loaded:.1f} s; under 10 s")
    again = perf_counter()
    print(f"curves of all trials ({len(results.curves)} points): {perf_counter() - again:.1f} s")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6:.2f} GB; under 1 GB")


def time_commands(folder: Path, results: str) -> None:
    """Time the commands that a person waits for, each with its imports."""
    keys = {"method": list(TABLES[1]), "task_size": [TASK_SIZE], "seed": list(range(SEEDS))}
    keys["learning_rate"] = [0.01 * (1 + rate) for rate in range(PLANNED_RATES)]
    (folder / "made.yaml").write_text(json.dumps(keys))
    commands = {
        "plan": ["made.yaml", "--results", results],
        "status": [results],
        "report": [results, "--out", f"{results}.html"],
    }
    for command, arguments in commands.items():
        before, started = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
        subprocess.run([GD_RAY, command, *arguments], cwd=folder, check=True, stdout=subprocess.DEVNULL)
        seconds, after = perf_counter() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
        busy = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        print(f"gd-ray {command}: {seconds:.1f} s, {busy:.1f} s of them on CPUs; under 10 s", flush=True)


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "measure":
        measure(sys.argv[2])
        return
    from gd_ray.store import pack

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    made = {"unpacked": (1, 1), "packed": (RATES, RATES)}
    planned = {"none finished": 0, "1,000 finished, a file each": 1, "all packed": PLANNED_RATES}
    made |= {f"planned-{rates}": (rates, PLANNED_RATES) for rates in planned.values()}
    for name, (rates, all_rates) in made.items():
        if not (folder / name / "experiments").exists():
            started = perf_counter()
            make(folder / name, rates, all_rates)
            print(f"{10 * SEEDS * rates} trials made in {perf_counter() - started:.0f} s", flush=True)
    started = perf_counter()
    pack(str(folder / "packed"))
    print(f"packed in {perf_counter() - started:.0f} s", flush=True)
    pack(str(folder / f"planned-{PLANNED_RATES}"))
    for title, name in (("a file each", "unpacked"), ("packed", "packed")):
        print(f"{title}:", flush=True)
        subprocess.run([sys.executable, __file__, "measure", str(folder / name)], check=True)
    for title, rates in planned.items():
        print(f"{10 * SEEDS * PLANNED_RATES} trials, {title}:", flush=True)
        time_commands(folder, f"planned-{rates}")
    if len(sys.argv) == 1:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
