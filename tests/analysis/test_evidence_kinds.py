"""Evidence of several kinds of CPU: pairs are of one kind, and a seed that ran on several counts with their mean."""

from pathlib import Path

import pandas as pd
import pytest

from analysis.evidence import build, reduced_more, result_folders
from analysis.evidence.claims import claims_grid, cpu_note, pairs, results_grid
from analysis.evidence.reduced_more import TABLE_CLAIMS
from tests.helpers.evidence import FORGOTTEN, texts, write_trials
from trials.experiments import EXPERIMENTS, reduced_spec


def test_kinds_of_cpu_are_never_compared(tmp_path):
    """GD+ext of seed 1 has run elsewhere, and of seed 2 on an unknown CPU; GD's and P's CPU is the same on all."""
    elsewhere = {("gd+ext", 1): "another CPU", ("gd+ext", 2): None}
    specs = [reduced_spec(method, seed) for method in ("gd+ext", "gd", "ref-p") for seed in range(3)]
    results = write_trials(
        tmp_path, specs, FORGOTTEN, lambda spec: elsewhere.get((spec.method.name, spec.seed), "a CPU")
    )
    (claim,) = [claim for claim in TABLE_CLAIMS if claim.title == "ACC: GD+ext against P"]
    assert pairs(claim, results.trials)["one_cpu"].to_dict() == {0: True, 1: False, 2: False}
    rows = texts(claims_grid(TABLE_CLAIMS, results.trials, "", reduced_more.IN_TABLES))
    assert rows[claim.title][2:6] == ["88.0 / 86.0", "+2.0", "", "1 of 1"]
    note = "GD+ext against P (seeds 1, 2); GD+ext against GD (seeds 1, 2)."
    assert cpu_note(TABLE_CLAIMS, results.trials).endswith(f"ran on different kinds of CPU: {note}")
    (text,) = build.generated_parts(build.MORE, [results], tmp_path, []).values()
    assert note in text
    assert "on one core of a CPU and another CPU each" in text


@pytest.fixture
def two_kinds(tmp_path):
    """One CPU ran GD+ext of all seeds, GD of seeds 0 and 1 and P of seed 0; another GD+ext and P of seeds 1 and 2."""
    first = [*(("gd+ext", seed) for seed in range(3)), ("gd", 0), ("gd", 1), ("ref-p", 0)]
    second = [(method, seed) for method in ("gd+ext", "ref-p") for seed in (1, 2)]
    for cpu, trials, forgotten in (("a", first, FORGOTTEN), ("b", second, {"gd+ext": 3, "ref-p": 8})):
        write_trials(tmp_path / cpu, [reduced_spec(*trial) for trial in trials], forgotten, lambda _, cpu=cpu: cpu)
    return build.load_kinds(tmp_path)


def test_a_seed_that_ran_on_two_kinds_of_cpu_counts_once_with_their_mean(two_kinds):
    """GD+ext forgets 2 images on the first CPU and 3 on the second; ACC is 90 and the seed less as many."""
    trials = reduced_more.with_measures(two_kinds, Path(two_kinds[0].address))
    rows = texts(results_grid(reduced_more.SECTIONS, trials))
    assert rows["GD+ext"][:2] == ["88.7 ± 0.8", "88.0, 88.5, 89.5"]
    assert rows["P"][:2] == ["84.3 ± 1.5", "86.0, 83.0, 84.0"]
    claims = texts(claims_grid(TABLE_CLAIMS, trials, "", reduced_more.IN_TABLES))
    # 88 to 86 on the first CPU; 88 to 83 and 89 to 84 on the second: 2, 5 and 5 points.
    assert claims["ACC: GD+ext against P"][2:4] == ["88.3 / 84.3", "+4.0"]
    assert claims["ACC: GD+ext against P"][5] == "3 of 3"
    assert claims["ACC: GD+ext against GD"][3:6] == ["+4.0", "+4.0 to +4.0", "2 of 2"]  # the first CPU's alone
    assert cpu_note(TABLE_CLAIMS, trials) == ""
    (text,) = build.generated_parts(build.MORE, two_kinds, Path(two_kinds[0].address), []).values()
    assert "8 of 105 trials (2 of them on two kinds of CPU); " in text
    assert "on one core of a and b each" in text


def test_pairs_that_ran_on_two_kinds_of_cpu_are_means_of_both(two_kinds):
    trials = pd.concat([own.trials for own in two_kinds])
    again = trials[(trials["method"] == "ref-p") & (trials["seed"] == 1)].assign(cpu_model="a", acc=0.80)
    (claim,) = [claim for claim in TABLE_CLAIMS if claim.title == "ACC: GD+ext against P"]
    rows = pairs(claim, pd.concat([trials, again]))
    assert rows.loc[1].tolist() == [pytest.approx((89 + 88) / 2), pytest.approx((80 + 83) / 2), True]


def test_folders_of_results_are_one_for_each_kind_of_cpu(two_kinds, tmp_path):
    (tmp_path / "empty").mkdir()
    assert result_folders(tmp_path) == [tmp_path / "a", tmp_path / "b"]
    assert result_folders(tmp_path / "a") == [tmp_path / "a"]
    assert result_folders(tmp_path / "absent") == result_folders(tmp_path / "empty") == []


def test_kinds_of_cpu_are_not_drawn_together(tmp_path):
    specs = [s for s in EXPERIMENTS["reduced-more"].specs() if s.window == 14_400 and s.seed < 2]
    moved = {(specs[1].stream, 1)}
    results = write_trials(tmp_path, specs, FORGOTTEN, lambda spec: "b" if (spec.stream, spec.seed) in moved else "a")
    (figure,) = reduced_more.figures([results])
    assert "one seed" in figure.caption
