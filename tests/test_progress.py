"""How far trials are: rates and times left, and two runs that meet at one trial."""

import io
import json
import os
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pytest
from rich.console import Console

from trials.cost import StepCost
from trials.ledger import TrialState, read_states, seconds_left, write_failure, write_ledger
from trials.progress import Progress, TakenOver, progress_file, read_all_progress, telling, wait_for_turn
from trials.results import file_of, write_atomically
from trials.summary import status_table
from trials.view import duration, live_view, running_table, summary

COST = [StepCost(1, "teacher", 100, 3.0), StepCost(2, "model", 100, 3.0), StepCost(2, "evaluate", 400, 1.0)]


def state(kind, work=100.0, done=0.0, progress=None):
    fields = {"experiment": "e", "trial_id": "t", "method": "gd", "dataset": "glyphs", "task_size": 5, "seed": 0}
    return TrialState(**fields, stages=4, state=kind, work=work, work_done=done, progress=progress)


def shown(renderable):
    console = Console(file=io.StringIO(), width=150)
    console.print(renderable)
    return console.file.getvalue()


def test_a_trial_tells_its_place_and_pace(tmp_path, monkeypatch):
    monkeypatch.setattr("trials.progress._BEAT", 0.02)
    path = progress_file(str(tmp_path), "one")
    wait_for_turn(path, "run")
    with telling(path, "run", COST) as report:
        report(2, "model", 0, 100)
        time.sleep(0.2)
        report(2, "model", 50, 100)
        deadline = time.time() + 10
        while (now := read_all_progress(str(tmp_path)).get("one")) is None or now.share < 0.4:
            assert time.time() < deadline
            time.sleep(0.01)
    assert (now.stage, now.step, now.pid) == (2, "model", os.getpid())
    assert now.share == (300 + 150) / 1000
    assert 0 < now.images_per_second < 50 / 0.2
    assert abs(now.share_per_second / now.images_per_second - 0.003) < 1e-9  # an image is 3 of 1000 passes
    assert not path.exists()


def test_the_time_left_is_the_work_left_at_the_pace_of_what_runs():
    fast, slow = Progress(share=0.5, share_per_second=0.01), Progress(share=0.2, share_per_second=0.001)
    states = [state("done", done=100), state("running", 100, 50, fast), state("waiting", 100, 10), state("failed")]
    assert states[1].seconds_left == 50
    assert seconds_left(states) == (50 + 90) / (100 * 0.01)
    # A slow trial ends after the others: the time left is its own.
    assert seconds_left([*states, state("running", 100, 20, slow)]) == 800
    assert seconds_left([state("waiting")]) is None
    assert seconds_left([state("done", done=100)]) == 0
    assert [duration(s) for s in (None, 30, 600, 9000, 400000)] == [
        "unknown time",
        "30 s",
        "10 min",
        "2.5 h",
        "4.6 days",
    ]


def test_views_of_an_experiment(tmp_path):
    results, storage = str(tmp_path / "results"), str(tmp_path / "storage")
    row = {
        "method": "gd",
        "dataset": "glyphs",
        "task_size": 5,
        "seed": 0,
        "stages": 4,
        "work": 100.0,
        "shares": [0.1, 0.4, 0.7, 1.0],
        "first_model": "shared",
    }
    write_ledger(results, "mine", storage, [{**row, "trial_id": name} for name in ("runs", "failed", "waits")])
    write_failure(results, "failed", "ValueError: no", "/log")
    file = progress_file(storage, "runs")
    file.parent.mkdir(parents=True)
    now = Progress(stage=2, step="model", share=0.5, images_per_second=321, share_per_second=0.01, time=time.time())
    file.write_text(json.dumps(vars(now)))
    states = read_states(results)
    assert [s.state for s in states] == ["running", "failed", "waiting"]
    assert summary(states) == "0 of 3 trials done, 1 running, 1 failed, 17% of the work, 2 min left"
    first_model = tmp_path / "storage" / "first-models" / "shared.pt"
    first_model.parent.mkdir()
    first_model.touch()  # the others need not train it again
    states = read_states(results)
    assert summary(states) == "0 of 3 trials done, 1 running, 1 failed, 23% of the work, 2 min left"
    assert shown(status_table(states)).splitlines()[1].split() == ["mine", "0", "1", "1", "1", "23%", "2", "min"]
    line = shown(running_table(states)).splitlines()[1]
    assert " ".join(line.split()) == "gd, glyphs, task size 5, seed 0 stage 2 of 4, model 321 50% 50 s"
    file.write_text(json.dumps({**vars(now), "time": time.time() - 1000}))  # its process is gone
    assert read_states(results)[0].state == "waiting"


