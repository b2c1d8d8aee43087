"""Loading: exact, also of what is half written, damaged, or from another version."""

import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made import made_spec, write_made

import analysis
from analysis import cached, files
from analysis.curves import curves
from analysis.settings import settings
from gd_ray.errors import UserError
from gd_ray.inputs import Inputs
from gd_ray.metrics import average_forgetting, average_incremental_accuracy
from trials.ledger import write_failure, write_ledger


def hits(stage, task):
    return 90 - 7 * stage + 3 * task


@pytest.fixture
def folder(tmp_path):
    results = str(tmp_path / "results")
    for seed in range(3):
        for method in ("baseline", "gd+ext"):
            write_made(
                results, "table1", made_spec(method, seed, num_classes=6), lambda s, r, seed=seed: hits(s, r) + seed
            )
    return results


def test_one_call_gives_every_frame(folder):
    results = analysis.load(folder)
    assert len(results.trials) == 6
    assert len(results.stages) == 6 * (1 + 2 + 3)
    assert set(results.stages["method"]) == {"baseline", "gd+ext"}
    assert isinstance(results.stages["method"].dtype, pd.CategoricalDtype)
    assert set(results.confusions["stage"]) == {1, 2, 3}
    samples = results.samples
    assert samples.groupby("trial_id", observed=True).size().tolist() == [12, 12, 12]
    assert set(samples["source"]) == {"previous", "ood"}
    assert results.notes == ()


def test_matrices_and_metrics_are_those_of_the_counts(folder):
    results = analysis.load(folder)
    trial = results.trials[(results.trials["method"] == "gd+ext") & (results.trials["seed"] == 2)].iloc[0]
    matrix = results.accuracy_matrix(trial["trial_id"])
    expected = np.array([[(hits(s, r) + 2) / 100 if r <= s else np.nan for r in (1, 2, 3)] for s in (1, 2, 3)])
    np.testing.assert_array_equal(matrix, expected)
    rows = results.curves[results.curves["trial_id"] == trial["trial_id"]].set_index("stage")
    assert np.isnan(rows.loc[1, "acc"])
    for stage in (2, 3):
        part, sizes = expected[:stage, :stage], [2] * stage
        assert rows.loc[stage, "acc"] == pytest.approx(average_incremental_accuracy(part, sizes), abs=1e-12)
        for convention in ("paper", "released"):
            value = average_forgetting(part, sizes, convention)
            assert rows.loc[stage, f"fgt_{convention}"] == pytest.approx(value, abs=1e-12)
        assert rows.loc[stage, "accuracy"] == pytest.approx(np.nanmean(expected[stage - 1]), abs=1e-12)
    # By hand: stage 3 forgot 14 points of task 1 and 7 of task 2, stage 2 forgot 7 of task 1.
    assert rows.loc[3, "fgt_paper"] == pytest.approx((0.07 / 2 + (0.14 + 0.07) / 3) / 2)
    assert rows.loc[3, "fgt_released"] == pytest.approx((0.07 + 0.14 + 0.07) / 3 / 3)
    for metric in ("acc", "fgt_paper", "fgt_released"):
        assert rows.loc[3, metric] == pytest.approx(trial[metric], abs=1e-12)


def test_stages_from_the_trials_own_counts_are_those_of_the_stage_files(folder):
    """Also beside a trial that still runs, and one from before trials held their counts."""
    write_made(folder, "table1", made_spec("gd", 7, num_classes=8), hits, stages=3)
    old = sorted(Path(folder, "trials", "experiment=table1").iterdir())[0]
    pq.write_table(pq.ParquetFile(old).read().drop_columns(["hits", "totals"]).replace_schema_metadata(None), old)
    results = analysis.load(folder)
    assert set(results.counts["trial_id"]) == set(results.trials["trial_id"]) - {old.stem}
    whole = analysis.load(folder, stage_columns=None)
    assert whole.stages["trial_id"].nunique() == 7
    by = ["trial_id", "stage", "task"]
    other = whole.stages.sort_values(by).reset_index(drop=True)
    for trial_id in results.counts["trial_id"]:
        Path(folder, "stages", "experiment=table1", f"{trial_id}.parquet").unlink()
    one = results.stages.sort_values(by).reset_index(drop=True)
    pd.testing.assert_frame_equal(one, other[one.columns].astype({"seed": "int64"}), check_categorical=False)
    for name in ("trial_id", "experiment", "method"):
        assert isinstance(one[name].dtype, pd.CategoricalDtype)


