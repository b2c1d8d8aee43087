"""Analysis of 10,000 made trials of 20 stages, a file each as trials write them: seconds to load, to fill all tables.

The trials are those of a hundred seeds: ten methods of Table 1 at ten learning rates. The measured process does
nothing else; its peak memory is the system's count. The results (100 MB) are made in the folder given as the only
argument and kept there, or removed at the end.
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
import pyarrow.parquet as pq

from gd_ray.results import ROW

sys.path.insert(0, str(Path(__file__).parent.parent / "analysis"))

SEEDS, RATES, TASK_SIZE = 100, 10, 5


def make(folder: Path) -> None:
    """Writes one trial of each method through the real writer, then copies of it with other seeds, rates and counts."""
    from made import write_made

    from gd_ray.methods import TABLES
    from gd_ray.spec import TrialSpec
    from trials.results import file_of, write_atomically

    rng = np.random.default_rng(0)
    for method in TABLES[1]:
        scratch = folder / "scratch"
        spec = TrialSpec(method=method, task_size=TASK_SIZE)
        trial = write_made(str(scratch), "made", spec, lambda s, r: 60)
        pattern = {kind: pq.ParquetFile(scratch / f"{kind}/experiment=made/{trial}.parquet").read() for kind in KINDS}
        for copy in range(SEEDS * RATES):
            name = f"{method.replace('+', '-')}-{copy}"
            values = {"seed": copy % SEEDS, "learning_rate": 0.01 * (1 + copy // SEEDS)}
            hits = rng.integers(30, 90, len(pattern["stages"])).tolist()
            for kind, table in pattern.items():
                changed = values | {"trial_id": name}
                if kind == "stages":
                    changed["hits"] = hits
                else:
                    changed |= {"acc": rng.uniform(0.5, 0.7), "fgt_paper": rng.uniform(0, 0.2), "hits": [hits]}
                made = _replaced(table, changed)
                row = made.drop_columns(["trial_id"]).to_pylist()[0] if kind == "trials" else None
                metadata = {ROW: json.dumps(row)} if row else None
                write_atomically(made, file_of(str(folder), kind, "made", name), metadata)
        shutil.rmtree(scratch)


KINDS = ("trials", "stages")


def _replaced(table: pa.Table, values: dict[str, object]) -> pa.Table:
    for name, value in values.items():
        index = table.schema.get_field_index(name)
        if index >= 0:
            kind = table.schema.field(name).type
            column = pa.array(value if isinstance(value, list) else [value] * len(table), kind)
            table = table.set_column(index, table.schema.field(name), column)
    return table


def measure(folder: str) -> None:
    """In a process of its own."""
    import analysis
    from analysis.formats import grids
    from analysis.settings import settings
    from analysis.tables import all_tables, gap_closed

    started = perf_counter()
    results = analysis.load(folder)
    trials = perf_counter() - started
    rows = len(results.stages)
    loaded = perf_counter()
    print(
        f"load: {loaded - started:.1f} s, of it {trials:.1f} s for {len(results.trials)} trials and the rest for "
        f"{rows} rows of stages; under 5 s",
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
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(tempfile.mkdtemp())
    if not (folder / "trials").exists():
        started = perf_counter()
        make(folder)
        print(f"made in {perf_counter() - started:.0f} s", flush=True)
    shutil.rmtree(folder / ".cache", ignore_errors=True)
    for name in ("the first time", "again, from the cache of the first"):
        print(f"{name}:", flush=True)
        subprocess.run([sys.executable, __file__, "measure", str(folder)], check=True)
    if len(sys.argv) == 1:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