def test_what_lies_before_a_checkpoint_is_done(tmp_path):
    results, storage = str(tmp_path / "results"), str(tmp_path / "storage")
    shares = [0.1, 0.4, 0.7, 1.0]
    row = {"trial_id": "half", "method": "gd", "dataset": "glyphs", "task_size": 2, "seed": 0, "stages": 4}
    write_ledger(results, "mine", storage, [{**row, "work": 100.0, "shares": shares, "first_model": "none"}])
    checkpoint = tmp_path / "storage" / "checkpoints" / "half.pt"
    checkpoint.parent.mkdir(parents=True)
    for stages in (1, 2, 3):
        rows = pa.table({"stage": [stage for stage in range(1, stages + 1) for _ in range(stage)]})
        write_atomically(rows, file_of(results, "stages", "mine", "half"))
        checkpoint.unlink(missing_ok=True)
        assert [state.work_done for state in read_states(results)] == [0.0]  # rows alone continue nothing
        checkpoint.touch()
        assert [state.work_done for state in read_states(results)] == [100 * shares[stages - 1]]


def test_runs_that_start_at_once_or_store_elsewhere_are_all_known(tmp_path):
    results, old, new = (str(tmp_path / name) for name in ("results", "old", "new"))
    row = {"method": "gd", "dataset": "glyphs", "task_size": 2, "seed": 0, "stages": 4, "work": 100.0}
    rows = {name: {**row, "trial_id": name, "shares": [0.1, 0.4, 0.7, 1.0]} for name in ("one", "both", "two")}
    for storage, wanted in ((old, ("one", "both")), (new, ("both", "two")), (new, ("both", "two"))):
        write_ledger(results, "mine", storage, [rows[name] for name in wanted], "gd-ray run")
    file = progress_file(old, "both")
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(vars(Progress(stage=2, step="model", share=0.5, time=time.time()))))
    (tmp_path / "results" / "ledger" / "older.json").write_text("{}")  # as an earlier version wrote it
    states = {state.trial_id: state.state for state in read_states(results)}
    assert states == {"one": "waiting", "both": "running", "two": "waiting"}


def test_in_a_pipe_a_line_now_and_then_and_on_a_terminal_a_picture():
    pipe = Console(file=io.StringIO())
    with live_view(lambda: [state("waiting")], pipe, line_every=0.5):
        time.sleep(2.5)
    lines = pipe.file.getvalue().splitlines()
    assert 1 <= len(lines) <= 3
    assert "0 of 1 trials done" in lines[0]
    terminal = Console(file=io.StringIO(), force_terminal=True)
    running = state("running", 100, 50, Progress(stage=1, step="teacher", share=0.5, share_per_second=0.1))
    with live_view(lambda: [running], terminal):
        time.sleep(1.5)
    assert "gd, glyphs, task size 5, seed 0" in terminal.file.getvalue()


def test_the_second_run_at_a_trial_waits_for_the_first(tmp_path):
    path = tmp_path / "progress" / "one.json"
    wait_for_turn(path, "first")
    turned = threading.Event()
    second = threading.Thread(target=lambda: (wait_for_turn(path, "second"), turned.set()))
    second.start()
    with telling(path, "first", COST):
        assert not turned.wait(1.5)
    assert turned.wait(10)
    second.join()
    assert json.loads(path.read_text())["run"] == "second"