def test_tasks_of_different_sizes_have_curves_of_their_own():
    sizes, right = (1, 3), {(1, 1): 8, (2, 1): 4, (2, 2): 9}
    stages = pd.DataFrame(
        [
            {"trial_id": "x", "stage": s, "task": r, "hits": h, "total": 10, "classes_of_task": sizes[r - 1]}
            for (s, r), h in right.items()
        ]
    )
    found = curves(stages).set_index("stage")
    assert found.loc[2, "acc"] == pytest.approx(0.25 * 0.4 + 0.75 * 0.9)
    assert found.loc[2, "fgt_paper"] == pytest.approx(0.25 * 0.4)


def test_filters_read_only_the_files_of_their_trials(folder, tmp_path):
    results = analysis.load(folder, filters=[("method", "=", "gd+ext"), ("seed", "in", [0, 1])])
    assert len(results.trials) == results.stages["trial_id"].nunique() == 2
    kept = set(results.trials["trial_id"])
    for file in Path(folder, "samples", "experiment=table1").iterdir():
        if file.stem not in kept:
            file.unlink()
    assert set(results.samples["trial_id"]) == kept
    few = results.rows("confusions", sorted(kept)[:1], [("stage", "=", 3)])
    assert set(few["stage"]) == {3}
    assert few["trial_id"].nunique() == 1


def test_a_filter_makes_no_finished_trial_a_waiting_one(folder):
    rows = [{"trial_id": trial, "method": "x"} for trial in analysis.load(folder).trials["trial_id"]]
    write_ledger(folder, "table1", "storage", rows)
    results = analysis.load(folder, filters=[("method", "=", "gd+ext")])
    assert len(results.trials) == 3
    assert set(results.expected["state"]) == {"done"}
    assert results.notes == ()


def test_more_columns_of_the_stages(folder):
    results = analysis.load(folder, stage_columns=["labelled_size"])
    assert set(results.stages["labelled_size"]) == {500}
    assert results.curves["acc"].notna().any()
    with pytest.raises(UserError, match="'label_size' does not exist; did you mean 'labelled_size'"):
        _ = analysis.load(folder, stage_columns=["label_size"]).stages


def test_a_trial_of_two_experiments_counts_once(folder):
    write_made(folder, "ood-ratio", made_spec("gd+ext", 0, num_classes=6), hits)
    results = analysis.load(folder)
    assert len(results.trials) == 6
    assert len(results.stages) == 36
    assert len(results.experiments["ood-ratio"]) == 1
    assert len(analysis.load(folder, experiment="ood-ratio").trials) == 1


@pytest.mark.parametrize("stopped", ["a-stopped", "z-stopped"])
def test_what_a_stopped_experiment_has_of_a_trial_does_not_hide_the_whole(folder, stopped):
    trial = write_made(folder, stopped, made_spec("gd+ext", 0, num_classes=6), hits, stages=1)
    results = analysis.load(folder, stage_columns=None)
    assert results.notes == ()
    for kind in ("stages", "confusions", "samples"):
        rows = results.rows(kind, [trial])
        assert rows["stage"].max() == 3
        assert set(rows["experiment"]) == {"table1"}
    assert results.stages.loc[results.stages["trial_id"] == trial, "stage"].max() == 3


def test_images_that_changed_under_their_name_are_told(folder):
    for seed, digest in enumerate(("a", "a", "b"), start=3):
        spec = made_spec("gd+ext", seed, num_classes=6)
        write_made(folder, "table1", spec, hits, inputs=Inputs("same", digest))
    assert analysis.load(folder).notes == (
        "Trials of stream tinyimages learned from different images under that name (2 kinds, see stream_digest): they "
        "should not be averaged.",
    )


def test_images_that_a_field_cuts_are_no_others(folder):
    for number in (8, 100):  # glyphs are drawn by number
        spec = made_spec("gd", number, num_classes=6, dataset="glyphs", train_per_class=number)
        write_made(folder, "table1", spec, hits, inputs=Inputs(f"of {number}"))
    assert analysis.load(folder).notes == ()


def test_an_object_store_address(folder):
    assert len(analysis.load(f"file://{folder}").trials) == 6


def test_an_empty_or_missing_folder(tmp_path):
    for place in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(UserError, match="holds no results; give the folder that 'gd-ray run --results' wrote to"):
            analysis.load(str(place))


