"""The examples of the README run as printed."""

import re
from pathlib import Path

README = (Path(__file__).parent.parent / "README.md").read_text()


def test_the_recipes_of_plain_pandas(tmp_path, monkeypatch, capsys):
    from gd_ray.spec import TrialSpec
    from tests.helpers.made import write_made

    spec = TrialSpec(method="gd+ext", num_classes=4, task_size=2)
    for experiment in ("x", "y"):  # which share the trial
        write_made(str(tmp_path / "results"), experiment, spec, lambda stage, task: 80 - 10 * (stage - task))
    other = TrialSpec(method="gd+ext", num_classes=4, task_size=2, seed=1)
    write_made(str(tmp_path / "results"), "x", other, lambda stage, task: 90 - 10 * (stage - task))
    longer = TrialSpec(method="gd+ext", num_classes=4, task_size=2, epoch_factor=2)  # not to be averaged with the rest
    write_made(str(tmp_path / "results"), "x", longer, lambda stage, task: 20)
    monkeypatch.chdir(tmp_path)
    recipes = re.findall(r"```pandas\n(.*?)```", README, re.DOTALL)
    assert len(recipes) == 3
    shown = []
    for recipe in recipes:
        assert "gd_ray" not in recipe
        exec(recipe, {})
        shown.append(capsys.readouterr().out)
    assert "0.8  0.070711     2" in shown[0]  # ACC: 0.75 and 0.85, each once
    lines = sorted(line.split()[-2:] for line in shown[1].splitlines()[2:])
    assert lines == [["0.2", "0.2"], ["0.8", "0.7"], ["0.9", "0.8"]]  # the first task after stages 1 and 2
    assert "4.0  0.75" in shown[2]  # confidences of 0.9, 0.8, 0.7 and 0.6


def test_the_notebook_example(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    exec(example, {})
    acc, fgt = (float(value) for value in capsys.readouterr().out.split())
    assert 0 < acc < 1
    assert -1 < fgt < 1
