"""Claims of trials: two runs at one trial, dead and stuck processes, and the rates of a heartbeat."""

import json
import os
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from gd_ray.heartbeat import Progress, progress_file, read_progress, read_running
from gd_ray.storage import exists
from trials import claim, worker
from trials.claim import acquire, beat, heartbeat, owns, release
from trials.cost import StepCost
from trials.experiments import experiment_named
from trials.registry import DataLocations

COST = [StepCost(1, "teacher", 100, 3.0), StepCost(2, "model", 100, 3.0), StepCost(2, "evaluate", 400, 1.0)]


@pytest.fixture
def path(tmp_path):
    return Path(progress_file(str(tmp_path), "one"))


@pytest.fixture
def fast(monkeypatch):
    monkeypatch.setattr("trials.claim.HEARTBEAT_S", 0.02)


def change(path, **values):
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def wait_until(condition, seconds=10):
    deadline = time.time() + seconds
    while not condition():
        assert time.time() < deadline
        time.sleep(0.01)


def test_a_heartbeat_has_the_stage_and_the_rates_of_a_trial(path, tmp_path, fast):
    acquire(str(path), "run")
    with heartbeat(str(path), "run", COST) as report:
        report(2, "model", 0, 100)
        time.sleep(0.2)
        report(2, "model", 50, 100)
        wait_until(lambda: read_progress(str(path)).share >= 0.4)
        now = read_running(str(tmp_path))["one"]
    assert (now.stage, now.step, now.pid) == (2, "model", os.getpid())
    assert now.share == (300 + 150) / 1000
    assert 0 < now.images_per_second < 50 / 0.2
    assert now.share_per_second / now.images_per_second == pytest.approx(
        0.003, rel=0.01
    )  # an image is 3 of 1000 passes
    assert not list(path.parent.iterdir())


def test_the_second_run_at_a_trial_waits_for_the_first(path):
    acquire(str(path), "first")
    acquired = threading.Event()
    second = threading.Thread(target=lambda: (acquire(str(path), "second"), acquired.set()))
    second.start()
    with heartbeat(str(path), "first", COST):
        assert not acquired.wait(1.5)
    assert acquired.wait(10)
    second.join()
    assert read_progress(str(path)).run == "second"


def test_waiting_can_be_cancelled(path, tmp_path):
    model, acquired = tmp_path / "first.pt", []
    acquire(str(path), "first")
    second = threading.Thread(target=lambda: acquired.append(acquire(str(path), "second", cancelled=model.exists)))
    second.start()
    time.sleep(1)
    assert acquired == []
    model.touch()
    second.join(5)
    assert acquired == [False]
    assert read_progress(str(path)).run == "first"


def test_a_dead_process_holds_no_claim(path, monkeypatch):
    dead = os.fork()
    if dead == 0:
        acquire(str(path), "first")
        os._exit(0)
    os.waitpid(dead, 0)
    assert read_progress(str(path)).pid == dead
    started = time.monotonic()
    assert acquire(str(path), "second")
    assert time.monotonic() - started < 5
    assert read_progress(str(path)).pid == os.getpid()
    # Processes of other machines cannot be looked up: their heartbeat decides.
    change(path, host="elsewhere")
    monkeypatch.setattr(claim, "TAKE_OVER_AFTER_S", 0.1)
    monkeypatch.setattr(claim, "TAKE_OVER_ELSEWHERE_AFTER_S", 1.0)
    started = time.monotonic()
    assert acquire(str(path), "third")
    assert 1.0 < time.monotonic() - started < 5


def test_a_machine_with_a_wrong_clock_keeps_its_claims_and_shows_as_running(path, tmp_path, monkeypatch):
    """Only the content of its heartbeats changes: a cache of NFS keeps the time of the file as it was."""
    monkeypatch.setattr(claim, "TAKE_OVER_ELSEWHERE_AFTER_S", 0.8)
    monkeypatch.setattr("gd_ray.heartbeat.LOOK_AGAIN_AFTER_S", 0.2)
    path.parent.mkdir()
    stamp, off = time.time(), [600]

    def write():
        path.write_text(json.dumps({"time": time.time() + off[0], "host": "elsewhere", "pid": 1, "run": "first"}))
        os.utime(path, (stamp, stamp))

    write()
    assert read_running(str(tmp_path)) == {}  # nobody writes it
    with claim.repeated(write, 0.05):
        wait_until(lambda: "one" in read_running(str(tmp_path)))
        off[0] = -600
        wait_until(lambda: "one" in read_running(str(tmp_path)))
        end = time.monotonic() + 2
        assert not acquire(str(path), "second", cancelled=lambda: time.monotonic() > end)
    assert acquire(str(path), "second")


