"""What a run leaves in the store beside results: selections, failures, and the state of each trial."""

import subprocess
import time

import pandas as pd
import pytest

from gd_ray.errors import UserError
from gd_ray.heartbeat import Progress, progress_file, this_host
from gd_ray.storage import read_file, write_atomic
from gd_ray.store import (
    Selection,
    clear_failure,
    read_class_names,
    read_failures,
    read_selections,
    seconds_left,
    trial_states,
    write_class_names,
    write_failure,
    write_selection,
    write_stages,
)
from tests.helpers.tiny import tiny_spec, write_result
from trials.claim import run_heartbeat


def selection_of(*specs, storage="/storage", experiment="mine", **changes):
    rows = [
        {
            "trial_id": spec.trial_id,
            **spec.flat(),
            "stages": spec.num_tasks,
            "work": 100.0,
            "shares": [0.25, 0.5, 1.0],
            "first_model": spec.first_model_id,
        }
        for spec in specs
    ]
    return Selection(experiment=experiment, storage=storage, command="gd-ray run mine", trials=rows, **changes)


def test_selections_are_read_back_and_pandas_reads_them_too(tmp_path):
    specs = [tiny_spec(method=method) for method in ("gd", "baseline")]
    first, second = selection_of(*specs, time=1.0), selection_of(specs[0], time=2.0)
    for selection in (second, first, first):
        write_selection(str(tmp_path), selection)
    write_selection(str(tmp_path), selection_of())
    assert read_selections(str(tmp_path)) == [first, second]
    frame = pd.read_parquet(tmp_path / "experiments" / "mine")
    assert len(frame) == 3
    assert set(frame["method"]) == {"gd", "baseline"}
    (tmp_path / "experiments" / "mine" / "broken.parquet").write_bytes(b"x")
    with pytest.raises(UserError, match="'gd-ray run mine' with the same options writes it again"):
        read_selections(str(tmp_path))


def test_failures_and_class_names_are_read_back(tmp_path):
    results = str(tmp_path)
    write_failure(results, "one", "ValueError: no", "/log")
    write_failure(results, "two", "ValueError: no", "/log")
    clear_failure(results, "two")
    clear_failure(results, "two")
    (tmp_path / "failures" / "half.json").write_text("{")
    assert read_failures(results) == {"one": "ValueError: no (/log)"}
    write_class_names(results, "glyphs", ["a", "b"])
    assert read_class_names(results) == {"glyphs": ("a", "b")}


def heartbeat(storage, spec, **values):
    path = progress_file(str(storage), spec.trial_id)
    content = Progress(**{"time": time.time(), "share": 0.4, "share_per_second": 0.1, "stage": 2, **values})
    write_atomic(path, pd.Series(content.__dict__).to_json().encode())


def states_by_seed(results, *selections):
    return {state.spec["seed"]: state for state in trial_states(str(results), selections or None)}


def test_every_state_of_a_trial(tiny_result, tmp_path, monkeypatch):
    monkeypatch.setattr("gd_ray.heartbeat.LOOK_AGAIN_AFTER_S", 0.1)
    results, storage = tmp_path / "results", tmp_path / "storage"
    specs = [tiny_spec(method="gd+ext", seed=seed) for seed in range(8)]
    selection = selection_of(*specs, storage=str(storage))
    write_selection(str(results), selection)
    done, running, stale, failed, stopped, first, waiting, killed = specs
    write_result(results, tiny_result, 0)
    heartbeat(storage, done)  # about to end
    heartbeat(storage, running)
    write_failure(str(results), running.trial_id, "an earlier failure", "log")
    heartbeat(storage, stale, time=time.time() - 1000)
    ended = subprocess.Popen(["true"])
    ended.wait()
    heartbeat(storage, killed, host=this_host(), pid=ended.pid)
    write_failure(str(results), failed.trial_id, "ValueError: no", "/log")
    for name in (f"checkpoints/{stopped.trial_id}", f"first-models/{first.first_model_id}"):
        write_atomic(str(storage / f"{name}.pt"), b"")
    write_stages(str(results), stopped, tiny_result.stages[:2])
    states = states_by_seed(results)
    assert [states[spec.seed].state for spec in specs] == ["done", "running", "stopped", "failed", *["stopped"] * 4]
    assert seconds_left(list(states.values())) == pytest.approx(6)  # nobody will run the others
    write_atomic(
        progress_file(str(storage), selection.digest), read_file(progress_file(str(storage), running.trial_id))
    )
    states = states_by_seed(results)
    assert [states[spec.seed].state for spec in specs] == ["done", "running", "waiting", "failed", *["waiting"] * 4]
    assert [states[spec.seed].work_done for spec in specs] == [100, 40, 0, 0, 50, 25, 0, 0]
    assert states[running.seed].detail == "stage 2 of 3, starting"
    assert states[failed.seed].detail == "ValueError: no (/log)"
    assert states[running.seed].seconds_left == pytest.approx(6)
    assert seconds_left(list(states.values())) == pytest.approx((60 + 100 + 50 + 75 + 100 + 100) / 10)
    assert seconds_left([states[waiting.seed]]) is None
    assert seconds_left([states[done.seed], states[failed.seed]]) == 0


def test_a_trial_of_two_storages_has_the_state_of_the_run_that_is_further(tiny_result, tmp_path):
    results, spec = tmp_path / "results", tiny_spec(method="gd+ext")
    write_stages(str(results), spec, tiny_result.stages[:2])
    heartbeat(tmp_path / "one", spec)
    write_atomic(str(tmp_path / "two" / "checkpoints" / f"{spec.trial_id}.pt"), b"")
    for order in (("one", "two"), ("two", "one")):
        selections = [selection_of(spec, storage=str(tmp_path / name)) for name in order]
        (state,) = trial_states(str(results), selections)
        assert state.state == "running"
    both = [selection_of(spec, storage=str(tmp_path / "two"), experiment=name) for name in ("a", "b")]
    assert [state.experiment for state in trial_states(str(results), both)] == ["a", "b"]


def test_a_storage_that_this_machine_does_not_see_says_nothing_about_its_runs(tmp_path):
    selection = selection_of(tiny_spec(), storage=str(tmp_path / "mounted"))
    (state,) = trial_states(str(tmp_path), [selection])
    assert state.state == "waiting"
    with run_heartbeat(progress_file(selection.storage, selection.digest), "run"):
        (state,) = trial_states(str(tmp_path), [selection, selection_of(tiny_spec(), storage="")])
        assert state.state == "waiting"
    (state,) = trial_states(str(tmp_path), [selection])
    assert state.state == "stopped"
