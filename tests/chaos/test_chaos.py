"""The plan of a chaos campaign, and its comparison, which must see whatever a fault may do to results."""

import os
import shutil
import subprocess
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.chaos.compare import differences, leftovers
from tests.chaos.outcomes import Outcome, add_outcome, read_outcomes, table
from tests.chaos.plan import LASTS, plan
from tests.chaos.processes import Process, is_spare


def test_a_plan_is_seeded_and_a_longer_one_begins_with_it():
    runs = plan(3, 40)
    assert plan(3, 60)[:40] == runs
    assert plan(4, 40) != runs
    assert [run.number for run in runs] == list(range(40))
    assert Counter(run.fault for run in runs[:24]) == dict.fromkeys(LASTS, 2)
    assert all(0 < run.moment < 1 and 0 <= run.victim < 1 for run in runs)
    for run in runs:
        least, most = LASTS[run.fault]
        assert least <= run.seconds <= most
    assert {run.fault for run in plan(0, 9, ["gcs", "trial"])} == {"gcs", "trial"}


@pytest.fixture
def folders(tmp_path):
    """Results of an undisturbed run, and a copy of them."""
    stages = {"trial_id": ["a"] * 3, "stage": [1, 2, 2], "nll": [0.1, float("nan"), 0.3], "seconds_model": [1.0, 2, 3]}
    for kind, columns in {"stages": stages, "trials": {"trial_id": ["a"], "peak_memory": [7]}}.items():
        (tmp_path / "expected" / kind).mkdir(parents=True)
        pq.write_table(pa.table(columns), tmp_path / "expected" / kind / "a.parquet")
    (tmp_path / "expected" / "models").mkdir()
    (tmp_path / "expected" / "models" / "a-1.safetensors").write_bytes(bytes(100))
    shutil.copytree(tmp_path / "expected", tmp_path / "found")
    return tmp_path / "expected", tmp_path / "found"


def change(folder, kind, edit):
    path = folder / kind / "a.parquet"
    pq.write_table(edit(pq.ParquetFile(path).read()), path)


def test_equal_results_may_differ_in_times_and_in_the_order_of_rows(folders):
    expected, found = folders
    assert differences(expected, found) == leftovers(expected, found) == []
    change(found, "stages", lambda rows: rows.set_column(3, "seconds_model", pa.array([9.0, 9, 9])).take([2, 0, 1]))
    assert differences(expected, found) == []


@pytest.mark.parametrize(
    ("edit", "says"),
    [
        (lambda rows: rows.slice(1), "stages: 1 lost"),
        (lambda rows: pa.concat_tables([rows, rows.slice(2)]), "stages: 1 duplicate"),
        (lambda rows: rows.set_column(2, "nll", pa.array([0.1, float("nan"), 0.3 + 1e-16])), "stages: 1 changed"),
        (lambda rows: rows.set_column(0, "trial_id", pa.array(["a", "a", "b"])), "stages: 1 changed"),
        (lambda rows: rows.drop_columns("nll"), "stages: 3 changed"),
    ],
)
def test_a_lost_a_repeated_and_a_changed_row_are_found(folders, edit, says):
    expected, found = folders
    change(found, "stages", edit)
    assert differences(expected, found) == [says]


def test_a_lost_trial_is_found_and_one_that_is_there_twice(folders):
    expected, found = folders
    shutil.copy(found / "trials" / "a.parquet", found / "trials" / "packed-1.parquet")
    (found / "stages" / "a.parquet").unlink()
    assert differences(expected, found) == ["trials: 1 duplicate", "stages: 3 lost"]


def test_a_changed_byte_of_a_model_and_a_lost_model_are_found(folders):
    expected, found = folders
    model = found / "models" / "a-1.safetensors"
    model.write_bytes(bytes(99) + b"\1")
    assert differences(expected, found) == ["models: a-1.safetensors changed"]
    model.unlink()
    assert differences(expected, found) == ["models: a-1.safetensors lost"]


def test_a_temporary_file_is_found_and_the_log_of_a_failed_trial_is_not(folders):
    expected, found = folders
    for name in ("stages/.a.parquet.1f.tmp", "tune/trials-1/a/error.txt", "experiments/grid/1.parquet"):
        (found / name).parent.mkdir(parents=True, exist_ok=True)
        (found / name).touch()
    assert leftovers(expected, found) == ["stages/.a.parquet.1f.tmp"]
    assert differences(expected, found) == []


def test_processes_are_known_by_their_program_or_their_title():
    titles = {
        "ray::ImplicitFunc.train\0": "trial",
        "ray::MapWorker(MapBatches(_Scorer)).submit": "scorer",
        "/venv/ray/core/src/ray/raylet/raylet\0--raylet_socket_name=x\0--python=gcs_server": "raylet",
        "/venv/ray/core/src/ray/gcs/gcs_server\0": "gcs",
        "/venv/bin/python\0/venv/ray/autoscaler/monitor.py\0": "",
    }
    assert {title: Process(1, 0, 0, "S", title).role for title in titles} == titles


def test_outcomes_are_read_back_and_summarized(tmp_path):
    good = Outcome(0, 1, "gcs", "gcs_server", 5.5, 2, 60.0, 40.0, "", "gd-ray: Ray's GCS died.", "abc")
    bad = Outcome(0, 2, "gcs", "gcs_server", 9.5, 1, 80.0, 40.0, "stages: 1 lost", "done, so it said", "abc")
    for outcome in (good, bad):
        add_outcome(tmp_path / "runs.csv", outcome)
    assert read_outcomes(tmp_path / "runs.csv") == [good, bad]
    text = table([good, bad])
    assert "| gcs | 2 | 1 | 1.5 | 30, 40 | gd-ray: Ray's GCS died. |" in text
    assert "2 runs, 1 of them equal to an undisturbed run and clean." in text
    assert "- 2 gcs (gcs_server): stages: 1 lost" in text


@pytest.mark.parametrize(
    ("title", "log", "spare"),
    [
        ("ray::IDLE", "", True),
        ("ray::IDLE", ":job_id:02000000\n:task_name:_clock\n", False),
        ("ray::ImplicitFunc", "", False),
    ],
)
def test_a_worker_is_a_spare_of_the_cluster_if_no_run_ever_had_it(title, log, spare, tmp_path):
    with (tmp_path / "worker.out").open("w") as out:
        print(log, end="", file=out, flush=True)
        worker = subprocess.Popen(["sleep", "60"], stdout=out)
    try:
        assert is_spare(Process(worker.pid, os.getpid(), 0, "S", title)) == spare
    finally:
        worker.kill()
        worker.wait()
    assert not is_spare(Process(worker.pid, os.getpid(), 0, "S", title))
