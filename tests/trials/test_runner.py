"""Experiments on Ray Tune: results equal to single-process runs, and mistakes told before any trial."""

import io
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
from rich.console import Console

from gd_ray.errors import UserError
from gd_ray.fingerprint import Fingerprints
from gd_ray.kept_models import kept_stages, read_model
from gd_ray.storage import write_atomic
from gd_ray.store import finished, pack, trial_states, write_trial
from gd_ray.trial import run_trial
from tests.helpers.disk import Disk
from tests.helpers.placement import total, watched
from tests.helpers.runs import alone, frame, run, tiny
from trials.preflight import check_jobs
from trials.queue import entries_of
from trials.registry import DataLocations
from trials.resources import Cluster
from trials.runner import run_experiment
from trials.tune_state import remove_abandoned_files, tune_folder
from trials.worker import Job

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ray():
    import ray

    from gd_ray.ray_utils import start_ray

    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("RAY_DATA_EXECUTION_NO_PROGRESS_TIMEOUT_S", "60")  # a deadlock shall end as an error
        # What Ray or another library announces to remove fails the trial whose module uses it.
        modules = [
            path.relative_to(ROOT) for package in ("gd_ray", "trials") for path in ROOT.glob(f"{package}/**/*.py")
        ]
        names = (".".join(module.with_suffix("").parts) for module in modules)
        environment.setenv("PYTHONWARNINGS", ",".join(f"error::DeprecationWarning:{name}" for name in names))
        start_ray(num_cpus=2)
        yield ray
        ray.shutdown()


