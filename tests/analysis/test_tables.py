"""Tables from results whose every statistic is known in closed form."""

import io
import math
from dataclasses import replace

import pandas as pd
import pytest
from rich.console import Console

import analysis
from analysis.aggregate import mixed_note, settings
from analysis.figures.style import line_style
from analysis.formats import frame_grid, grids, interval, latex, mean_sd, number, to_csv, to_latex, to_markdown
from analysis.report.sections import TEMPLATES
from analysis.summary import accuracy_table
from analysis.tables import LAYOUTS, all_tables, fill, gap_closed
from gd_ray.methods import METHODS, Method
from gd_ray.paper import TABLES
from gd_ray.spec import TrialSpec
from tests.helpers.made import made_spec, write_made

# Right of 100 after stage 2 on task 1 and on task 2; task 1 just learned has 90. So ACC is their mean, FGT by the
# text half of what task 1 lost, and FGT as released half of that. Seed s adds s to both.
LEVELS = {"oracle": (80, 90), "baseline": (30, 90), "gd": (50, 80), "gd+ext": (60, 80)}


def change(folder, trial, **values):
    """Overwrite values of a trial's row, as if another program had written them."""
    file = folder / "trials" / f"{trial}.parquet"
    pd.read_parquet(file).assign(**values).to_parquet(file, index=False)


def write(folder, method, seed, level, **changes):
    old, new = level
    spec = made_spec(method, seed, **changes)
    return write_made(str(folder), "x", spec, lambda s, r: 90 if s == 1 else (old if r == 1 else new) + seed)


@pytest.fixture
def folder(tmp_path):
    for method, level in LEVELS.items():
        for seed in range(3):
            write(tmp_path, method, seed, level)
    return tmp_path


def tables_of(folder):
    return {table.layout.key: table for table in all_tables(settings(analysis.load(str(folder))))}


def cell(table, method, metric):
    return table.frame[(table.frame["method"] == method) & (table.frame["metric"] == metric)].iloc[0]


def test_means_and_deviations_in_closed_form(folder):
    table = tables_of(folder)["1"]
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


def test_comparisons_in_closed_form(folder):
    rows = tables_of(folder)["1"].comparisons
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
                write(tmp_path, method, seed, level, num_classes=8, task_size=size)
    table = tables_of(tmp_path)["C.1"]
    tests = 3  # two against Baseline and GD+ext against GD
    assert table.comparisons["p_holm"].tolist() == pytest.approx([tests * 2 / 2**10] * 12)
    assert not any("corrected p" in note for note in table.notes)


def test_too_few_seeds_for_any_corrected_p_are_told(folder):
    (note,) = (note for note in tables_of(folder)["1"].notes if "corrected p" in note)
    assert note == (
        "With 3 seeds and 2 tests of a kind or more no corrected p can fall below 0.5; look at the differences."
    )


def test_one_kind_of_tests_that_can_show_something_is_enough(tmp_path):
    for seed in range(6):
        for method, level in LEVELS.items():
            write(tmp_path, method, seed, level, num_classes=8)
        for method in ("baseline", "gd"):
            write(tmp_path, method, seed, LEVELS[method], num_classes=8, task_size=4)
    table = tables_of(tmp_path)["C.1"]
    by_size = table.comparisons.groupby("task_size")["p_holm"].min()
    assert by_size.tolist() == pytest.approx([3 * 2 / 2**6, 2 / 2**6])
    assert not any("corrected p" in note for note in table.notes)


def test_gap_closed_in_closed_form(folder):
    frame, notes = gap_closed(settings(analysis.load(str(folder)))[0])
    values = frame.set_index(["method", "metric"])["iqm"]
    assert values["gd", "acc"] == pytest.approx(5 / 25)
    assert values["gd+ext", "acc"] == pytest.approx(10 / 25)
    assert values["gd+ext", "fgt_paper"] == pytest.approx(30 / 50)
    assert notes == []


