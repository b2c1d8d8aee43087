"""Loading: exact, also of what is half written, damaged, packed, or from another version."""

import inspect
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import analysis
from analysis.aggregate import settings
from analysis.curves import curves
from analysis.frames import TRIAL_COLUMNS
from gd_ray.errors import UserError
from gd_ray.fingerprint import Fingerprints
from gd_ray.hardware import describe
from gd_ray.metrics import average_forgetting, average_incremental_accuracy
from gd_ray.store import KINDS, pack, write_failure, write_stages, write_trial
from gd_ray.trial_result import TrialResult
from tests.helpers.made import made_spec, made_stage, select, write_made


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
    for file in Path(folder, "samples").iterdir():
        if file.stem not in kept:
            file.unlink()
    assert set(results.samples["trial_id"]) == kept
    few = results.rows("confusions", sorted(kept)[:1], [("stage", "=", 3)])
    assert set(few["stage"]) == {3}
    assert few["trial_id"].nunique() == 1


def test_a_filter_makes_no_finished_trial_a_waiting_one(folder):
    results = analysis.load(folder, filters=[("method", "=", "gd+ext")])
    assert len(results.trials) == 3
    assert set(results.states["state"]) == {"done"}
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


def test_images_that_changed_under_their_name_are_told(folder):
    for seed, digest in enumerate(("a", "a", "b"), start=3):
        spec = made_spec("gd+ext", seed, num_classes=6)
        write_made(folder, "table1", spec, hits, inputs=Fingerprints("same", digest))
    assert analysis.load(folder).notes == (
        "Trials of stream tinyimages learned from different images under that name (2 kinds, see stream_digest): do "
        "not average them.",
    )


def test_images_that_a_field_cuts_are_no_others(folder):
    for number in (8, 100):  # glyphs are drawn by number
        spec = made_spec("gd", number, num_classes=6, dataset="glyphs", train_per_class=number)
        write_made(folder, "table1", spec, hits, inputs=Fingerprints(f"of {number}"))
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
    select(folder, "table1", [running, failed, waiting])
    write_failure(folder, failed.trial_id, "RuntimeError: no", "log.txt")
    temporary = Path(folder, "trials", ".abc.parquet.123.tmp")
    temporary.write_bytes(b"half a file")
    results = analysis.load(folder)
    assert len(results.trials) == 6
    assert results.unfinished == (running.trial_id,)
    assert results.accuracy_matrix(running.trial_id).shape == (2, 2)
    states = results.states.set_index("trial_id")
    assert states.loc[[running.trial_id, waiting.trial_id], "state"].tolist() == ["waiting", "waiting"]
    assert states.loc[failed.trial_id, ["state", "detail"]].tolist() == ["failed", "RuntimeError: no (log.txt)"]
    text = " ".join(results.notes)
    assert "Trials not finished yet: 2 waiting." in text
    assert "Stages of 1 unfinished trial are among" in text
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
    bad = sorted(Path(folder, "trials").iterdir())[0]
    bad.write_bytes(damage(bad.read_bytes()))
    results = analysis.load(folder)
    assert len(results.trials) == 5
    assert any(f"1 file cannot be read and is left out: {bad}" in note for note in results.notes)


def test_columns_of_a_newer_version_are_kept_and_named(folder):
    file = sorted(Path(folder, "trials").iterdir())[0]
    table = pq.ParquetFile(file).read()
    pq.write_table(table.append_column("optimiser", pa.array(["adam"])), file)
    results = analysis.load(folder)
    assert results.trials["optimiser"].notna().sum() == 1
    assert any("that this version does not know" in note and "optimiser" in note for note in results.notes)


def test_trials_from_before_a_field_have_its_default(folder):
    for file in sorted(Path(folder, "trials").iterdir())[:2]:
        pq.write_table(pq.ParquetFile(file).read().drop_columns(["precision", "batch_size", "method_ensemble"]), file)
    results = analysis.load(folder)
    assert set(results.trials["precision"]) == {"float32"}
    assert results.trials["batch_size"].tolist() == [128] * 6
    assert results.trials["method_ensemble"].dtype == bool
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


def test_runs_of_one_experiment_are_joined(tmp_path):
    one, both, two = (made_spec("gd", seed) for seed in range(3))
    for storage, specs in (("old", (one, both)), ("new", (both, two)), ("new", (both, two))):
        select(str(tmp_path), "table1", specs, storage=storage, command=f"gd-ray run to {storage}")
    found = analysis.load(str(tmp_path))
    assert found.commands == {"table1": ("gd-ray run to old", "gd-ray run to new")}
    assert found.storage == ("old", "new")
    assert found.states["trial_id"].tolist() == [one.trial_id, both.trial_id, two.trial_id]
    assert found.experiments == {"table1": (one.trial_id, both.trial_id, two.trial_id)}


