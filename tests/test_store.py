import subprocess
from contextlib import suppress
from dataclasses import replace

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from gd_ray import store
from gd_ray.errors import UserError
from gd_ray.fingerprint import Fingerprints
from gd_ray.hardware import describe
from gd_ray.rows import git_revision
from gd_ray.storage import join, open_atomic, sibling, write_atomic
from gd_ray.store import KINDS, finished, pack, read_rows, read_selections, write_stages, write_trial
from tests.helpers.tiny import tiny_spec, write_result


@pytest.fixture
def results(tiny_result, tmp_path):
    write_result(tmp_path, tiny_result)
    return tmp_path


def test_rows_name_the_hardware_and_older_rows_without_it_still_load(tiny_result, results):
    newer = replace(tiny_result, spec=replace(tiny_result.spec, seed=7))
    hardware = describe("cpu", newer.spec.precision)
    write_trial(str(results), newer, device="cpu", threads=1, hardware=hardware)
    rows = {row["seed"]: row for row in read_rows(str(results), "trials")[0].to_pylist()}
    assert {name: rows[7][name] for name in hardware} == hardware
    assert hardware["arithmetic"] == "IEEE float32"
    assert all(rows[tiny_result.spec.seed].get(name) is None for name in hardware)
    pack(str(results))
    assert read_rows(str(results), "trials")[0].num_rows == 2


def test_pandas_reads_every_kind_and_the_metrics_can_be_computed_again(tiny_result, results):
    stages = pd.read_parquet(results / "stages")
    assert set(stages["trial_id"]) == {tiny_result.spec.trial_id}
    assert len(stages) == 1 + 2 + 3
    accuracy = np.full((3, 3), np.nan)
    for row in stages.itertuples():
        accuracy[row.stage - 1, row.task - 1] = row.hits / row.total
    np.testing.assert_array_equal(accuracy, tiny_result.accuracy)
    (trial,) = pd.read_parquet(results / "trials").itertuples()
    assert (trial.acc, trial.fgt_paper) == (tiny_result.acc, tiny_result.fgt)
    assert (trial.method, trial.method_previous, trial.ood_ratio) == ("gd+ext", "global", 0.7)
    confusions = pd.read_parquet(results / "confusions")
    for stage in tiny_result.stages:
        rows = confusions[confusions["stage"] == stage.stage]
        assert rows[["true_class", "predicted_class", "count"]].to_numpy().tolist() == stage.confusion.tolist()
    assert not [file for file in results.rglob("*") if file.suffix == ".tmp"]


def test_samples_are_what_the_stages_sampled(tiny_result, results):
    samples = pd.read_parquet(results / "samples")
    for stage in tiny_result.stages:
        rows = samples[samples["stage"] == stage.stage]
        assert rows["position"].tolist() == stage.samples.positions.tolist()
        assert rows["class"].tolist() == stage.samples.classes.tolist()
        assert ((rows["source"] == "ood") == stage.samples.is_ood).all()
        assert rows.loc[rows["source"] == "previous", "score"].between(0, 1).all()
        assert set(rows["score_kind"]) <= {"probability", "none"}


def test_losses_and_steps_are_open_columns(tiny_result, results):
    other = tiny_spec(method="gd+ext", seed=5)
    last = replace(
        tiny_result.stages[-1],
        losses={"model my-own term": 2.5},
        images={"align": 7},
        seconds={"align": 0.5, "model": 1.0},
    )
    write_stages(str(results), other, (*tiny_result.stages[:-1], last))
    table, unreadable = read_rows(str(results), "stages")
    rows = table.to_pandas().set_index(["trial_id", "stage", "task"])
    assert unreadable == []
    own = rows.loc[other.trial_id, 3, 1]
    assert (own["loss_model_my_own_term"], own["images_align"], own["seconds_align"]) == (2.5, 7, 0.5)
    first = rows.loc[tiny_result.spec.trial_id, 3, 1]
    assert np.isnan(first["loss_model_my_own_term"])
    for name, value in tiny_result.stages[-1].losses.items():
        assert first["loss_" + name.replace(" ", "_").replace("-", "_")] == value
    # Pandas alone takes the columns of one file, until all of them are packed.
    write_trial(str(results), replace(tiny_result, spec=other), device="cpu", threads=1)
    assert len(pd.read_parquet(results / "stages").columns) < len(table.column_names)
    pack(str(results))
    assert set(pd.read_parquet(results / "stages")) == set(table.column_names)


def test_a_trial_is_finished_once_its_row_exists(tiny_result, tmp_path):
    assert finished(str(tmp_path)) == set()
    write_stages(str(tmp_path), tiny_result.spec, tiny_result.stages[:1])
    assert finished(str(tmp_path)) == set()
    assert len(pd.read_parquet(tmp_path / "stages")) == 1
    write_trial(str(tmp_path), tiny_result, device="cpu", threads=1)
    assert finished(str(tmp_path)) == {tiny_result.spec.trial_id}


