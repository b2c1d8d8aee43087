"""Results replayed to trackers: one run per trial however often, with the spec as parameters and metrics by stage."""

import sys
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tensorboardX.proto.event_pb2 import Event

from gd_ray.errors import UserError
from tests.helpers.made import made_spec, write_made
from trials.trackers import log_results, read_runs


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Two finished trials and one that is not: 90 of 100 right, 10 fewer at the next stage."""
    folder = str(tmp_path_factory.mktemp("results"))
    for seed, stages in ((0, None), (1, None), (2, 1)):
        write_made(folder, "mine", made_spec(seed=seed), lambda stage, task: 90 - 10 * (stage - task), stages=stages)
    return folder


STAGES = {
    1: {"accuracy": 0.9, "accuracy_task_1": 0.9, "loss_model_cls": 0.5, "seconds_model": 2.0, "seconds": 2.0},
    2: {
        **{"accuracy": 0.85, "accuracy_task_1": 0.8, "accuracy_task_2": 0.9},
        **{"loss_model_cls": 0.5, "seconds_model": 2.0, "seconds": 2.0},
    },
}


def test_a_run_has_the_spec_and_the_metrics_of_each_stage(results):
    runs = {run.trial_id: run for run in read_runs(results)}
    assert set(runs) == {made_spec(seed=seed).trial_id for seed in (0, 1)}
    run = runs[made_spec(seed=1).trial_id]
    assert run.name == f"gd+ext-cifar100-2-seed1-{run.trial_id}"
    assert run.parameters == {name: value for name, value in made_spec(seed=1).flat().items() if value is not None}
    assert run.stages == {stage: pytest.approx(metrics) for stage, metrics in STAGES.items()}
    assert run.summary["acc"] == pytest.approx(0.85)


def events(path: Path):
    """The events of a file: length (8 bytes), checksum (4), content, checksum (4)."""
    content, start = path.read_bytes(), 0
    while start < len(content):
        size = int.from_bytes(content[start : start + 8], "little")
        yield Event.FromString(content[start + 12 : start + 12 + size])
        start += size + 16


def test_tensorboard_has_one_folder_of_events_per_trial(results, tmp_path):
    assert log_results(results, "tensorboard", "any", str(tmp_path)) == (2, 2)
    files = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert log_results(results, "tensorboard", "any", str(tmp_path)) == (0, 2)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == files
    assert sorted(path.parent.name for path in files) == sorted(run.name for run in read_runs(results))
    scalars, tags = {}, set()
    for event in events(next(iter(files))):
        for value in event.summary.value:
            tags.add(value.tag)
            if value.WhichOneof("value") == "simple_value":
                scalars.setdefault(event.step, {})[value.tag] = value.simple_value
    assert scalars[1] == pytest.approx(STAGES[1])
    assert {name: scalars[2][name] for name in STAGES[2]} == pytest.approx(STAGES[2])
    assert scalars[2]["acc"] == pytest.approx(0.85)
    assert "_hparams_/session_start_info" in tags


class FakeMlflow(ModuleType):
    """Runs as MLflow keeps them; `failing` raises in the middle of a run."""

    def __init__(self):
        super().__init__("mlflow")
        self.runs, self.failing = [], False

    def set_experiment(self, name):
        self.experiment = name

    def search_runs(self, experiment_names, filter_string, output_format):
        assert (experiment_names, output_format) == ([self.experiment], "list")
        return [run for run in self.runs if filter_string == f"tags.trial_id = '{run.tags['trial_id']}'"]

    def delete_run(self, run_id):
        self.runs = [run for run in self.runs if run.info.run_id != run_id]

    @contextmanager
    def start_run(self, run_name, tags):
        info = SimpleNamespace(run_id=run_name, status="FAILED")
        self.runs.append(SimpleNamespace(info=info, tags=tags, params={}, metrics={}))
        yield
        info.status = "FINISHED"

    def log_params(self, params):
        self.runs[-1].params = params

    def log_metrics(self, metrics, step):
        if self.failing:
            raise RuntimeError("server gone. See https://example.org\nfor more")
        self.runs[-1].metrics.setdefault(step, {}).update(metrics)


def test_mlflow_has_one_run_per_trial_also_after_a_failure(results, monkeypatch):
    mlflow = FakeMlflow()
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    mlflow.failing = True
    with pytest.raises(UserError) as error:
        log_results(results, "mlflow", "forgetting")
    assert str(error.value) == (
        "tracker 'mlflow' failed (RuntimeError: server gone); run the same command again, which skips what is logged."
    )
    assert [run.info.status for run in mlflow.runs] == ["FAILED"]
    mlflow.failing = False
    assert log_results(results, "mlflow", "forgetting") == (2, 2)
    assert log_results(results, "mlflow", "forgetting") == (0, 2)
    expected = read_runs(results)
    assert [run.tags["trial_id"] for run in mlflow.runs] == [run.trial_id for run in expected]
    assert [run.params for run in mlflow.runs] == [run.parameters for run in expected]
    assert mlflow.runs[0].metrics == {1: expected[0].stages[1], 2: expected[0].stages[2] | expected[0].summary}


class FakeWandb(ModuleType):
    """Offline, a run is a folder; online, a server knows it by its id."""

    def __init__(self, folder, online):
        super().__init__("wandb")
        self.folder, self.online, self.runs, self.started = folder, online, {}, 0

    def setup(self):
        return SimpleNamespace(settings=SimpleNamespace(wandb_dir=str(self.folder)))

    def init(self, project, id, name, config, resume):
        assert resume == "allow"
        self.started += 1
        if not self.online:
            (self.folder / f"offline-run-2026-{id}").mkdir(parents=True)
        run = self.runs.setdefault(id, SimpleNamespace(config=config, logged={}, summary={}, codes=[]))
        run.log = lambda metrics, step: run.logged.setdefault(step, []).append(metrics)
        run.finish = lambda exit_code=0: run.codes.append(exit_code)
        return run


@pytest.mark.parametrize("online", [False, True])
def test_wandb_has_one_run_per_trial(results, monkeypatch, tmp_path, online):
    wandb = FakeWandb(tmp_path, online)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("WANDB_SILENT", "true")
    assert log_results(results, "wandb", "forgetting") == (2, 2)
    assert log_results(results, "wandb", "forgetting") == (0, 2)
    assert wandb.started == (4 if online else 2)
    for run in read_runs(results):
        logged = wandb.runs[run.trial_id]
        assert (logged.config, logged.summary) == (run.parameters, run.summary)
        assert logged.logged == {stage: [metrics] for stage, metrics in run.stages.items()}
        assert set(logged.codes) == {0}


def test_a_failure_of_wandb_leaves_no_folder_that_looks_logged(results, monkeypatch, tmp_path):
    wandb = FakeWandb(tmp_path, online=False)
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setenv("WANDB_SILENT", "true")
    init = wandb.init
    monkeypatch.setattr(wandb, "init", lambda **options: SimpleNamespace(**{**vars(init(**options)), "summary": None}))
    with pytest.raises(UserError, match="tracker 'wandb' failed"):
        log_results(results, "wandb", "forgetting")
    assert list(tmp_path.iterdir()) == []
    assert next(iter(wandb.runs.values())).codes == [1]


def test_a_tracker_that_is_unknown_or_not_installed_and_results_without_trials(results, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "mlflow", None)
    for arguments, says in (
        ((results, "tensorbord"), "tracker 'tensorbord' does not exist; did you mean 'tensorboard'?"),
        (
            (results, "mlflow"),
            "tracker 'mlflow' is not installed; install it with 'pip install mlflow-skinny sqlalchemy alembic'.",
        ),
        ((str(tmp_path), "tensorboard"), f"results '{tmp_path}' have no finished trial; give the folder"),
    ):
        with pytest.raises(UserError) as error:
            log_results(*arguments, "any")
        assert str(error.value).startswith(says)
