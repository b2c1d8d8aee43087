"""A run of a plugin: its learners, networks and rankings work, and fail, in every process."""

import re
import subprocess
import sys
from pathlib import Path

from gd_ray.store import read_rows
from gd_ray.wild.ray_scoring import ScorerPool

FAILING = """
@LEARNERS.register("failing")
class Failing(Learner):
    def train(self, stage, previous):
        with Path(FOLDER, "attempts").open("a") as file:
            print(self.spec.method.name, file=file)
        if self.spec.method.name == "wa-mistake":
            raise UserError("the loss is not finite; lower learning_rate.")
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")


register_method(Method(name="wa-oom", title="Out of memory", learner="failing"))
register_method(Method(name="wa-mistake", title="A mistake", learner="failing"))


@LEARNERS.register("unsteady")
class Unsteady(Aligning):
    def train(self, stage, previous):  # fails once in every stage
        mark = Path(FOLDER, f"failed-{stage.number}")
        if not mark.exists():
            mark.touch()
            raise RuntimeError("only once")
        return super().train(stage, previous)


register_method(Method(name="wa-unsteady", title="Unsteady", learner="unsteady"))


def _exit(outputs):
    with Path(FOLDER, "exits").open("a") as file:
        print(os.getpid(), file=file)
    os._exit(3)


RANKINGS["exit"] = Ranking(_exit, "margin")
sampling = {"external": True, "previous_sampling": "exit", "ood_sampling": "random"}
register_method(Method(name="wa-exit", title="Dying scorers", learner="aligning", **sampling))
"""
PLUGIN = Path(__file__).parents[1] / "helpers" / "plugin_example.py"


def test_a_plugin_runs_in_every_process_of_a_run(tmp_path):
    """Two trials at once, each with a scorer of its own: learner, network, ranking and data set of the plugin."""
    size = {"num_classes": 4, "task_size": 2, "train_per_class": 8, "test_per_class": 4, "coreset_size": 8}
    size |= {"seed": "[0, 1]"}
    grid = {"plugin": "mine.py", "method": "wa-margin", "dataset": "stripes", "network": "two-convolutions", **size}
    grid |= {"stream": "glyphs:600", "window": 200, "batch_size": 8, "epoch_factor": 0.01}
    text = PLUGIN.read_text()
    (tmp_path / "mine.py").write_text(text)
    (tmp_path / "grid.yaml").write_text("\n".join(f"{key}: {value}" for key, value in grid.items()))

    def start(*options):
        command = [sys.executable, "-c", "from trials.cli import main; main()", "run", "grid.yaml", *options]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    done = start("--scorers", "1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WA by margin" in done.stdout
    stages = read_rows(str(tmp_path / "results"), "stages")[0].to_pandas()
    assert stages["trial_id"].nunique() == 2
    last = stages[stages["stage"] == 2]
    losses = [name for name in stages if name.startswith("loss_")]
    assert {"loss_model_ce", "loss_model_kd"} <= set(losses), losses
    assert last[["loss_model_ce", "loss_model_kd"]].notna().all(axis=None)
    samples = read_rows(str(tmp_path / "results"), "samples", filters=[("source", "=", "previous")])[0].to_pandas()
    assert set(samples["score_kind"]) == {"margin"}
    assert "2 of them finished already" in start().stdout

    imports = "import os\nfrom pathlib import Path\nfrom gd_ray.errors import UserError"
    (tmp_path / "mine.py").write_text(f"{text}\n{imports}\nFOLDER = {str(tmp_path)!r}\n{FAILING}")
    fields = ["seed=2", "task_size=1", "method=wa-margin,wa-oom,wa-mistake,wa-unsteady,wa-exit"]
    changed = start(*(word for field in fields for word in ("--set", field)), "--retries", "1", "--scorers", "1")
    assert changed.returncode == 1, changed.stderr
    assert sorted((tmp_path / "attempts").read_text().split()) == [
        "wa-mistake",
        "wa-oom",
        "wa-oom",
    ]  # a mistake is not retried
    assert "the loss is not finite; lower learning_rate. (log:" in changed.stdout
    assert "GPU ran out of memory for batches of 8 images in a trial with 0 of it; raise --gpus" in changed.stdout
    assert "Failed: Unsteady" not in changed.stdout  # more failures than retries, but one a stage
    assert len(list(tmp_path.glob("failed-*"))) == 3
    exits = (tmp_path / "exits").read_text().split()
    assert len(exits) == 2 * (ScorerPool().restarts + 1)  # of the first attempt, and of the retry
    said = " ".join(changed.stdout.split())
    assert re.search(rf"Dying scorers.*: 4 scorers of the stream died on .* \(processes {', '.join(exits[4:])}\)", said)
    assert "they exited without an error or a fatal signal" in said
    assert "3 trials are not finished" in changed.stdout
    assert "Note: results" in changed.stdout
    assert "have trials of method 'wa-margin' made with plugin" in changed.stdout
    for content, says in (
        ("def broken(:", "has a syntax error in line 1"),
        (text.replace('"wa-plain"', '"gd"'), "method 'gd' exists already; give yours another name."),
    ):
        (tmp_path / "mine.py").write_text(content)
        refused = start()
        assert refused.returncode == 2
        assert says in refused.stderr
        assert refused.stderr.count("\n") == 1