def test_packed_results_are_the_same(folder):
    write_made(folder, "table1", made_spec("gd", 7, num_classes=8), hits, stages=3)
    before = analysis.load(folder, stage_columns=None)
    frames = {name: getattr(before, name) for name in ("trials", "stages", "confusions", "samples", "curves")}
    assert pack(folder) == {kind: 0 if "confidences" in kind else 6 for kind in KINDS}
    after = analysis.load(folder, stage_columns=None)
    for name, frame in frames.items():
        by = [column for column in ("trial_id", "stage", "task", "true_class", "position") if column in frame]
        pair = (f.astype({"trial_id": str}) for f in (frame, getattr(after, name)))
        one, other = (f.sort_values(by, kind="stable").reset_index(drop=True) for f in pair)
        pd.testing.assert_frame_equal(one, other[one.columns], check_categorical=False)
    assert after.notes == before.notes


def test_stages_have_the_fields_that_vary(folder):
    write_made(folder, "table1", made_spec("gd", 0, num_classes=6, batch_size=64), hits)
    stages = analysis.load(folder).stages
    assert stages.groupby("method", observed=True)["batch_size"].unique().map(list).to_dict() == {
        "baseline": [128],
        "gd+ext": [128],
        "gd": [64],
    }
    assert "learning_rate" not in stages


def test_every_loss_is_a_column(folder):
    spec = made_spec("gd", 9, num_classes=6)
    stages = [replace(made_stage(spec, k, hits), losses={"model cls": 0.5, "head align": 0.1 * k}) for k in (1, 2, 3)]
    write_stages(folder, spec, stages)
    write_trial(folder, TrialResult(spec, tuple(stages)), device="cpu", threads=1)
    rows = analysis.load(folder, stage_columns=["loss_head_align"]).stages
    assert rows.loc[rows["trial_id"] == spec.trial_id, "loss_head_align"].max() == pytest.approx(0.3)
    assert rows.loc[rows["trial_id"] != spec.trial_id, "loss_head_align"].isna().all()


def test_a_file_that_does_not_open_is_no_damaged_one(folder):
    """It may be as good as ever: reading ends with a sentence, instead of advice to delete it."""
    path = sorted(Path(folder, "trials").iterdir())[0]
    path.unlink()
    path.mkdir()
    with pytest.raises(UserError, match=r"cannot be opened \(Is a directory\)") as error:
        analysis.load(folder)
    assert str(path) in str(error.value)
    assert "elete" not in str(error.value)


def test_import_is_light_and_fast():
    code = (
        "import time, sys; start = time.process_time(); import analysis; "
        "print(time.process_time() - start, [m for m in ('torch', 'ray', 'trials') if m in sys.modules])"
    )
    runs = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(3)
    ]
    assert all(run.split(" ", 1)[1].strip() == "[]" for run in runs)
    assert min(float(run.split(" ", 1)[0]) for run in runs) < 1.5


@pytest.mark.parametrize("module", ["report", "tables", "figures", "stats", "summary"])
def test_no_module_loads_torch_or_ray(module):
    code = f"import sys, analysis.{module}; print([m for m in ('torch', 'ray', 'trials') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert found.strip() == "[]"


def test_every_frame_tells_trials_of_a_sweep_apart(tmp_path):
    """Grouping by method alone would average over the sweep; what varies is at hand in every frame."""
    folder = str(tmp_path)
    for ratio in (0.5, 0.7):
        write_made(folder, "sweep", made_spec("gd+ext", 0, ood_ratio=ratio), hits)
    write_made(folder, "sweep", made_spec("gd+ext", 1, network="wrn-10-1"), hits, stages=1)
    select(folder, "sweep", [made_spec("gd+ext", 2)])
    results = analysis.load(folder)
    for name in ("trials", "states", "stages", "curves", "confusions", "samples", "specs"):
        frame = getattr(results, name).reset_index()
        fields = ["method", "dataset", "task_size", "seed", "ood_ratio", "network"]
        apart = frame.groupby(fields, observed=True)["trial_id"].nunique()
        assert len(apart) == frame["trial_id"].nunique() >= 2, name
        assert (apart == 1).all(), name
        assert "window" not in frame or name in ("trials", "specs")  # it does not vary
    assert results.curves.set_index("trial_id")["ood_ratio"].to_dict() == results.specs["ood_ratio"][:3].to_dict()
    assert list(results.names.values())[-1] == "GD+ext, seed 2, OOD ratio 0.7, network wrn-16-2"


def test_every_column_that_a_trial_writes_is_known():
    written = {*describe("cpu"), *inspect.signature(write_trial).parameters} - {"results", "result", "hardware"}
    assert written - {"revision"} <= set(TRIAL_COLUMNS)