def test_an_experiment_that_is_not_there(folder):
    with pytest.raises(UserError, match="experiment 'table9' is not in results .*; it holds: table1"):
        analysis.load(folder, experiment="table9")


def test_a_trial_that_is_not_there(folder):
    with pytest.raises(UserError, match="trial 'x' is not in results"):
        analysis.load(folder).accuracy_matrix("x")


def test_a_half_written_experiment(folder):
    running = made_spec("e2e", 0, num_classes=6)
    failed, waiting = made_spec("lwf", 0, num_classes=6), made_spec("dr", 0, num_classes=6)
    write_made(folder, "table1", running, hits, stages=2)
    rows = [{"trial_id": spec.trial_id, "method": spec.rules.name} for spec in (running, failed, waiting)]
    write_ledger(folder, "table1", "storage", rows)
    write_failure(folder, failed.trial_id, "RuntimeError: no", "log.txt")
    temporary = Path(folder, "trials", "experiment=table1", ".abc.parquet.123.tmp")
    temporary.write_bytes(b"half a file")
    results = analysis.load(folder)
    assert len(results.trials) == 6
    assert results.unfinished == (running.trial_id,)
    assert results.accuracy_matrix(running.trial_id).shape == (2, 2)
    assert results.expected.set_index("method")["state"].to_dict() == {
        "e2e": "started",
        "lwf": "failed",
        "dr": "waiting",
    }
    text = " ".join(results.notes)
    assert "1 trial is not finished" in text
    assert "1 trial is not started yet" in text
    assert "1 trial is failed" not in text
    assert "1 trial failed" in text


def test_only_stages_so_far(tmp_path):
    write_made(str(tmp_path), "table1", made_spec("gd", 0), hits, stages=1)
    results = analysis.load(str(tmp_path))
    assert results.trials.empty
    assert len(results.stages) == 1


@pytest.mark.parametrize(
    "damage", [lambda content: content[:100], lambda content: b"PAR1" + b"x" * (len(content) - 12) + content[-8:]]
)
def test_a_damaged_file_is_left_out_and_named(folder, damage):
    bad = sorted(Path(folder, "trials", "experiment=table1").iterdir())[0]
    bad.write_bytes(damage(bad.read_bytes()))
    results = analysis.load(folder)
    assert len(results.trials) == 5
    assert any(f"1 file cannot be read and is left out: {bad}" in note for note in results.notes)


def test_columns_of_a_newer_version_are_kept_and_told(folder):
    file = sorted(Path(folder, "trials", "experiment=table1").iterdir())[0]
    table = pq.ParquetFile(file).read()
    pq.write_table(table.append_column("optimiser", pa.array(["adam"])), file)
    results = analysis.load(folder)
    assert results.trials["optimiser"].notna().sum() == 1
    assert any("columns that this version does not know" in note and "optimiser" in note for note in results.notes)


def test_trials_from_before_a_field_have_its_old_value(folder):
    old, older = sorted(Path(folder, "trials", "experiment=table1").iterdir())[:2]
    for file in (old, older):
        pq.write_table(pq.ParquetFile(file).read().drop_columns("precision").replace_schema_metadata(None), file)
    results = analysis.load(folder)
    assert set(results.trials["precision"]) == {"float32"}
    assert len(analysis.load(folder, filters=[("precision", "=", "float32")]).trials) == 6
    assert len(analysis.load(folder, filters=[("precision", "=", "bfloat16")]).trials) == 0
    with pytest.raises(UserError, match="column of a filter 'precison' does not exist; did you mean 'precision'?"):
        analysis.load(folder, filters=[("precison", "=", "float32")])
    assert len(settings(results)) == 1


def test_collapsed_trials_are_flagged_and_kept(folder):
    # Three tasks of two classes: 1/6 right is guessing.
    trial = write_made(folder, "table1", made_spec("lwf", 0, num_classes=6), lambda s, r: 16)
    trials = analysis.load(folder).trials
    assert trials.loc[trials["collapsed"], "trial_id"].tolist() == [trial]
    for file in Path(folder, "trials", "experiment=table1").iterdir():  # as older versions wrote them
        pq.write_table(pq.ParquetFile(file).read().drop_columns("final_accuracy").replace_schema_metadata(None), file)
    older = analysis.load(folder).trials
    assert older.loc[older["collapsed"], "trial_id"].tolist() == [trial]


