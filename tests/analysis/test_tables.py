"""Tables from results whose every statistic is known in closed form."""

import math
from dataclasses import replace

import pytest

import analysis
from analysis.aggregate import settings
from analysis.figures.style import line_style
from analysis.formats import grids, to_markdown
from analysis.tables import LAYOUTS, fill, gap_closed
from gd_ray.methods import METHODS, Method
from gd_ray.paper import TABLES
from tests.helpers.known_results import LEVELS, cell, papers, tables_of, write_known
from tests.helpers.made import write_made


def test_means_and_deviations_in_closed_form(known_results):
    table = tables_of(known_results)["1"]
    for method, (old, new) in LEVELS.items():
        acc = cell(table, method, "acc")
        assert acc["mean"] == pytest.approx((old + new) / 2 + 1)
        assert acc["sd"] == pytest.approx(1.0)
        assert (acc["n"], acc["seeds"]) == (3, (0, 1, 2))
        lost = 90 - old - 1
        assert cell(table, method, "fgt_paper")["mean"] == pytest.approx(lost / 2)
        assert cell(table, method, "fgt_paper")["sd"] == pytest.approx(0.5)
        assert cell(table, method, "fgt_released")["mean"] == pytest.approx(lost / 4)
    best = table.frame[table.frame["best"]]
    assert set(best["method"]) == {"gd+ext"}  # the oracle is better and does not compete
    assert len(best) == 3


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_the_ablations_have_the_papers_rows(tmp_path, number):
    for k, method in enumerate(TABLES[number]):
        write_known(tmp_path, method, 0, (40 + k, 80))
    found = tables_of(tmp_path)
    table = found[str(number)]
    assert tuple(table.frame["method"].unique()) == TABLES[number]
    assert [cell(table, method, "acc")["mean"] for method in TABLES[number]] == pytest.approx(
        [60 + k / 2 for k in range(len(TABLES[number]))]
    )


def test_both_blocks_of_the_appendix(tmp_path):
    for method in TABLES[1]:
        write_known(tmp_path, method, 0, (50, 80))
    blocks = tables_of(tmp_path)["C.1"].frame.drop_duplicates("method").groupby("block", sort=False)["method"].agg(list)
    assert blocks["Without an external dataset"] == ["baseline", "lwf", "dr", "e2e", "gd"]
    assert blocks["With an external dataset"] == ["lwf+ext", "dr+ext", "e2e+ext", "gd+ext"]


def test_printed_values_differences_and_verdicts(tmp_path):
    for seed, hits in enumerate((66, 67, 68)):
        spec, right = papers("gd", seed, hits)
        write_made(str(tmp_path), "x", spec, right)
    for seed in range(3):
        spec, right = papers("baseline", seed, 70 + seed % 2)
        write_made(str(tmp_path), "x", spec, right)
    table = tables_of(tmp_path)["1"]
    gd, baseline = cell(table, "gd", "acc"), cell(table, "baseline", "acc")
    assert (gd["mean"], gd["sd"], gd["printed"], gd["printed_sd"]) == pytest.approx((67.0, 1.0, 67.1, 0.9))
    assert gd["difference"] == pytest.approx(-0.1)
    assert gd["verdict"] == "undecided"  # the error of three seeds is 0.6: no margin of 1 can be shown
    assert baseline["verdict"] == "differs"
    assert math.isnan(cell(table, "gd", "fgt_paper")["printed"])
    assert cell(table, "gd", "fgt_released")["printed"] == 8.5
    assert any("very likely follows the released program's formula" in note for note in table.notes)
    markdown = to_markdown(grids(table)[0])
    assert "| 67.0 ± 1.0 | 67.1 ± 0.9 | −0.1 |" in markdown


def test_the_paper_printed_nothing_for_a_larger_first_task(tmp_path):
    for seed in range(3):
        spec, _ = papers("gd", seed, 67)
        write_made(str(tmp_path), "x", replace(spec, first_task_size=40), lambda s, r: 67)
    table = tables_of(tmp_path)["1"]
    assert cell(table, "gd", "acc")["mean"] == pytest.approx(67)
    assert math.isnan(cell(table, "gd", "acc")["printed"])


def test_other_settings_get_no_verdict(tmp_path):
    for seed in range(2):
        for method in ("gd", "baseline"):
            spec, right = papers(method, seed, 67, epoch_factor=0.5)
            write_made(str(tmp_path), "x", spec, right)
    table = tables_of(tmp_path)["1"]
    assert set(table.frame["verdict"]) == {""}
    assert any("not the paper's settings (epoch_factor 0.5)" in note for note in table.notes)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"stream": "other"}, "stream other"),
        ({"window": 50_000, "ood_ratio": 0.3}, "window 50000, ood_ratio 0.3"),
    ],
)
def test_other_external_data_get_no_verdict(tmp_path, changes, says):
    for seed in range(2):
        for method in ("gd", "gd+ext"):
            spec, right = papers(method, seed, 67 + seed, **changes)
            write_made(str(tmp_path), "x", spec, right)
    (setting,) = settings(analysis.load(str(tmp_path)))
    table = fill(LAYOUTS["1"], setting)
    assert cell(table, "gd", "acc")["verdict"] == "undecided"
    assert cell(table, "gd+ext", "acc")["verdict"] == ""
    assert any(f"External data of cifar100 are not the paper's ({says})" in note for note in setting.notes)


def test_collapsed_trials_are_marked_and_counted(known_results):
    write_known(known_results, "lwf", 0, (10, 10))
    table = tables_of(known_results)["1"]
    assert cell(table, "lwf", "acc")["mean"] == 10
    assert any("1 trial collapsed" in note and "LwF at 2 seed 0" in note for note in table.setting.notes)
    assert "†" in to_markdown(grids(table)[0])


@pytest.mark.parametrize("preset", [True, False])
def test_a_method_of_your_own_is_everywhere_whether_a_preset_or_not(known_results, monkeypatch, preset):
    mine = Method(name="gd+mine", title="Mine", previous="local")
    if preset:
        monkeypatch.setitem(METHODS, mine.name, mine)
    for seed in range(3):
        write_known(known_results, mine, seed, (65, 80))
    results = analysis.load(str(known_results))
    (setting,) = settings(results)
    table = tables_of(known_results)["own"]
    assert cell(table, "gd+mine", "acc")["mean"] == pytest.approx(73.5)
    assert table.comparisons.set_index("metric").loc["acc", "difference"] == pytest.approx(12.5)
    gaps = gap_closed(setting)[0].set_index(["method", "metric"])["iqm"]
    assert gaps["gd+mine", "acc"] == pytest.approx(12.5 / 25)
    looks = {name: line_style(setting.trials, name) for name in ("gd+mine", "gd+ext")}
    assert looks["gd+mine"]["color"] != looks["gd+ext"]["color"]