def test_some_trials_and_columns_and_filters(tiny_result, tmp_path):
    ids = [write_result(tmp_path, tiny_result, seed) for seed in range(3)]
    table, _ = read_rows(str(tmp_path), "stages", ids[1:], columns=["hits", "unknown"])
    assert table.column_names == ["trial_id", "hits"]
    assert set(table["trial_id"].to_pylist()) == set(ids[1:])
    table, _ = read_rows(str(tmp_path), "trials", columns=["acc"], filters=[("seed", "in", [0, 2])])
    assert table.column_names == ["trial_id", "acc"]
    assert set(table["trial_id"].to_pylist()) == {ids[0], ids[2]}
    with pytest.raises(UserError, match="column of a filter 'sed' does not exist; did you mean 'seed'"):
        read_rows(str(tmp_path), "trials", filters=[("sed", "=", 0)])
    assert len(read_rows(str(tmp_path / "none"), "trials", filters=[("seed", "=", 0)])[0]) == 0


def test_files_that_cannot_be_read_are_named(tiny_result, results):
    broken = results / "trials" / "broken.parquet"
    broken.write_bytes(b"PAR1")
    table, unreadable = read_rows(str(results), "trials")
    assert (len(table), unreadable) == (1, [str(broken)])


def frames(folder):
    tables = {kind: read_rows(str(folder), kind)[0].to_pandas().astype({"trial_id": str}) for kind in KINDS}
    by = {"trials": ["trial_id"], "stages": ["trial_id", "stage", "task"]}
    return {
        kind: table.sort_values(by.get(kind, ["trial_id"]), kind="stable", ignore_index=True)[sorted(table.columns)]
        for kind, table in tables.items()
    }


def assert_same(first, second):
    for kind in KINDS:
        pd.testing.assert_frame_equal(first[kind], second[kind])


def test_pack_keeps_every_row_and_single_files_win(tiny_result, tmp_path):
    ids = [write_result(tmp_path, tiny_result, seed) for seed in range(3)]
    unfinished = tiny_spec(method="gd+ext", seed=9)
    write_stages(str(tmp_path), unfinished, tiny_result.stages[:1])
    before = frames(tmp_path)
    assert pack(str(tmp_path)) == dict.fromkeys(KINDS, 3)
    assert_same(frames(tmp_path), before)
    assert len(list((tmp_path / "trials").iterdir())) == 1
    assert {file.stem for file in (tmp_path / "stages").iterdir() if "packed" not in file.name} == {unfinished.trial_id}
    assert finished(str(tmp_path)) == set(ids)
    assert len(pd.read_parquet(tmp_path / "trials")) == 3
    names = {file.name for file in tmp_path.rglob("*.parquet")}
    pack(str(tmp_path))
    assert {file.name for file in tmp_path.rglob("*.parquet")} == names
    # A later trial joins; one of the packed trials is written again and wins.
    ids.append(write_result(tmp_path, tiny_result, 3))
    again = replace(tiny_result, spec=replace(tiny_result.spec, seed=0), stages=tiny_result.stages[:2])
    write_trial(str(tmp_path), again, device="cpu", threads=7)
    table, _ = read_rows(str(tmp_path), "trials", columns=["threads"])
    threads = dict(zip(table["trial_id"].to_pylist(), table["threads"].to_pylist(), strict=True))
    assert threads == {trial: 7 if trial == ids[0] else 1 for trial in ids}
    assert pack(str(tmp_path))["trials"] == 4
    assert finished(str(tmp_path)) == set(ids)
    one, _ = read_rows(str(tmp_path), "trials", ids[:1])
    assert one["threads"].to_pylist() == [7]


@pytest.mark.parametrize("calls", range(17))
def test_an_interrupted_pack_loses_nothing(tiny_result, tmp_path, monkeypatch, calls):
    for seed in range(2):
        write_result(tmp_path, tiny_result, seed)
    pack(str(tmp_path))
    write_result(tmp_path, tiny_result, 2)
    before, left = frames(tmp_path), calls

    def interrupted(function):
        def call(*arguments):
            nonlocal left
            left -= 1
            if left < 0:
                raise KeyboardInterrupt
            return function(*arguments)

        return call

    with monkeypatch.context() as patch:
        patch.setattr("gd_ray.table_files.delete_file", interrupted(store.delete_file))
        patch.setattr("gd_ray.table_files.open_atomic", interrupted(open_atomic))
        try:
            pack(str(tmp_path))
            assert calls >= 15
        except KeyboardInterrupt:
            pass
    assert_same(frames(tmp_path), before)
    pack(str(tmp_path))
    assert_same(frames(tmp_path), before)
    assert len(list(tmp_path.rglob("*.parquet"))) == len(KINDS)
    assert not list(tmp_path.rglob("*.tmp"))


