"""Methods compared seed by seed, where every statistic is known in closed form."""

import pytest

import analysis
from analysis.aggregate import settings
from analysis.formats import grids, to_markdown
from analysis.tables import LAYOUTS, fill, gap_closed
from tests.helpers.known_results import LEVELS, cell, tables_of, write_known


def test_comparisons_in_closed_form(known_results):
    rows = tables_of(known_results)["1"].comparisons
    rows = rows[rows["metric"] == "acc"].set_index("against")
    assert rows.loc["baseline", "difference"] == pytest.approx(10)
    assert rows.loc["gd", "difference"] == pytest.approx(5)
    assert rows.loc["gd", ["low", "high"]].tolist() == pytest.approx([5, 5])
    assert rows["p"].tolist() == [0.25, 0.25]
    assert rows["p_holm"].tolist() == [0.5, 0.5]  # two tests of ACC; those of FGT are counted by themselves
    assert rows["wins"].tolist() == [3, 3]
    assert rows.loc["baseline", "improvement"] == 1.0


def test_ten_seeds_can_show_every_comparison_of_the_paper(tmp_path):
    for method, level in LEVELS.items():
        for seed in range(10):
            for size in (2, 4):
                write_known(tmp_path, method, seed, level, num_classes=8, task_size=size)
    table = tables_of(tmp_path)["C.1"]
    tests = 3  # two against Baseline and GD+ext against GD
    assert table.comparisons["p_holm"].tolist() == pytest.approx([tests * 2 / 2**10] * 12)
    assert not any("corrected p" in note for note in table.notes)


def test_too_few_seeds_for_any_corrected_p_are_told(known_results):
    (note,) = (note for note in tables_of(known_results)["1"].notes if "corrected p" in note)
    assert note == (
        "With 3 seeds and 2 tests of a kind or more no corrected p can fall below 0.5; look at the differences."
    )


def test_one_kind_of_tests_that_can_show_something_is_enough(tmp_path):
    for seed in range(6):
        for method, level in LEVELS.items():
            write_known(tmp_path, method, seed, level, num_classes=8)
        for method in ("baseline", "gd"):
            write_known(tmp_path, method, seed, LEVELS[method], num_classes=8, task_size=4)
    table = tables_of(tmp_path)["C.1"]
    by_size = table.comparisons.groupby("task_size")["p_holm"].min()
    assert by_size.tolist() == pytest.approx([3 * 2 / 2**6, 2 / 2**6])
    assert not any("corrected p" in note for note in table.notes)


def test_gap_closed_in_closed_form(known_results):
    frame, notes = gap_closed(settings(analysis.load(str(known_results)))[0])
    values = frame.set_index(["method", "metric"])["iqm"]
    assert values["gd", "acc"] == pytest.approx(5 / 25)
    assert values["gd+ext", "acc"] == pytest.approx(10 / 25)
    assert values["gd+ext", "fgt_paper"] == pytest.approx(30 / 50)
    assert notes == []


def test_missing_seeds_are_compared_on_the_intersection(known_results):
    write_known(known_results, "gd+ext", 3, (0, 0))
    table = tables_of(known_results)["1"]
    rows = table.comparisons[table.comparisons["metric"] == "acc"].set_index("against")
    assert rows.loc["gd", "difference"] == pytest.approx(5)
    assert rows.loc["gd", "remark"] == "on the 3 seeds that both have: 0, 1, 2"
    assert any("Some cells have fewer seeds than others" in note for note in table.notes)


def test_one_seed_has_no_intervals_and_says_so(tmp_path):
    for method, level in LEVELS.items():
        write_known(tmp_path, method, 0, level)
    table = tables_of(tmp_path)["1"]
    assert table.frame["sd"].isna().all()
    assert table.comparisons[["low", "high", "p", "p_holm"]].isna().all().all()
    assert any("Only one seed" in note for note in table.notes)
    assert "±" not in to_markdown(grids(table)[0]).split("\n", 1)[1]


def test_a_method_without_baseline(tmp_path):
    for seed in range(2):
        write_known(tmp_path, "gd", seed, LEVELS["gd"])
        write_known(tmp_path, "gd+ext", seed, LEVELS["gd+ext"])
    found = settings(analysis.load(str(tmp_path)))
    table = fill(LAYOUTS["C.1"], found[0])
    assert cell(table, "gd", "acc")["n"] == 2
    assert any("No finished trial of Baseline" in note for note in table.notes)
    frame, notes = gap_closed(found[0])
    assert frame.empty
    assert "needs trials of Baseline and Oracle" in notes[0]
