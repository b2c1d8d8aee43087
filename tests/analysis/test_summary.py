"""The table at the end of a run."""

import io

import pandas as pd
from rich.console import Console

import analysis
from analysis.aggregate import settings
from analysis.summary import accuracy_table
from tests.helpers.made import made_spec, write_made


def change(folder, trial, **values):
    """Overwrite values of a trial's row, as if another program had written them."""
    file = folder / "trials" / f"{trial}.parquet"
    pd.read_parquet(file).assign(**values).to_parquet(file, index=False)


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