def test_waiting_ends_when_it_is_needless(tmp_path):
    path, model = tmp_path / "one.json", tmp_path / "first.pt"
    wait_for_turn(path, "first")
    turns = []
    second = threading.Thread(target=lambda: turns.append(wait_for_turn(path, "second", needless=model.exists)))
    second.start()
    with telling(path, "first", COST):
        time.sleep(1)
        assert turns == []
        model.touch()
        second.join(5)
        assert turns == [False]
        assert json.loads(path.read_text())["run"] == "first"


def test_a_run_takes_over_from_its_own_lost_process_which_then_stays_silent(tmp_path, monkeypatch):
    monkeypatch.setattr("trials.progress._BEAT", 0.02)
    path = tmp_path / "one.json"
    wait_for_turn(path, "run")
    with telling(path, "run", COST):  # lost, but still there
        new = {**json.loads(path.read_text()), "host": "elsewhere", "pid": 7}
        monkeypatch.setattr("trials.progress._here", lambda progress: Progress(**{**vars(progress), **new}))
        started = time.monotonic()
        wait_for_turn(path, "run", seconds=60)
        assert time.monotonic() - started < 5
        time.sleep(0.2)
    assert json.loads(path.read_text()) == new


def test_a_trial_that_is_stuck_falls_silent_until_it_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr("trials.progress._BEAT", 0.02)
    monkeypatch.setattr("trials.progress._STUCK", 0.3)
    path = tmp_path / "one.json"
    wait_for_turn(path, "first")
    with telling(path, "first", COST) as report:
        time.sleep(0.6)
        before = path.read_text()
        time.sleep(0.3)
        assert path.read_text() == before
        report(1, "teacher", 10, 100)
        time.sleep(0.2)
        assert path.read_text() != before


def test_a_trial_whose_process_is_gone_is_taken_over(tmp_path):
    path = tmp_path / "one.json"
    gone = os.fork()
    if gone == 0:
        wait_for_turn(path, "first")
        os._exit(0)
    os.waitpid(gone, 0)
    assert json.loads(path.read_text())["pid"] == gone
    started = time.monotonic()
    wait_for_turn(path, "second")
    assert time.monotonic() - started < 5
    assert json.loads(path.read_text())["pid"] == os.getpid()
    # On another machine there is no process to look for; the file's silence tells.
    path.write_text(json.dumps({**json.loads(path.read_text()), "host": "elsewhere"}))
    started = time.monotonic()
    wait_for_turn(path, "third", seconds=1.0)
    assert 1.0 < time.monotonic() - started < 5


def test_one_failed_read_or_write_does_not_silence_a_trial(tmp_path, monkeypatch):
    monkeypatch.setattr("trials.progress._BEAT", 0.02)
    path = tmp_path / "one.json"
    wait_for_turn(path, "first")
    original, failures = Path.read_text, [OSError(116, "Stale file handle"), OSError(5, "Input/output error")]

    def unsteady(self, *args, **options):
        if self == path and failures:
            raise failures.pop()
        return original(self, *args, **options)

    monkeypatch.setattr(Path, "read_text", unsteady)
    full = [OSError(28, "No space left on device")]
    write = Path.write_text
    monkeypatch.setattr(
        Path, "write_text", lambda self, text: (_ for _ in ()).throw(full.pop()) if full else write(self, text)
    )
    with telling(path, "first", COST):
        deadline = time.time() + 20
        while (failures or full) and time.time() < deadline:
            time.sleep(0.02)
        assert not failures
        assert not full
        failed = time.time()
        while json.loads(original(path))["time"] < failed and time.time() < deadline:
            time.sleep(0.02)
        assert json.loads(original(path))["time"] >= failed


