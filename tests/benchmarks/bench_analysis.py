"""Analysis of made trials of 20 stages: 1,000 in files of their own, 10,000 packed. Seconds to load and fill tables.

The trials are ten methods of Table 1 with a hundred seeds, at ten learning rates for the packed ones. The measured
process does nothing else; its peak memory is the system's count. The results (200 MB) are made in the folder given as
the only argument and kept there, or removed at the end.
"""

import resource
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa

SEEDS, RATES, TASK_SIZE = 100, 10, 5
KINDS = ("trials", "stages")


def make(folder: Path, rates: int) -> None:
    """Write one trial of each method through the store, then copies of it with other seeds, rates and counts."""
    from gd_ray.paper import TABLES
    from gd_ray.spec import TrialSpec
    from gd_ray.store import read_rows
    from gd_ray.table_files import write_table
    from tests.helpers.made import select, write_made

    rng = np.random.default_rng(0)
    specs = []
    for method in TABLES[1]:
        scratch = str(folder / "scratch")
        write_made(scratch, "made", TrialSpec(method=method, task_size=TASK_SIZE), lambda s, r: 60)
        pattern = {kind: read_rows(scratch, kind)[0] for kind in KINDS}
        shutil.rmtree(scratch)
        for copy in range(SEEDS * rates):
            values = {"seed": copy % SEEDS, "learning_rate": 0.01 * (1 + copy // SEEDS)}
            spec = TrialSpec(method=method, task_size=TASK_SIZE, **values)
            specs.append(spec)
            changed = {
                "trials": values | {"acc": rng.uniform(0.5, 0.7), "fgt_paper": rng.uniform(0, 0.2)},
                "stages": {"hits": rng.integers(30, 90, len(pattern["stages"])).tolist()},
            }
            for kind, table in pattern.items():
                row = _replaced(table, {"trial_id": spec.trial_id, **changed[kind]})
                write_table(str(folder), kind, spec.trial_id, row)
    select(str(folder), "made", specs)


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


def main() -> None:
    if len(sys.argv) == 3 and sys.argv[1] == "measure":
        measure(sys.argv[2])
        return
    from gd_ray.store import pack

    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    for name, rates in (("unpacked", 1), ("packed", RATES)):
        if not (folder / name / "trials").exists():
            started = perf_counter()
            make(folder / name, rates)
            print(f"{SEEDS * rates * 10} trials made in {perf_counter() - started:.0f} s", flush=True)
    started = perf_counter()
    pack(str(folder / "packed"))
    print(f"packed in {perf_counter() - started:.0f} s", flush=True)
    for title, name in (("a file each", "unpacked"), ("packed", "packed")):
        print(f"{title}:", flush=True)
        subprocess.run([sys.executable, __file__, "measure", str(folder / name)], check=True)
    if len(sys.argv) == 1:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
