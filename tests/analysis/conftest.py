"""Results that several files of tests look at."""

import zlib
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis import report
from gd_ray.data.pixels import Statistics
from gd_ray.methods import Method
from gd_ray.paper import TABLES
from gd_ray.store import write_class_names, write_failure
from gd_ray.wild.manifest import Manifest, Shard
from gd_ray.wild.stream import image_column
from tests.helpers.known_results import LEVELS, write_known
from tests.helpers.made import made_spec, right, select, write_made

NASTY = Method(name="<i>x</i>", title='<img src=x onerror="alert(1)">', previous="local")


def write_stream(folder, groups=(60, 60, 80)):
    """A prepared stream of one shard in several row groups."""
    folder.mkdir(parents=True)
    images = np.random.default_rng(0).integers(0, 256, (sum(groups), 32, 32, 3), np.uint8)
    starts = np.cumsum([0, *groups])
    parts = [images[a:b] for a, b in pairwise(starts)]
    with pq.ParquetWriter(folder / "0.parquet", pa.schema([("image", pa.binary(3072))])) as writer:
        for part in parts:
            writer.write_table(pa.table({"image": image_column(part)}))
    crcs = tuple(zlib.crc32(part.data) for part in parts)
    shard = Shard("0.parquet", len(images), (folder / "0.parquet").stat().st_size, groups, crcs)
    one = (0.5, 0.5, 0.5)
    manifest = Manifest(32, len(images), (shard,), "made", 0, Statistics(one, one), 0, {}, 0, ())
    (folder / "manifest.json").write_text(manifest.to_json())


@pytest.fixture(scope="session")
def report_folder(tmp_path_factory):
    """Three seeds of every method at two task sizes, a sweep, distances, a stream, a running and a failed trial."""
    root = tmp_path_factory.mktemp("report")
    results, storage = str(root / "results"), str(root / "storage")
    write_stream(Path(storage, "streams", "glyphs-200"))
    base = {"dataset": "glyphs", "num_classes": 8, "stream": "glyphs:200"}
    for seed in range(3):
        for level, method in enumerate([*TABLES[1], NASTY]):
            for size in (2, 4):
                spec = made_spec(method, seed, **base, task_size=size)
                write_made(results, "table1", spec, right(level - 10, seed))
        for ratio in (0.0, 0.5, 1.0):
            write_made(results, "ood", made_spec("gd+ext", seed, **base, ood_ratio=ratio), right(-3, seed))
        for distance in (1, 2, 3):
            spec = made_spec("gd+ext", seed, **{**base, "stream": f"imagenet2011-distance-{distance}"})
            write_made(results, "distance", spec, right(-distance, seed))
    running, failed = made_spec("gd", 7, **base), made_spec("gd", 8, **base)
    write_made(results, "table1", running, right(0, 0), stages=2, storage=storage)
    select(results, "table1", [running, failed], storage=storage)
    write_failure(results, failed.trial_id, "ValueError: <b>bad</b>", "error.txt")
    write_class_names(results, "glyphs", ["<u>A</u>", *"BCDEFGH"])
    return Path(results)


@pytest.fixture(scope="session")
def made_report(report_folder):
    path, results = report.write_report(str(report_folder))
    return path.read_text(), results


@pytest.fixture
def known_results(tmp_path):
    """Three seeds of four methods whose every statistic is known in closed form."""
    for method, level in LEVELS.items():
        for seed in range(3):
            write_known(tmp_path, method, seed, level)
    return tmp_path