@pytest.mark.parametrize("number", [2, 3, 4, 5])
def test_the_ablations_have_the_papers_rows(tmp_path, number):
    for k, method in enumerate(TABLES[number]):
        write(tmp_path, method, 0, (40 + k, 80))
    found = tables_of(tmp_path)
    table = found[str(number)]
    assert tuple(table.frame["method"].unique()) == TABLES[number]
    assert [cell(table, method, "acc")["mean"] for method in TABLES[number]] == pytest.approx(
        [60 + k / 2 for k in range(len(TABLES[number]))]
    )


def test_both_blocks_of_the_appendix(tmp_path):
    for method in TABLES[1]:
        write(tmp_path, method, 0, (50, 80))
    blocks = tables_of(tmp_path)["C.1"].frame.drop_duplicates("method").groupby("block", sort=False)["method"].agg(list)
    assert blocks["Without an external dataset"] == ["baseline", "lwf", "dr", "e2e", "gd"]
    assert blocks["With an external dataset"] == ["lwf+ext", "dr+ext", "e2e+ext", "gd+ext"]


def papers(method, seed, hits, **changes):
    return TrialSpec(method=method, seed=seed, task_size=20, **changes), lambda s, r: hits


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


def test_the_validation_split_is_never_averaged_with_reported_trials(tmp_path):
    for seed in range(4):
        spec, right = papers("gd+ext", seed, 60 + seed, dataset="imagenet32", stream="imagenet2011")
        write_made(str(tmp_path), "x", spec, right)
    reported, validation = settings(analysis.load(str(tmp_path)))
    assert cell(fill(LAYOUTS["1"], reported), "gd+ext", "acc")["seeds"] == (1, 2, 3)
    assert cell(fill(LAYOUTS["1"], reported), "gd+ext", "acc")["verdict"] != ""
    assert validation.label == validation.differs == "the validation split"
    assert cell(fill(LAYOUTS["1"], validation), "gd+ext", "acc")["verdict"] == ""
    assert "whether they are reported or for validation" in mixed_note([reported, validation])


def test_settings_that_differ_in_the_last_digits_are_told_apart(tmp_path):
    for factor in (0.3333333, 0.33333333):
        write_made(str(tmp_path), "x", made_spec("gd", 0, epoch_factor=factor), lambda stage, task: 90)
    found = settings(analysis.load(str(tmp_path)))
    assert [found.index(setting) for setting in found] == [0, 1]
    assert len({setting.label for setting in found}) == 2


def test_mixed_settings_are_never_averaged(folder):
    write(folder, "gd", 0, (10, 10), convention="released")
    write(folder, "gd", 1, (20, 20), learning_rate=0.5)
    found = settings(analysis.load(str(folder)))
    assert len(found) == 3
    assert "differ in learning_rate, convention and cannot be averaged" in mixed_note(found)
    first = fill(LAYOUTS["1"], found[0])
    assert cell(first, "gd", "acc")["mean"] == pytest.approx(66)
    assert cell(first, "gd", "acc")["n"] == 3


def test_other_streams_and_ratios_are_left_out_and_told(folder):
    for ratio in (0.0, 0.5):
        write(folder, "gd+ext", 0, (10, 10), ood_ratio=ratio)
    (setting,) = settings(analysis.load(str(folder)))
    assert (setting.trials["method"] == "gd+ext").sum() == 3
    assert (setting.variants["method"] == "gd+ext").sum() == 5
    assert any("left out of them: 2 trials with other values (ood_ratio 0, 0.5)" in note for note in setting.notes)


def test_one_name_for_two_methods(folder):
    write(folder, Method(name="gd", title="GD", previous="global"), 5, (10, 10))
    (setting,) = settings(analysis.load(str(folder)))
    assert (setting.trials["method"] == "gd").sum() == 3
    assert any("1 trial with another meaning of 'gd'" in note for note in setting.notes)


def test_missing_seeds_are_compared_on_the_intersection(folder):
    write(folder, "gd+ext", 3, (0, 0))
    table = tables_of(folder)["1"]
    rows = table.comparisons[table.comparisons["metric"] == "acc"].set_index("against")
    assert rows.loc["gd", "difference"] == pytest.approx(5)
    assert rows.loc["gd", "remark"] == "on the 3 seeds that both have: 0, 1, 2"
    assert any("Some cells have fewer seeds than others" in note for note in table.notes)


