"""Two results of the same command, one undisturbed: every row, every weight, and files that should not be there."""

from collections import Counter
from pathlib import Path

import pyarrow.parquet as pq

from gd_ray.store import KINDS

VARIABLE = ("seconds", "host", "peak_memory")
"""What columns start with that may differ between two runs on one machine."""


def differences(expected: Path, found: Path) -> list[str]:
    """Describe how results differ from those of an undisturbed run, in a few words for each kind of row and model."""
    wrong = []
    for kind in KINDS:
        before, after = _rows(expected / kind), _rows(found / kind)
        missing, unknown = (before - after).total(), sum(after[row] for row in after if row not in before)
        twice = sum(after[row] - before[row] for row in after if row in before and after[row] > before[row])
        changed = min(missing, unknown)
        counts = {"changed": changed, "lost": missing - changed, "duplicate": twice, "unknown": unknown - changed}
        wrong += [f"{kind}: {number} {name}" for name, number in counts.items() if number]
    models = {path.name: path.read_bytes() for path in (expected / "models").glob("[!.]*")}
    for name, content in models.items():
        path = found / "models" / name
        if not path.exists():
            wrong.append(f"models: {name} lost")
        elif path.read_bytes() != content:
            wrong.append(f"models: {name} changed")
    return wrong


def _rows(folder: Path) -> Counter[str]:
    """Count the rows of all files: their texts, in which numbers have all their digits."""
    rows: Counter[str] = Counter()
    for path in folder.glob("[!.]*.parquet"):
        table = pq.ParquetFile(path).read()
        table = table.drop_columns([name for name in table.column_names if name.startswith(VARIABLE)])
        rows.update(repr(row) for row in table.to_pylist())
    return rows


def leftovers(expected: Path, found: Path) -> list[str]:
    """Return files that an undisturbed run does not leave, but logs of failed trials and lists of experiments."""
    return sorted(_files(found) - _files(expected))


def _files(folder: Path) -> set[str]:
    paths = (path.relative_to(folder) for path in folder.rglob("*") if not path.is_dir())
    return {str(path) for path in paths if path.name != "error.txt" and "experiments" not in path.parts}
