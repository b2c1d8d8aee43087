"""The status of each method: what has run is counted from trials, what is checked is what the tests compute."""

import pandas as pd

from analysis.report import write_report
from analysis.status import is_full_size, packed_evidence, runs, status_grid
from gd_ray.methods import METHODS, STAGE_BY_HAND, second_implementation
from tests.helpers.made import made_spec, write_made
from tests.test_stage_by_hand import BY_HAND
from trials.experiments import EXPERIMENTS


def test_a_stage_is_checked_where_the_tests_compute_one():
    assert set(BY_HAND) == STAGE_BY_HAND
    assert second_implementation("gd+ext") == "a whole stage"
    assert second_implementation("somebody's") == "not yet"


def test_learners_without_a_stage_by_hand_have_a_second_implementation_of_their_formulas():
    """Distillation's are in test_objective.py and wild/test_sampling.py, for every value of its fields."""
    others = {name for name in METHODS if second_implementation(name) == "its formulas"}
    assert STAGE_BY_HAND | others == set(METHODS)
    assert {METHODS[name].learner for name in others} == {"distillation"}


def test_the_status_of_a_method_is_what_its_trials_say(tmp_path):
    full = EXPERIMENTS["table1"].specs()
    rows = [spec.flat() | {"trial_id": spec.trial_id} for spec in full]
    assert is_full_size(pd.DataFrame(rows)).all()
    reduced = pd.DataFrame([spec.flat() for spec in EXPERIMENTS["reduced"].specs()])
    assert not is_full_size(reduced).any()
    other_stream = pd.DataFrame(rows).assign(stream="elsewhere")
    assert set(other_stream[is_full_size(other_stream)]["method"]) == {"oracle", "baseline", "lwf", "dr", "e2e", "gd"}
    both = pd.concat([pd.DataFrame(rows[:10]), reduced])
    assert runs(both)[full[0].method.name].startswith("full size, ")
    for seed in range(6):  # more than the trials that come with gd_ray have
        write_made(str(tmp_path), "mine", made_spec("wa", seed), lambda stage, task: 90)
    path, results = write_report(str(tmp_path))
    assert "Status of the methods, in these trials and gd_ray" in path.read_text()
    grid = status_grid(results.trials)
    assert [[cell.text for cell in row] for row in grid.rows] == [["WA", "a whole stage", "reduced size, 6 seeds"]]


def test_no_method_claims_a_run_that_the_evidence_does_not_have():
    trials = packed_evidence()
    claimed = runs(trials)
    assert set(claimed) == set(trials["method"])
    assert claimed["gd+ext"] == "reduced size, 5 seeds"
    assert not any(text.startswith("full size") for text in claimed.values())