def test_who_lost_a_trial_while_asleep_is_told_before_it_writes(tmp_path):
    path = tmp_path / "one.json"
    wait_for_turn(path, "first")
    with telling(path, "first", COST) as report:
        report.check()
        path.write_text(json.dumps({**json.loads(path.read_text()), "run": "second"}))
        with pytest.raises(TakenOver) as taken:
            report.check()
        assert taken.value.run == "second"
        path.unlink()
        with pytest.raises(TakenOver):
            report.check()


@pytest.mark.parametrize("taken_by", ["ours", "other"])
def test_a_trial_that_was_taken_over_waits_for_its_turn_and_shares_what_is_done(tmp_path, monkeypatch, taken_by):
    from trials import worker
    from trials.experiments import experiment_named
    from trials.sources import Places

    spec = experiment_named("smoke").specs()[0]
    job = worker.Job(spec, "mine", str(tmp_path / "results"), str(tmp_path / "storage"), Places(), "ours")
    runs, shared = [], []

    def lost(*_, **__):
        runs.append(1)
        raise TakenOver(taken_by)

    def finished_meanwhile(results, trial_id, experiment):
        shared.append((trial_id, experiment))
        return bool(runs)

    monkeypatch.setattr(worker, "_run", lost)
    monkeypatch.setattr("trials.results.shared_from_others", finished_meanwhile)
    worker.run_job(job, 1, None, lambda stage: None)
    assert runs == [1]
    assert shared == [(spec.trial_id, "mine")] * (1 if taken_by == "ours" else 2)


def test_who_lost_a_trial_in_its_first_stage_leaves_the_first_model_alone(tmp_path, monkeypatch):
    from trials import worker
    from trials.experiments import experiment_named
    from trials.sources import Places

    spec = next(spec for spec in experiment_named("smoke").specs() if not spec.rules.external)
    job = worker.Job(spec, "mine", str(tmp_path / "results"), str(tmp_path / "storage"), Places(), "ours")
    saved = []
    stage, checkpoint = SimpleNamespace(stage=1), SimpleNamespace(save=saved.append)
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [])
    monkeypatch.setattr("gd_ray.trial.run_trial", lambda *_, on_stage, **__: on_stage(stage, checkpoint))

    def lost():
        raise TakenOver("other")

    for check in (lost, lambda: None):
        with suppress(TakenOver):
            told = SimpleNamespace(check=check)
            worker._run(job, 1, None, lambda stage: None, told, first_stage_only=True)
        assert saved == ([] if check is lost else [job.first_model])


def test_who_comes_late_to_a_trial_that_another_storage_has_finished_writes_nothing(tmp_path, monkeypatch):
    from trials import worker
    from trials.experiments import experiment_named
    from trials.results import file_of
    from trials.sources import Places

    spec = next(spec for spec in experiment_named("smoke").specs() if not spec.rules.external)
    job = worker.Job(spec, "mine", str(tmp_path / "results"), str(tmp_path / "storage"), Places(), "ours")
    written = []
    stage, checkpoint = SimpleNamespace(stage=2), SimpleNamespace(save=written.append, results=())
    monkeypatch.setattr("ray.get_gpu_ids", lambda: [])
    monkeypatch.setattr("trials.results.write_stages", lambda *_: written.append("stages"))
    monkeypatch.setattr("gd_ray.trial.run_trial", lambda *_, on_stage, **__: on_stage(stage, checkpoint))
    row = Path(file_of(job.results, "trials", "mine", spec.trial_id))
    row.parent.mkdir(parents=True)
    row.touch()
    told = SimpleNamespace(check=lambda: None)
    with pytest.raises(TakenOver):
        worker._run(job, 1, None, lambda stage: None, told, first_stage_only=False)
    assert written == []
    worker._run(job, 1, None, lambda stage: None, told, first_stage_only=True)  # others wait for the first model