def test_one_seed_has_no_intervals_and_says_so(tmp_path):
    for method, level in LEVELS.items():
        write(tmp_path, method, 0, level)
    table = tables_of(tmp_path)["1"]
    assert table.frame["sd"].isna().all()
    assert table.comparisons[["low", "high", "p", "p_holm"]].isna().all().all()
    assert any("Only one seed" in note for note in table.notes)
    assert "±" not in to_markdown(grids(table)[0]).split("\n", 1)[1]


def test_a_method_without_baseline(tmp_path):
    for seed in range(2):
        write(tmp_path, "gd", seed, LEVELS["gd"])
        write(tmp_path, "gd+ext", seed, LEVELS["gd+ext"])
    found = settings(analysis.load(str(tmp_path)))
    table = fill(LAYOUTS["C.1"], found[0])
    assert cell(table, "gd", "acc")["n"] == 2
    assert any("No finished trial of Baseline" in note for note in table.notes)
    frame, notes = gap_closed(found[0])
    assert frame.empty
    assert "needs trials of Baseline and Oracle" in notes[0]


def test_collapsed_trials_are_marked_and_counted(folder):
    write(folder, "lwf", 0, (10, 10))
    table = tables_of(folder)["1"]
    assert cell(table, "lwf", "acc")["mean"] == 10
    assert any("1 trial collapsed" in note and "LwF at 2 seed 0" in note for note in table.setting.notes)
    assert "†" in to_markdown(grids(table)[0])


@pytest.mark.parametrize("preset", [True, False])
def test_a_method_of_your_own_is_everywhere_whether_a_preset_or_not(folder, monkeypatch, preset):
    mine = Method(name="gd+mine", title="Mine", previous="local")
    if preset:
        monkeypatch.setitem(METHODS, mine.name, mine)
    for seed in range(3):
        write(folder, mine, seed, (65, 80))
    results = analysis.load(str(folder))
    (setting,) = settings(results)
    table = tables_of(folder)["own"]
    assert cell(table, "gd+mine", "acc")["mean"] == pytest.approx(73.5)
    assert table.comparisons.set_index("metric").loc["acc", "difference"] == pytest.approx(12.5)
    gaps = gap_closed(setting)[0].set_index(["method", "metric"])["iqm"]
    assert gaps["gd+mine", "acc"] == pytest.approx(12.5 / 25)
    looks = {name: line_style(setting.trials, name) for name in ("gd+mine", "gd+ext")}
    assert looks["gd+mine"]["color"] != looks["gd+ext"]["color"]


def test_methods_of_your_own_with_markup_in_their_names(folder):
    nasty = Method(name="<b>&_mine", title=r"<script>alert(1)</script> & $x_1$ [red]50%[/red] a|b", previous="local")
    for seed in range(3):
        write(folder, nasty, seed, (50, 50))
    table = tables_of(folder)["own"]
    (grid,) = grids(table)
    macros = TEMPLATES.get_template("macros.html.j2").module
    page, tex, markdown = str(macros.table(grid)), to_latex(grid), to_markdown(grid)
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt; &amp; $x_1$" in page
    assert r"\textless{}script\textgreater{}alert(1)\textless{}/script\textgreater{} \& \$x\_1\$" in tex
    assert r"a\|b" in markdown
    assert r"\<script\>" in markdown


def test_latex_of_a_table(folder):
    text = to_latex(grids(tables_of(folder)["1"])[0])
    assert r"GD+ext & \textbf{71.0 $\pm$ 1.0} &" in text
    assert text.count(r"\\") == 1 + 4
    assert latex("\\{}^~") == r"\textbackslash{}\{\}\textasciicircum{}\textasciitilde{}"


def test_csv_has_full_precision(folder):
    table = tables_of(folder)["1"]
    frame = pd.read_csv(io.StringIO(to_csv(table)))
    assert frame["mean"].tolist() == pytest.approx(table.frame["mean"].tolist(), abs=1e-12)


