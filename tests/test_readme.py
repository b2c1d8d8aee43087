"""The examples of README.md and CONTRIBUTING.md run as printed."""

import re
import subprocess
import sys
from pathlib import Path

import pandas as pd

from gd_ray.spec import TrialSpec
from tests.helpers.made import write_made
from tests.helpers.pictures import picture

ROOT = Path(__file__).parent.parent


def block(file: str, language: str, start: str) -> str:
    """Return the code block of a file that starts with this text."""
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(), re.DOTALL)
    (found,) = (text for text in blocks if text.startswith(start))
    return found


def test_code_blocks_have_a_language_that_github_highlights():
    for file in ROOT.glob("*.md"):
        fences = re.findall(r"^```(\w*)$", file.read_text(), re.MULTILINE)
        assert set(fences[::2]) <= {"python", "bash", "yaml", "text"}, file.name
        assert set(fences[1::2]) <= {""}, file.name


def test_links_and_pictures_exist():
    for file in ROOT.glob("*.md"):
        for target in re.findall(r"\]\(([^):]+)\)", file.read_text()):
            assert (ROOT / target).exists(), (file.name, target)


def test_the_recipe_of_plain_pandas(tmp_path, monkeypatch, capsys):
    spec = TrialSpec(method="gd+ext", num_classes=4, task_size=2)
    for experiment in ("x", "y"):  # which share the trial
        write_made(str(tmp_path / "results"), experiment, spec, lambda stage, task: 80 - 10 * (stage - task))
    other = TrialSpec(method="gd+ext", num_classes=4, task_size=2, seed=1)
    write_made(str(tmp_path / "results"), "x", other, lambda stage, task: 90 - 10 * (stage - task))
    longer = TrialSpec(method="gd+ext", num_classes=4, task_size=2, epoch_factor=2)  # not to be averaged with the rest
    write_made(str(tmp_path / "results"), "x", longer, lambda stage, task: 20)
    monkeypatch.chdir(tmp_path)
    recipe = block("README.md", "python", "# plain pandas")
    assert "gd_ray" not in recipe
    exec(recipe, {})
    assert "0.8  0.070711     2" in capsys.readouterr().out  # ACC: 0.75 and 0.85, each once


def test_one_trial_in_python(capsys):
    exec(block("CONTRIBUTING.md", "python", "from gd_ray import TrialSpec"), {})
    acc, fgt = (float(value) for value in capsys.readouterr().out.split())
    assert 0 < acc < 1
    assert -1 < fgt < 1


def gd_ray(folder: Path, *commands: list[str]) -> str:
    """Run commands in one process, which share its Ray; return what they print."""
    lines = "".join(
        f"sys.argv = ['gd-ray', *{words!r}]\ntry:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        for words in commands
    )
    code = f"import sys\nfrom trials.cli import main\n{lines}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_a_method_a_sampling_rule_a_data_set_and_a_stream_of_ones_own(tmp_path):
    for label, name in enumerate(("rose", "tulip", "daisy", "iris")):
        for k in range(9):
            file = tmp_path / "photos" / "flowers" / name / f"{k}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture(10 * label + k, (70, 64)).save(file)
    (tmp_path / "photos" / "wild").mkdir()
    for k in range(70):
        picture(1000 + k, (64, 64)).save(tmp_path / "photos" / "wild" / f"{k}.png")
    (tmp_path / "mine.py").write_text(block("README.md", "python", "# mine.py"))
    printed = block("README.md", "bash", "gd-ray prepare dataset").splitlines()
    subprocess.run(next(line for line in printed if line.startswith("echo")), shell=True, cwd=tmp_path, check=True)
    dataset, stream, run = (line.partition(" #")[0].split()[1:] for line in printed if line.startswith("gd-ray"))
    tiny = [f"--set={text}" for text in ("network=wrn-10-1", "batch_size=8", "epoch_factor=0.01")]
    told = gd_ray(
        tmp_path,
        [*dataset, "--test-per-class", "2"],
        stream,
        ["plan", *run[1:], *tiny],
        [*run, *tiny],
        ["report", "results"],
    )
    assert "4 classes, 28 + 8 images of 64x64" in told
    assert "flowers: 2 trials, 0 finished, 2 to run." in told
    trials = pd.read_parquet(tmp_path / "results" / "trials").set_index("method")
    assert set(trials.index) == {"smooth", "gd+margin"}
    assert set(trials["network"]) == {"wrn-10-1"}
    samples = pd.read_parquet(tmp_path / "results" / "samples")
    assert "margin" in set(samples["score_kind"].dropna())
    page = (tmp_path / "results" / "report.html").read_text()
    assert all(text in page for text in ("flowers", "wrn-10-1", "GD by margin"))
