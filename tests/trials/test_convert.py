"""Results of version 0.1 in the present layout: nothing lost, and the ids of today."""

import json
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gd_ray.errors import UserError
from gd_ray.store import KINDS, finished, read_class_names, read_rows, read_selections, trial_states
from trials.convert import convert_results
from trials.experiments import experiment_named

STEPS = ("score", "teacher", "model", "fine_tune", "evaluate")


def former_files(folder, spec, old_id, experiments):
    """Write a finished trial as version 0.1 did."""
    _, depth, width = spec.network.split("-")
    later = ("network", "plugin", "method_learner", "method_shares_first_model", "method_options")
    row = {name: value for name, value in spec.flat().items() if name not in later}
    row |= {
        "depth": int(depth),
        "width": int(width),
        "acc": 0.5,
        "fgt_paper": 0.1,
        "fgt_released": 0.05,
        "seconds": 9.0,
    }
    row |= {"final_accuracy": 0.4, "hits": [1, 2, 3], "totals": [4, 4, 4], "status": "finished", "git_revision": "abc"}
    identity = {name: row[name] for name in ("method", "dataset", "task_size", "seed")}
    stage = {"trial_id": old_id, **identity, "stage": 1, "task": 1, "hits": 1, "total": 4, "mean_confidence": 0.7}
    stage |= {f"{kind}_{step}": 5 * (step == "model") for kind in ("images", "seconds") for step in STEPS}
    stages = pa.Table.from_pylist([stage | {"loss_model_cls": 0.25, "loss_model_ensemble": None}])
    nulls = stages.schema.get_field_index("loss_model_ensemble")
    stages = stages.set_column(nulls, "loss_model_ensemble", pa.array([None], pa.float64()))
    score = pa.array([0.9, float("nan")], pa.float32())
    samples = {"trial_id": [old_id] * 2, "stage": [1, 1], "position": [3, 7], "class": [2, -1], "confidence": score}
    tables = {
        "trials": pa.Table.from_pylist([{"trial_id": old_id, **row}]),
        "stages": stages,
        "confusions": pa.table({"trial_id": [old_id], "stage": [1], "true_class": [0], "count": [4]}),
        "samples": pa.table({**samples, "source": ["previous", "ood"]}),
    }
    for experiment in experiments:
        for kind, table in tables.items():
            file = Path(folder, kind, f"experiment={experiment}", f"{old_id}.parquet")
            file.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(table, file)


@pytest.fixture
def former(tmp_path):
    specs = {f"old-{k}": spec for k, spec in enumerate(experiment_named("smoke").specs()[-2:])}
    former_files(tmp_path / "old", specs["old-0"], "old-0", ["a", "b"])
    former_files(tmp_path / "old", specs["old-1"], "old-1", ["b"])
    (tmp_path / "old" / "ledger" / "experiment=b").mkdir(parents=True)
    ledger = {"storage": "/s", "command": "gd-ray run b", "time": 7.0, "trials": [{"trial_id": name} for name in specs]}
    ledger["trials"].append({"trial_id": "unfinished"})
    (tmp_path / "old" / "ledger" / "experiment=b" / "1.json").write_text(json.dumps(ledger))
    (tmp_path / "old" / "classes").mkdir()
    (tmp_path / "old" / "classes" / "glyphs.json").write_text('{"names": ["a", "b"]}')
    return tmp_path, specs


def test_finished_trials_have_their_values_under_new_ids(former):
    folder, specs = former
    old, new = str(folder / "old"), str(folder / "new")
    assert convert_results(old, new) == (2, 1)
    assert finished(new) == {spec.trial_id for spec in specs.values()}
    rows = read_rows(new, "trials")[0].to_pandas().set_index("old_trial_id")
    for old_id, spec in specs.items():
        assert (rows.loc[old_id, "trial_id"], rows.loc[old_id, "network"]) == (spec.trial_id, "wrn-10-1")
    assert (rows["acc"] == 0.5).all()
    assert not {"depth", "width", "hits", "status"} & set(rows)
    stages = read_rows(new, "stages")[0].to_pandas()
    assert {"mean_score", "loss_model_cls", "images_model"} < set(stages)
    assert not {"method", "loss_model_ensemble", "images_score", "mean_confidence"} & set(stages)
    samples = read_rows(new, "samples", [specs["old-0"].trial_id])[0].to_pandas()
    assert samples["score_kind"].tolist() == ["probability", "none"]
    assert all(len(list(Path(new, kind).iterdir())) == 1 for kind in KINDS if "confidences" not in kind)
    assert len(pd.read_parquet(Path(new, "trials"))) == 2


def test_experiments_become_selections(former):
    folder, specs = former
    new = str(folder / "new")
    convert_results(str(folder / "old"), new)
    first, second = read_selections(new)
    assert (first.experiment, first.storage, len(first.trials)) == ("a", "", 1)
    assert (second.experiment, second.storage, second.command, second.time) == ("b", "/s", "gd-ray run b", 7.0)
    assert [row["trial_id"] for row in second.trials] == [spec.trial_id for spec in specs.values()]
    assert {state.state for state in trial_states(new)} == {"done"}
    assert read_class_names(new) == {"glyphs": ("a", "b")}


def test_nothing_is_overwritten(former):
    folder, _ = former
    convert_results(str(folder / "old"), str(folder / "new"))
    with pytest.raises(UserError, match="exist already; give a new folder"):
        convert_results(str(folder / "old"), str(folder / "new"))
    with pytest.raises(UserError, match="have no finished trial of version 0.1"):
        convert_results(str(folder / "new" / "classes"), str(folder / "other"))