@pytest.fixture(scope="module")
def finished_run(ray, tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    specs = [*(tiny(method) for method in ("baseline", "gd", "gd+ext")), tiny("gd+ext", seed=1)]
    broken = tiny("lwf", learning_rate=1e30)
    with watched(ray) as seen:
        failures = run("mine", [*specs, broken], folder, retries=2, tensorboard=True, keep_models="all")
    return folder, specs, broken, failures, seen


def test_results_equal_those_of_single_process_runs(finished_run):
    folder, specs, *_ = finished_run
    found = frame(folder / "results", "stages")
    pd.testing.assert_frame_equal(found, alone(specs, folder / "storage"), check_exact=True)


def test_two_trials_that_hold_every_cpu_both_score_with_ray_data(finished_run):
    """Where Ray Data waits for a CPU that a trial holds, neither ends: each trial's scorer is in its own group."""
    *_, seen = finished_run
    pairs = [list(groups.values()) for held in seen for groups in held.values() if total(groups, "CPU") == 2]
    assert [[{"CPU": 0.5}] * 2] * 2 in pairs


def test_a_failed_trial_stops_no_other_and_is_told_in_one_line(finished_run):
    folder, specs, broken, failures, _ = finished_run
    assert [failure.spec.trial_id for failure in failures] == [broken.trial_id]
    assert "The teacher loss of stage 1 is not finite in its term 'cls'; lower learning_rate 1e+30" in failures[0].error
    assert "\n" not in failures[0].error
    log = Path(failures[0].log).read_text()
    assert log.startswith("Traceback")  # with an error, which Tune would retry, it is Tune's: "Failure # 1 (occurred …"
    states = {state.trial_id: state for state in trial_states(str(folder / "results"))}
    assert {states[spec.trial_id].state for spec in specs} == {"done"}
    assert states[broken.trial_id].state == "failed"
    assert "learning_rate" in states[broken.trial_id].detail


def test_storage_that_is_away_for_a_while_fails_no_trial(ray, tmp_path):
    """Without retries: one that counted would be given up."""
    disk, specs, left = Disk(tmp_path / "disk"), [tiny("lwf"), tiny("gd")], []

    def go_away():
        while not list(disk.path.glob("storage/checkpoints/[!.]*.pt")):
            time.sleep(0.05)
        disk.go_away()
        time.sleep(3.0)
        left.extend(spec for spec in specs if spec.trial_id not in finished(str(disk.content / "results")))
        disk.come_back()

    thread = threading.Thread(target=go_away, daemon=True)
    thread.start()
    failures = run("mine", specs, disk.path, retries=0)
    thread.join()
    assert len(left) == 2
    assert failures == []
    pd.testing.assert_frame_equal(
        frame(disk.path / "results", "stages"), alone(specs, tmp_path / "storage"), check_exact=True
    )


class Unknown:
    """Of a module that only this process can import."""


def test_a_trial_whose_process_cannot_start_fails_with_the_reason(ray, tmp_path, monkeypatch):
    monkeypatch.setattr("trials.runner.loaded_plugins", lambda: (Unknown(),))
    (failure,) = run("mine", [tiny("gd")], tmp_path, retries=0)
    assert failure.spec.trial_id == tiny("gd").trial_id
    assert failure.error == f"ModuleNotFoundError: No module named '{__name__}'"
    (log,) = (path for path in (tmp_path / "storage" / "tune").rglob("*") if path.is_file())
    assert str(log) == failure.log


def test_tensorboard_scalars_are_there_when_asked_for(finished_run):
    folder, specs, *_ = finished_run
    for spec in specs:
        (events,) = (folder / "storage" / "tune").glob(f"trials-*/{spec.trial_id}/events.out.tfevents.*")
        content = events.read_bytes()
        assert content.count(b"ray/tune/accuracy_of_first_task") == spec.num_tasks
        assert b"ray/tune/loss_model_cls" in content


def test_methods_share_their_first_models_and_leave_no_checkpoint_behind(finished_run):
    folder, *_ = finished_run
    assert len(list((folder / "storage" / "first-models").glob("*.pt"))) == 3  # plain, and calibrated of two seeds
    assert not list((folder / "storage" / "checkpoints").glob("*.pt"))
    assert not list(folder.rglob("*.tmp"))


def test_models_are_kept_as_asked_also_first_ones_that_trials_share(finished_run):
    folder, specs, *_ = finished_run
    assert kept_stages(str(folder / "results")) == {spec.trial_id: [1, 2, 3] for spec in specs}
    descriptions = [read_model(str(folder / "results"), spec.trial_id, 1)[1] for spec in specs]
    assert [description["spec"] for description in descriptions] == [spec.flat() for spec in specs]


HOLD = """
import sys, time
from trials.tune_state import tune_folder
with tune_folder(sys.argv[1], "trials-1", events=sys.argv[2] == "True") as folder:
    (folder / "a").mkdir(parents=True)
    (folder / "tuner.pkl").touch()
    (folder / "a" / "error.txt").touch()
    print(folder, flush=True)
    time.sleep(60)
"""


@pytest.mark.parametrize("events", [False, True])
def test_state_of_tune_is_removed_once_its_run_was_killed_and_not_before(events, tmp_path, monkeypatch):
    storage = str(tmp_path / "storage")
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    holder = subprocess.Popen([sys.executable, "-c", HOLD, storage, str(events)], stdout=subprocess.PIPE, text=True)
    folder = Path(holder.stdout.readline().strip())
    before = sorted(folder.rglob("*"))
    remove_abandoned_files(storage)
    assert sorted(folder.rglob("*")) == before
    holder.kill()
    holder.wait()
    remove_abandoned_files(storage)
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left == (["error.txt"] if events else [])  # else the run has written it to the storage
    with tune_folder(storage, "trials-2", events=events) as folder:
        folder.mkdir(exist_ok=True)
        (folder / "tuner.pkl").touch()
    assert not folder.exists()


def test_what_a_user_should_know_is_said_once(tmp_path):
    specs = [tiny("gd+ext", seed, stream="glyphs:500") for seed in range(2)]
    jobs = [Job(spec, str(tmp_path), str(tmp_path), DataLocations(storage=str(tmp_path)), "run") for spec in specs]
    (note,) = check_jobs(jobs)
    assert note.startswith("stream 'glyphs:500' has 500 images, fewer than 3 windows of 200")


def test_images_that_changed_under_their_name_are_told_before_any_trial(tmp_path):
    locations = DataLocations(storage=str(tmp_path))
    spec, other = tiny("gd+ext"), tiny("gd+ext", seed=1)
    job, next_job = (Job(spec, str(tmp_path), str(tmp_path), locations, "run") for spec in (spec, other))
    data, stream = locations.load_data("glyphs", 8, 4), locations.open_stream(spec.stream)
    saved = []
    result = run_trial(spec, data, stream, on_stage=lambda _, checkpoint: saved.append(checkpoint), last_stage=2)
    saved[1].save(job.checkpoint)
    check_jobs([job])
    replace(saved[1], fingerprints=replace(saved[1].fingerprints, stream="another")).save(job.checkpoint)
    with pytest.raises(UserError, match="made with other images of stream 'glyphs:600'") as error:
        check_jobs([job])
    assert job.checkpoint in str(error.value)
    write_trial(str(tmp_path), result, device="cpu", threads=1)
    check_jobs([next_job])
    changed = replace(result, fingerprints=Fingerprints("another", None))
    write_trial(str(tmp_path), changed, device="cpu", threads=1)
    with pytest.raises(UserError, match=f"dataset 'glyphs' has other images than trial {spec.trial_id}"):
        check_jobs([next_job])


def test_only_first_models_that_several_trials_wait_for_are_jobs_of_their_own(tmp_path):
    specs = [
        tiny("baseline"),
        tiny("gd"),
        tiny("gd+ext"),
        tiny("baseline", seed=1),
        tiny("lwf", seed=2),
        tiny("dr", seed=2),
    ]
    jobs = [Job(spec, "results", str(tmp_path), DataLocations(), "run") for spec in specs]

    def seeds_of_first_models():
        return [entry.job.spec.seed for entry in entries_of(jobs) if entry.first_stage]

    assert seeds_of_first_models() == [0, 2]
    assert [entry.needs_model for entry in entries_of(jobs) if not entry.first_stage] == [1, 1, 0, 0, 1, 1]
    write_atomic(jobs[4].checkpoint, b"")  # goes on from its own last stage, so that the other one is alone
    assert seeds_of_first_models() == [0]
    write_atomic(jobs[0].first_model, b"")
    assert seeds_of_first_models() == []


def test_the_view_of_a_run_counts_its_own_trials_not_those_of_earlier_selections(ray, tmp_path, monkeypatch):
    seen = []

    @contextmanager
    def view(states, _, *, every):
        assert every == 1.0
        seen.append([state.trial_id for state in states()])
        assert {state.state for state in states()} == {"waiting"}
        yield

    monkeypatch.setattr("trials.runner.live_view", view)
    monkeypatch.setattr("trials.runner._tune", lambda *_, **__: [])
    selections = [[tiny("baseline"), tiny("gd")], [tiny("gd"), tiny("lwf")]]
    for specs in selections:
        run("mine", specs, tmp_path)
    assert seen == [[spec.trial_id for spec in specs] for specs in selections]
    states = trial_states(str(tmp_path / "results"))
    assert [state.state for state in states] == ["stopped"] * 3  # `gd-ray status` counts them all


def test_a_second_run_computes_nothing_and_another_experiment_shares_packed_trials_too(finished_run):
    folder, specs, *_ = finished_run
    results = folder / "results"

    def files():
        return {path: path.stat().st_mtime_ns for kind in ("trials", "stages") for path in (results / kind).iterdir()}

    before = files()
    assert run("mine", specs, folder) == []
    assert run("other", specs[:1], folder) == []
    assert files() == before
    states = trial_states(str(results))
    assert [state.state for state in states if state.experiment == "other"] == ["done"]
    rows = {kind: frame(results, kind) for kind in ("stages", "confusions", "samples")}
    pack(str(results))
    assert run("other", specs[:2], folder) == []
    for kind, packed in rows.items():
        pd.testing.assert_frame_equal(frame(results, kind), packed)


def test_a_trial_that_scores_its_window_itself_gives_the_same_rows(finished_run):
    folder, specs, *_ = finished_run
    spec = specs[-1]
    own = folder / "own"
    assert run("mine", [spec], own, scorers=None) == []  # a window of 200 images is not worth an actor
    assert kept_stages(str(own / "results")) == {spec.trial_id: [3]}
    for kind in ("stages", "samples", "confusions"):
        pooled, itself = (frame(where / "results", kind, [spec.trial_id]) for where in (folder, own))
        pd.testing.assert_frame_equal(itself, pooled[itself.columns], check_exact=True)
        assert pooled.drop(columns=itself.columns).isna().all(axis=None)  # columns of other packed trials


def test_bad_options_are_told_before_any_trial(ray, tmp_path):
    from gd_ray.errors import UserError

    cases = [
        ({"gpus": 1}, tiny("gd"), "--gpus 1 needs a GPU, but Ray found none"),
        ({}, tiny("gd", precision="tf32"), "precision tf32 needs a GPU from Ampere on, not a CPU"),
        ({"cpus": 64}, tiny("gd"), "--cpus 64 is more than the 2 of the largest machine"),
        (
            {"cpus": 2, "scorers": 1},
            tiny("gd+ext"),
            "ask for 4 CPUs for a trial and its scorers, but the cluster has 2",
        ),
        ({}, tiny("gd+ext", stream="nowhere"), "streams/nowhere' has no manifest.json"),
        ({}, tiny("gd", dataset="cifar10"), "data set 'cifar10' does not exist; did you mean 'cifar100'"),
        ({}, tiny("gd", train_per_class=None, dataset="cifar100"), "holds neither cifar-100-python"),
        ({}, tiny("gd+ext", window=10), "window 10 offers 10 images"),
    ]
    for settings, spec, says in cases:
        with pytest.raises(UserError, match=says) as error:
            run("bad", [spec], tmp_path, **settings)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "results" / "stages").exists()
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    with pytest.raises(UserError, match="cannot be written"):
        run_experiment("bad", [tiny("gd")], str(blocked), Cluster(), Console(quiet=True))


def test_a_terminal_shows_what_happens_before_the_first_trial(tmp_path, monkeypatch):
    def refuse(jobs):
        raise UserError("stop here.")

    monkeypatch.setattr("trials.runner.connect", lambda address: [{"CPU": 2.0}])
    monkeypatch.setattr("trials.runner.watched_servers", nullcontext)
    monkeypatch.setattr("trials.runner.check_jobs", refuse)
    console = Console(file=io.StringIO(), force_terminal=True)
    with pytest.raises(UserError, match="stop here"):
        run_experiment("x", [tiny("gd")], str(tmp_path / "r"), Cluster(storage=str(tmp_path / "s")), console)
    assert all(text in console.file.getvalue() for text in ("starting Ray", "reading data sets and streams"))