def test_the_table_at_the_end_of_a_run_averages_seeds_and_nothing_else(tmp_path):
    for changes in ({}, {"epoch_factor": 0.5}, {"convention": "released"}):
        for seed in range(2):
            write_made(str(tmp_path), "mine", made_spec("gd", seed, **changes), lambda s, r: 50)
    table = accuracy_table(str(tmp_path), "mine")
    columns = {column.header: list(column.cells) for column in table.columns}
    assert columns["n"] == ["2", "2", "2"]
    assert sorted(columns["setting"]) == ["", "convention released", "epoch factor 0.5"]
    assert table.caption == "Where no setting is named: epoch factor 1, convention paper."
    assert "task size" not in columns
    write_made(str(tmp_path), "mine", made_spec("gd+ext", 0, task_size=1, ood_ratio=0.2), lambda s, r: 50)
    columns = {column.header: list(column.cells) for column in accuracy_table(str(tmp_path), "mine").columns}
    assert columns["task size"] == ["1", "2", "2", "2"]
    assert columns["setting"][0] == ""  # the only OOD ratio there is
    write_made(str(tmp_path), "few", made_spec("gd", 0), lambda s, r: 50)
    for images in (10, 20):
        write_made(str(tmp_path), "few", made_spec("gd", 0, train_per_class=images), lambda s, r: 50)
    table = accuracy_table(str(tmp_path), "few")
    rows = [*table.columns[1].cells, str(table.caption)]
    assert all(any(f"train per class {value}" in row for row in rows) for value in ("all", 10, 20))
    console = Console(file=io.StringIO(), width=80)
    console.print(accuracy_table(str(tmp_path), "mine"))
    assert "│         1 │ GD+ext │" in console.file.getvalue()


def test_plugins_of_one_method_are_never_averaged(tmp_path):
    """Trials of another method without a plugin do not make every row name one."""
    for seed in range(2):
        write_made(str(tmp_path), "mine", made_spec("gd", seed), lambda s, r: 50)
    change(tmp_path, made_spec("gd", 1).trial_id, plugin="0123456789abcdef")
    columns = {column.header: list(column.cells) for column in accuracy_table(str(tmp_path), "mine").columns}
    assert columns["n"] == ["1", "1"]
    (setting,) = settings(analysis.load(str(tmp_path)))
    assert len(setting.trials) == 1
    assert any("1 trial with another meaning of 'gd'" in note for note in setting.notes)
    write_made(str(tmp_path), "two", made_spec("gd", 0), lambda s, r: 50)
    write_made(str(tmp_path), "two", made_spec("lwf", 0), lambda s, r: 50)
    change(tmp_path, made_spec("lwf", 0).trial_id, plugin="0123456789abcdef")
    assert "setting" not in {column.header for column in accuracy_table(str(tmp_path), "two").columns}
    (setting,) = settings(analysis.load(str(tmp_path), experiment="two"))
    assert len(setting.trials) == 2


def test_the_table_at_the_end_of_a_run_names_what_cannot_be_read(tmp_path):
    for seed in range(2):
        write_made(str(tmp_path), "mine", made_spec("gd", seed), lambda s, r: 50)
    broken = tmp_path / "trials" / f"{made_spec('gd', 0).trial_id}.parquet"
    broken.write_bytes(broken.read_bytes()[:100])
    table = accuracy_table(str(tmp_path), "mine")
    assert list(table.columns[-1].cells) == ["1"]
    assert f"1 file cannot be read and is left out: {broken}. Restore what cannot be read" in str(table.caption)


def test_numbers_below_zero_have_a_minus_sign():
    assert (number(-0.34), number(-0.04), number(-0.04, "+.1f"), number(-12, "+.1f")) == (
        "−0.3",
        "0.0",
        "+0.0",
        "−12.0",
    )
    assert mean_sd(-0.34, 0.1) == "−0.3 ± 0.1"
    assert interval(-0.5, 0.25, ".0%") == "−50% to 25%"
    grid = frame_grid(pd.DataFrame({"name": ["a-b"], "x": [-0.5]}), "t")
    assert "| a-b | −0.5 |" in to_markdown(grid)
    assert "a-b & $-$0.5" in to_latex(grid)
