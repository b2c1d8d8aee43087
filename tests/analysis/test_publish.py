"""Publishing: finished trials alone, apart by kind of CPU, packed, and no trial twice."""

from pathlib import Path

import pandas as pd
import pytest

import analysis
from analysis.evidence.publish import folder_of, publish
from gd_ray import store
from gd_ray.errors import UserError
from tests.helpers.evidence import levels, write_trials
from tests.helpers.made import write_made
from trials.experiments import reduced_spec

METHODS = ("gd", "ref-p", "gd+ext")


def merge_selections(results: str) -> None:
    """Make the selections of an experiment one, as a run of all its trials writes it."""
    before = store.read_selections(results)
    for name in {own.experiment for own in before}:
        rows = [row for own in before if own.experiment == name for row in own.trials]
        for path in Path(results, "experiments", name).iterdir():
            path.unlink()
        store.write_selection(results, store.Selection(name, "/home/me/storage", f"gd-ray run {name}", rows))


@pytest.fixture
def source(tmp_path):
    """GD and P of seed 1 on one CPU, GD of seed 2 on another; GD+ext of seed 1 is not finished, E2E is of another."""
    specs = [reduced_spec(method, 1) for method in METHODS] + [reduced_spec("gd", 2)]
    done = [specs[0], specs[1], specs[3]]
    results = tmp_path / "results"
    write_trials(results, done, {}, lambda spec: "A (R) CPU" if spec.seed == 1 else "B")
    write_made(str(results), "reduced-more", specs[2], levels(2, 1), stages=2)
    write_made(str(results), "reduced", reduced_spec("e2e", 1), levels(2, 1), cpu="A")
    merge_selections(str(results))
    return str(results)


def test_finished_trials_go_to_the_folder_of_their_cpu(source, tmp_path):
    assert publish(source, tmp_path / "more") == {"a": 2, "b": 1}
    before, own = analysis.load(source), analysis.load(str(tmp_path / "more/a"))
    assert own.experiments == {"reduced-more": tuple(reduced_spec(method, 1).trial_id for method in METHODS[:2])}
    assert set(own.states["state"]) == {"done"}
    assert own.storage == ()
    assert own.class_names == before.class_names
    for kind in store.KINDS:
        rows, known = (results.rows(kind, sorted(own.specs.index)) for results in (own, before))
        order = [name for name in ("trial_id", "stage", "task", "position") if name in rows]
        rows, known = (frame.sort_values(order, kind="stable", ignore_index=True) for frame in (rows, known))
        pd.testing.assert_frame_equal(rows, known[rows.columns], check_categorical=False)
        assert len(rows)
    assert [path.name[:7] for path in (tmp_path / "more/a/trials").iterdir()] == ["packed-"]


def test_more_trials_of_the_same_command_are_added_and_none_is_there_twice(source, tmp_path):
    publish(source, tmp_path / "more")
    write_trials(tmp_path / "results", [reduced_spec("gd+ext", 1)], {}, lambda _: "A (R) CPU")
    merge_selections(source)
    assert publish(source, tmp_path / "more") == {"a": 1, "b": 0}
    own = analysis.load(str(tmp_path / "more/a"))
    assert sorted(own.trials["method"].astype(str)) == sorted(METHODS)
    assert len(store.read_selections(own.address)) == 1
    assert publish(source, tmp_path / "more") == {"a": 0, "b": 0}


def test_nothing_to_publish_and_trials_without_a_cpu_are_one_sentence(tmp_path):
    write_made(str(tmp_path), "reduced", reduced_spec("gd", 1), levels(2, 1), cpu="A")
    with pytest.raises(UserError, match="no finished trial of reduced-more or reduced-controls; run these first"):
        publish(str(tmp_path), tmp_path / "more")
    write_made(str(tmp_path), "reduced-more", reduced_spec("gd", 2), levels(2, 1), cpu=None)
    with pytest.raises(UserError, match=f"trials {reduced_spec('gd', 2).trial_id} do not name their CPU"):
        publish(str(tmp_path), tmp_path / "more")


@pytest.mark.parametrize(
    ("cpu", "folder"),
    [
        ("AMD EPYC (family 26 model 2)", "amd-epyc-family-26-model-2"),
        ("Intel(R) Xeon(R) Processor @ 2.50GHz (family 6 model 85)", "intel-xeon-family-6-model-85"),
    ],
)
def test_a_folder_is_named_by_its_cpu(cpu, folder):
    assert folder_of(cpu) == folder
