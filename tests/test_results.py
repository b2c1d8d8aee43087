import pandas as pd
from tiny import tiny_spec

from gd_ray.trial import run_trial
from trials.results import write_samples


def test_samples_are_readable_with_pandas_alone(tiny_data, tiny_stream, tmp_path):
    spec = tiny_spec(method="gd+ext")
    stages = run_trial(spec, tiny_data, tiny_stream).stages
    write_samples(str(tmp_path), "mine", spec.trial_id, stages)
    found = pd.read_parquet(tmp_path / "samples")
    assert set(found["experiment"]) == {"mine"}
    for stage in stages:
        rows = found[found["stage"] == stage.stage]
        assert rows["position"].tolist() == stage.samples.positions.tolist()
        assert rows["class"].tolist() == stage.samples.classes.tolist()
        assert ((rows["source"] == "ood") == stage.samples.is_ood).all()
        assert rows.loc[rows["source"] == "previous", "confidence"].between(0, 1).all()
    assert not [file for file in (tmp_path / "samples").rglob("*") if file.suffix == ".tmp"]