def test_pack_leaves_files_that_cannot_be_read(tiny_result, tmp_path):
    write_result(tmp_path, tiny_result, 0)
    broken = tmp_path / "stages" / f"{write_result(tmp_path, tiny_result, 1)}.parquet"
    broken.write_bytes(b"PAR1")
    assert pack(str(tmp_path)) == dict.fromkeys(KINDS, 2) | {"stages": 1}
    assert broken.exists()
    (packed,) = (tmp_path / "trials").glob("packed-*")
    packed.write_bytes(b"PAR1")
    with pytest.raises(UserError, match="packed file .* cannot be read"):
        finished(str(tmp_path))
    with pytest.raises(UserError, match="packed file .* cannot be read"):
        pack(str(tmp_path))


def test_the_former_layout_is_refused_with_the_command_that_converts_it(tmp_path):
    (tmp_path / "trials" / "experiment=table1").mkdir(parents=True)
    for read in (finished, lambda results: read_rows(results, "trials"), pack):
        with pytest.raises(UserError, match="gd-ray convert"):
            read(str(tmp_path))
    other = tmp_path / "other"
    (other / "ledger" / "experiment=table1").mkdir(parents=True)
    with pytest.raises(UserError, match="gd-ray convert"):
        read_selections(str(other))


@pytest.mark.parametrize(
    ("address", "file"),
    [("/a/b/", "/a/b/trials/1"), ("s3://bucket/a?region=b&scheme=http", "s3://bucket/a/trials/1?region=b&scheme=http")],
)
def test_addresses_with_options(address, file):
    assert join(address, "trials/1") == file
    assert sibling("s3://bucket/a?region=b", "far") == "s3://bucket/a-far?region=b"


def test_a_file_is_whole_or_absent(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_atomic("new/folder/file", b"one")
    assert (tmp_path / "new/folder/file").read_bytes() == b"one"
    with suppress(KeyboardInterrupt), open_atomic("new/folder/file") as stream:
        stream.write(b"two")
        raise KeyboardInterrupt
    assert [file.name for file in (tmp_path / "new/folder").iterdir()] == ["file"]
    assert (tmp_path / "new/folder/file").read_bytes() == b"one"


@pytest.mark.parametrize("revisions", [(None, "abc"), ("abc", None)])
def test_pandas_reads_trials_with_and_without_optional_values(tiny_result, tmp_path, revisions):
    for seed, revision in enumerate(revisions):
        spec = tiny_spec(method="gd+ext", seed=seed, train_per_class=seed or None)
        inputs = tiny_result.fingerprints if revision else Fingerprints()
        trial = replace(tiny_result, spec=spec, fingerprints=inputs)
        write_trial(str(tmp_path), trial, device="cpu", threads=1, revision=revision)
    rows = pd.read_parquet(tmp_path / "trials").set_index("seed")
    assert rows["git_revision"].sort_index().fillna("missing").tolist() == [name or "missing" for name in revisions]
    assert (rows["stream_digest"].notna() == rows["git_revision"].notna()).all()
    assert read_rows(str(tmp_path), "trials")[0].schema.field("train_per_class").type == pa.int64()


def test_a_trial_records_the_images_that_it_learned_from(tiny_result, results, tiny_data, tiny_stream):
    (row,) = pd.read_parquet(results / "trials").itertuples()
    assert (row.data_digest, row.stream_digest) == (tiny_data.digest, tiny_stream.digest)
    assert tiny_result.fingerprints.changed(Fingerprints(tiny_data.digest, "another")) == ["stream"]
    assert tiny_result.fingerprints.changed(Fingerprints("another", None)) == ["dataset"]


def test_the_revision_is_that_of_the_program_and_marks_changes(tmp_path, monkeypatch):
    def git(*words):
        who = ("-c", "user.name=x", "-c", "user.email=x@x")
        subprocess.run(["git", "-C", str(tmp_path), *who, *words], check=True, capture_output=True)

    module = tmp_path / "gd_ray" / "rows.py"
    module.parent.mkdir()
    module.write_text("1")
    monkeypatch.setattr("gd_ray.rows.__file__", str(module))
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
    assert git_revision() == clean  # a process runs what it has imported
    git_revision.cache_clear()
    assert git_revision() == f"{clean}-dirty"
    inner = tmp_path / "venv" / "gd_ray" / "rows.py"  # installed inside another repository
    inner.parent.mkdir(parents=True)
    monkeypatch.setattr("gd_ray.rows.__file__", str(inner))
    git_revision.cache_clear()
    assert git_revision() is None
    git_revision.cache_clear()