def test_rows_come_from_the_metadata_as_from_the_columns(folder, monkeypatch):
    found, real = [], files._from_metadata
    monkeypatch.setattr(files, "_from_metadata", lambda contents: found.append(real(contents)) or found[-1])
    results = analysis.load(folder)
    quick = results.trials
    assert sum(len(table) for table in found) == 6
    assert "stages" not in vars(results)  # not read before they are asked for
    monkeypatch.setattr(files, "_from_metadata", lambda contents: None)
    slow = analysis.load(folder).trials
    pd.testing.assert_frame_equal(quick, slow)


def test_a_trial_file_without_the_row_in_its_metadata_is_read_all_the_same(folder):
    whole = analysis.load(folder).trials
    path = sorted(Path(folder, "trials", "experiment=table1").iterdir())[0]
    pq.write_table(pq.ParquetFile(path).read().replace_schema_metadata(None), path)
    pd.testing.assert_frame_equal(analysis.load(folder).trials, whole)


def test_runs_of_one_experiment_are_joined(folder):
    for storage, names in (("old", ("one", "both")), ("new", ("both", "two")), ("new", ("both", "two"))):
        write_ledger(folder, "table1", storage, [{"trial_id": name} for name in names], f"gd-ray run to {storage}")
    found = analysis.load(folder)
    assert found.commands == {"table1": ("gd-ray run to old", "gd-ray run to new")}
    assert found.storage == ("old", "new")
    assert found.expected["trial_id"].tolist() == ["one", "both", "two"]


def test_a_file_that_does_not_open_is_no_damaged_one(folder):
    """It may be as good as ever: reading ends with a sentence, instead of advice to delete it."""
    path = sorted(Path(folder, "trials", "experiment=table1").iterdir())[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"cannot be opened \(Is a directory\)") as error:
        analysis.load(folder)
    assert str(path) in str(error.value)
    assert "elete" not in str(error.value)


def test_the_cache_knows_what_changed(folder, monkeypatch):
    load = partial(analysis.load, folder, stage_columns=None)
    plain = load()
    monkeypatch.setattr(cached, "LEAST", 1)
    first = load()
    assert len(first.stages) == len(plain.stages)
    assert {path.name.split("-")[0] for path in Path(folder, ".cache").iterdir()} == {"trials", "stages"}
    changed = sorted(Path(folder, "stages", "experiment=table1").iterdir())[0]
    gone = sorted(Path(folder, "stages", "experiment=table1").iterdir())[1]
    reads, read = [], files._read

    def counted(results, others, *rest):
        reads.extend(others)
        return read(results, others, *rest)

    monkeypatch.setattr(files, "_read", counted)
    second = load()
    assert len(second.stages) == len(plain.stages)
    assert reads == []
    for one, other in ((plain, first), (first, second)):
        for name in ("trials", "stages"):
            a, b = (getattr(each, name).sort_values(["trial_id"], kind="stable") for each in (one, other))
            pd.testing.assert_frame_equal(a.reset_index(drop=True), b[a.columns].reset_index(drop=True))
    seed = int(plain.trials.set_index("trial_id").loc[changed.stem, "seed"])
    method = plain.trials.set_index("trial_id").loc[changed.stem, "method"]
    write_made(folder, "table1", made_spec(method, seed, num_classes=6), lambda s, r: 1)
    gone.unlink()
    third = load()
    assert set(third.stages.loc[third.stages["trial_id"] == changed.stem, "hits"]) == {1}
    assert {(Path(file.path).parts[-3], file.trial_id) for file in reads} == {
        ("trials", changed.stem),
        ("stages", changed.stem),
    }
    assert gone.stem not in set(third.stages["trial_id"])
    for file in Path(folder, ".cache").iterdir():
        file.write_bytes(b"damaged")
    assert len(load().trials) == 6


def test_import_is_light_and_fast():
    code = (
        "import time, sys; start = time.perf_counter(); import analysis; "
        "print(time.perf_counter() - start, [m for m in ('torch', 'ray', 'trials') if m in sys.modules])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert all(run.split(" ", 1)[1].strip() == "[]" for run in runs)
    assert min(float(run.split(" ", 1)[0]) for run in runs) < 1.5  # the least: others may use the machine too


@pytest.mark.parametrize("module", ["report", "tables", "figures", "statistics"])
def test_no_module_loads_torch_or_ray(module):
    code = f"import sys, analysis.{module}; print([m for m in ('torch', 'ray', 'trials') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"