def test_a_run_takes_over_from_its_own_lost_process_which_then_leaves_the_file_alone(path, fast):
    acquire(str(path), "run")
    with heartbeat(str(path), "run", COST) as report:
        started = time.monotonic()
        assert acquire(str(path), "run")
        assert time.monotonic() - started < 5
        change(path, host="elsewhere", pid=7)  # the new process
        before = path.read_text()
        time.sleep(0.2)
        beat(str(path), report.progress())
        assert not owns(str(path), "run")
        assert path.read_text() == before
    release(str(path), "run")
    assert path.read_text() == before


def test_a_stuck_trial_stops_its_heartbeat_until_it_continues(path, fast, monkeypatch):
    monkeypatch.setattr("trials.claim.STUCK_AFTER_S", 0.3)
    acquire(str(path), "first")
    with heartbeat(str(path), "first", COST) as report:
        time.sleep(0.6)
        before = path.read_text()
        time.sleep(0.3)
        assert path.read_text() == before
        report(1, "teacher", 10, 100)
        wait_until(lambda: path.read_text() != before)


def test_a_failed_read_or_write_does_not_end_the_heartbeat(path, fast, monkeypatch):
    acquire(str(path), "first")
    original, reads = Path.read_bytes, [OSError(116, "Stale file handle"), OSError(5, "Input/output error")]
    write, writes = claim.write_atomic, [OSError(28, "No space left on device")]

    def unsteady(self, *args, **options):
        if self == path and reads:
            raise reads.pop()
        return original(self, *args, **options)

    def full(*args):
        if writes:
            raise writes.pop()
        write(*args)

    monkeypatch.setattr(Path, "read_bytes", unsteady)
    monkeypatch.setattr(claim, "write_atomic", full)
    with heartbeat(str(path), "first", COST):
        wait_until(lambda: not reads and not writes, 20)
        failed = time.time()
        wait_until(lambda: json.loads(original(path))["time"] >= failed, 20)


@pytest.fixture
def job(tmp_path, monkeypatch):
    spec = next(spec for spec in experiment_named("smoke").specs() if not spec.method.external)
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [])
    return worker.Job(spec, str(tmp_path / "results"), str(tmp_path / "storage"), DataLocations(), "ours")


def test_a_trial_that_another_run_has_finished_is_skipped(job, monkeypatch):
    monkeypatch.setattr(worker, "finished", lambda _: {job.spec.trial_id})
    monkeypatch.setattr("gd_ray.trial.run_trial", lambda *_, **__: pytest.fail("it ran"))
    worker.run_job(job, 1, None, lambda stage: None)
    assert not exists(job.progress)


def test_stages_of_a_finished_trial_are_never_replaced_by_fewer(job, monkeypatch):
    written, stages = [], []
    stage, checkpoint = SimpleNamespace(stage=1), SimpleNamespace(stage=1, save=written.append, results=())
    monkeypatch.setattr(worker, "finished", lambda _: {job.spec.trial_id} if stages else set())
    monkeypatch.setattr(worker, "write_stages", lambda *_: written.append("stages"))

    def finished_meanwhile(*_, on_stage, **__):
        stages.append(stage)
        on_stage(stage, checkpoint)

    monkeypatch.setattr("gd_ray.trial.run_trial", finished_meanwhile)
    worker.run_job(job, 1, None, lambda stage: None)
    assert stages
    assert written == [job.first_model]  # others may wait for it
    assert not exists(job.progress)


def test_a_heartbeat_that_is_replaced_while_it_is_read_is_read_again(monkeypatch):
    whole = json.dumps({"stage": 2, "run": "first"}).encode()
    reads = iter([whole[:9], OSError("the object has changed"), whole])

    def read_file(_):
        if isinstance(content := next(reads), OSError):
            raise content
        return content

    monkeypatch.setattr("gd_ray.heartbeat.read_file", read_file)
    assert read_progress("s3://bucket/one.json") == Progress(stage=2, run="first")
    assert next(reads, None) is None
