"""Storage that goes away while trials run: they wait for it, nothing is computed twice and none is given up."""

import time

import pandas as pd
import pytest

from gd_ray.errors import Unreachable
from gd_ray.storage import write_atomic
from tests.helpers.disk import Disk
from tests.helpers.runs import alone, frame, tiny
from trials import outage, worker
from trials.outage import outlasted, write_patiently
from trials.registry import DataLocations


@pytest.fixture
def disk(tmp_path, monkeypatch):
    monkeypatch.setattr(outage, "_LOOK_S", 0.05)
    monkeypatch.setattr(outage, "OUTLAST_S", 60.0)
    return Disk(tmp_path / "disk")


def test_a_file_is_written_once_the_disk_is_back(disk):
    file, tries = disk.path / "file", []

    def write():
        tries.append(1)
        try:
            write_atomic(str(file), b"content")
        except OSError as error:
            raise Unreachable("it is away") from error

    disk.go_away(0.5)
    write_patiently(write, str(disk.path))
    assert (file.read_bytes(), len(tries)) == (b"content", 2)
    assert [path.name for path in disk.content.iterdir()] == ["file"]


@pytest.mark.parametrize("full", [True, False])
def test_a_disk_that_is_full_or_stays_away_is_an_error(disk, full, monkeypatch):
    monkeypatch.setattr(outage, "OUTLAST_S", 0.3)
    tries = []

    def write():
        tries.append(1)
        raise Unreachable(f"refused {len(tries)}")

    if not full:
        disk.go_away()
    started = time.monotonic()
    with pytest.raises(Unreachable, match=f"refused {2 if full else 1}"):
        write_patiently(write, str(disk.path))
    assert full or time.monotonic() - started >= 0.3


def test_an_outage_is_known_from_other_failures(disk, monkeypatch):
    assert not outlasted(str(disk.path))
    disk.go_away(0.3)
    assert outlasted(str(disk.path))
    monkeypatch.setattr(outage, "OUTLAST_S", 0.3)
    disk.go_away()
    assert not outlasted(str(disk.path))


def test_no_stage_is_computed_again_for_a_disk_that_was_away(disk, tmp_path, monkeypatch):
    spec, stages, failed = tiny("gd"), [], []
    results, storage = str(disk.path / "results"), str(disk.path / "storage")
    original = worker.write_stages

    def write(*words):
        if len(failed) == len(stages):  # the first time in each stage, and at the end
            disk.go_away(0.3)
        try:
            original(*words)
        except Unreachable:
            failed.append(len(stages))
            raise

    monkeypatch.setattr(worker, "write_stages", write)
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [])
    job = worker.Job(spec, results, storage, DataLocations(), "run")
    assert worker.run_job(job, 1, None, lambda stage: stages.append(stage.stage))
    assert stages == [1, 2, 3]
    assert failed == [0, 1, 2, 3]
    pd.testing.assert_frame_equal(frame(results, "stages"), alone([spec], tmp_path / "own"), check_exact=True)
    assert spec.trial_id in worker.finished(results)
