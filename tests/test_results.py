import subprocess
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from tiny import tiny_spec

from gd_ray.filesystems import beside
from gd_ray.inputs import Inputs
from gd_ray.trial import run_trial
from trials.results import (
    file_of,
    finished,
    finished_rows,
    git_revision,
    share,
    shared_from_others,
    write_stages,
    write_trial,
)


@pytest.fixture(scope="module")
def result(tiny_data, tiny_stream):
    return run_trial(tiny_spec(method="gd+ext"), tiny_data, tiny_stream)


@pytest.fixture
def results(result, tmp_path):
    write_stages(str(tmp_path), "mine", result.spec, result.stages)
    write_trial(str(tmp_path), "mine", result, "cpu", 1)
    return tmp_path


def test_pandas_reads_every_kind_and_the_metrics_can_be_worked_out_again(result, results):
    stages = pd.read_parquet(results / "stages")
    assert set(stages["experiment"]) == {"mine"}
    assert set(stages["trial_id"]) == {result.spec.trial_id}
    assert len(stages) == 1 + 2 + 3
    accuracy = np.full((3, 3), np.nan)
    for row in stages.itertuples():
        accuracy[row.stage - 1, row.task - 1] = row.hits / row.total
    np.testing.assert_array_equal(accuracy, result.accuracy)
    (trial,) = pd.read_parquet(results / "trials").itertuples()
    assert (trial.acc, trial.fgt_paper, trial.status) == (result.acc, result.fgt, "finished")
    assert (trial.method, trial.method_previous, trial.ood_ratio) == ("gd+ext", "global", 0.7)
    confusions = pd.read_parquet(results / "confusions")
    for stage in result.stages:
        rows = confusions[confusions["stage"] == stage.stage]
        assert rows[["true_class", "predicted_class", "count"]].to_numpy().tolist() == stage.confusion.tolist()
    assert not [file for file in results.rglob("*") if file.suffix == ".tmp"]


def test_samples_are_what_the_stages_sampled(result, results):
    found = pd.read_parquet(results / "samples")
    for stage in result.stages:
        rows = found[found["stage"] == stage.stage]
        assert rows["position"].tolist() == stage.samples.positions.tolist()
        assert rows["class"].tolist() == stage.samples.classes.tolist()
        assert ((rows["source"] == "ood") == stage.samples.is_ood).all()
        assert rows.loc[rows["source"] == "previous", "confidence"].between(0, 1).all()


def test_every_loss_has_a_column(result, results):
    stages = pd.read_parquet(results / "stages")
    last = stages[stages["stage"] == 3].iloc[0]
    for name, value in result.stages[-1].losses.items():
        assert last["loss_" + name.replace(" ", "_").replace("-", "_")] == value


def test_a_trial_of_two_experiments_is_run_once_and_stands_in_both(result, results):
    assert finished(str(results)) == {result.spec.trial_id: {"mine"}}
    share(str(results), result.spec.trial_id, "mine", "other")
    assert finished(str(results)) == {result.spec.trial_id: {"mine", "other"}}
    both = pd.read_parquet(results / "stages")
    assert set(both["experiment"]) == {"mine", "other"}
    assert len(both) == 12


def test_half_a_trial_is_not_finished(result, tmp_path):
    write_stages(str(tmp_path), "mine", result.spec, result.stages[:1])
    assert finished(str(tmp_path)) == {}
    assert len(pd.read_parquet(tmp_path / "stages")) == 1


@pytest.mark.parametrize(
    ("address", "place"),
    [
        ("/a/b/", "/a/b/trials/experiment=x/1.parquet"),
        ("s3://bucket/a?region=b&scheme=http", "s3://bucket/a/trials/experiment=x/1.parquet?region=b&scheme=http"),
    ],
)
def test_files_of_addresses_with_options(address, place):
    assert file_of(address, "trials", "x", "1") == place
    assert beside("s3://bucket/a?region=b", "far") == "s3://bucket/a-far?region=b"


def test_a_trial_that_another_experiment_finished_is_given_to_this_one(result, tmp_path):
    assert not shared_from_others(str(tmp_path), result.spec.trial_id, "mine")
    write_stages(str(tmp_path), "other", result.spec, result.stages)
    write_trial(str(tmp_path), "other", result, "cpu", 1)
    for _ in range(2):
        assert shared_from_others(str(tmp_path), result.spec.trial_id, "mine")
    assert finished(str(tmp_path)) == {result.spec.trial_id: {"mine", "other"}}


@pytest.mark.parametrize("revisions", [(None, "abc"), ("abc", None)])
def test_pandas_reads_trials_with_and_without_what_may_be_missing(result, tmp_path, revisions):
    for seed, revision in enumerate(revisions):
        spec = tiny_spec(method="gd+ext", seed=seed, train_per_class=seed or None)
        inputs = result.inputs if revision else Inputs()
        write_trial(str(tmp_path), "mine", replace(result, spec=spec, inputs=inputs), "cpu", 1, revision)
    rows = pd.read_parquet(tmp_path / "trials").set_index("seed")
    assert rows["git_revision"].sort_index().fillna("missing").tolist() == [name or "missing" for name in revisions]
    assert (rows["stream_digest"].notna() == rows["git_revision"].notna()).all()


def test_a_trial_tells_which_images_it_learned_from(result, results, tiny_data, tiny_stream):
    (row,) = pd.read_parquet(results / "trials").itertuples()
    assert (row.data_digest, row.stream_digest) == (tiny_data.digest, tiny_stream.digest)
    ((trial_id, told),) = finished_rows(str(results))
    assert (trial_id, told["data_digest"]) == (result.spec.trial_id, tiny_data.digest)
    assert result.inputs.changed(Inputs(tiny_data.digest, "another")) == ["stream"]
    assert result.inputs.changed(Inputs("another", None)) == ["dataset"]


def test_the_revision_is_that_of_the_program_and_says_when_it_was_changed(tmp_path, monkeypatch):
    def git(*words):
        who = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    module = tmp_path / "trials" / "results.py"
    module.parent.mkdir()
    module.write_text("1")
    monkeypatch.setattr("trials.results.__file__", str(module))
    git_revision.cache_clear()
    assert git_revision() is None
    git("init")
    git("add", ".")
    git("commit", "-m", "one")
    git("tag", "v1")
    git_revision.cache_clear()
    clean = git_revision()
    assert clean is not None
    assert len(clean) == 40
    module.write_text("2")
    assert git_revision() == clean  # a process runs what it has read
    git_revision.cache_clear()
    assert git_revision() == f"{clean}-dirty"
    inner = tmp_path / "venv" / "trials" / "results.py"  # installed inside somebody's repository
    inner.parent.mkdir(parents=True)
    monkeypatch.setattr("trials.results.__file__", str(inner))
    git_revision.cache_clear()
    assert git_revision() is None
    git_revision.cache_clear()
