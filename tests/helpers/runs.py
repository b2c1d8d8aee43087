"""Runs of tiny trials: on this process's Ray, as a command of their own, and in this process alone."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
from rich.console import Console

from gd_ray.rows import stages_table
from gd_ray.store import read_rows
from gd_ray.trial import run_trial
from trials.experiments import small_spec
from trials.registry import DataLocations
from trials.resources import Cluster
from trials.runner import run_experiment

# What may differ between two runs of a trial: times, and where it ran.
VARIABLE = ("seconds", "host", "device", "threads", "git_revision", "python", "torch", "ray", "numpy", "cpu_model")


def tiny(method, seed=0, **changes):
    small = {"num_classes": 6, "task_size": 2, "train_per_class": 8, "test_per_class": 4, "coreset_size": 8}
    size = {"stream": "glyphs:600", "window": 200, "batch_size": 8, "epoch_factor": 0.01}
    return small_spec(method, seed, **{**small, **size, **changes})


def comparable(rows):
    rows = rows[sorted(name for name in rows.columns if not name.startswith(VARIABLE))].astype({"trial_id": str})
    return rows.sort_values(
        [name for name in ("trial_id", "stage", "task", "position", "true_class", "predicted_class") if name in rows]
    ).reset_index(drop=True)


def frame(results, kind, trials=None):
    return comparable(read_rows(str(results), kind, trials)[0].to_pandas())


def alone(specs, storage):
    """The stages of each trial run in this process."""
    locations = DataLocations(storage=str(storage))
    tables = []
    for spec in specs:
        data = locations.load_data(spec.dataset, spec.train_per_class, spec.test_per_class)
        stream = locations.open_stream(spec.stream) if spec.method.external else None
        tables.append(stages_table(spec, run_trial(spec, data, stream).stages).to_pandas())
    return comparable(pd.concat(tables))


def run(name, specs, folder, **changes):
    cluster = Cluster(storage=str(folder / "storage"), **{"scorers": 1, **changes})
    return run_experiment(name, specs, str(folder / "results"), cluster, Console(quiet=True))


LONG = {"epoch_factor": 0.2}  # enough to be interrupted
GRID = "\n".join(
    f"{key}: {value}"
    for key, value in {**tiny("gd", **LONG).flat(), "method": "[gd, lwf]"}.items()
    if not key.startswith("method_") and key != "plugin"
)


class Driver:
    """`gd-ray run` of two trials in a process of its own, as a person would start it."""

    def __init__(self, folder, code="from trials.cli import main; main()"):
        self.folder = folder
        (folder / "grid.yaml").write_text(GRID)
        command = [sys.executable, "-P", "-c", code, "run", "grid.yaml"]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        # A shell's background job, which these tests may be, ignores Ctrl-C; a run in a terminal does not.
        pipes["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
        self.process = subprocess.Popen(command, cwd=folder, start_new_session=True, **pipes)

    def wait_for_checkpoint(self):
        """Until some trial is past its second stage."""
        deadline = time.time() + 200
        while not self.checkpoints() and time.time() < deadline:
            time.sleep(0.1)
        assert self.checkpoints()

    def checkpoints(self):
        return list((self.folder / "storage" / "checkpoints").glob("[!.]*.pt"))

    def wait_for_tune(self):
        """Until its trials are about to start."""
        deadline = time.time() + 200
        while not self.has_tune() and time.time() < deadline:
            time.sleep(0.1)

    def has_tune(self):
        locks = Path(tempfile.gettempdir()).glob("gd-ray-tune-*/in-use")
        with suppress(FileNotFoundError):  # another one has just ended
            return any(lock.read_text().endswith(f" {self.process.pid}\n") for lock in locks)
        return False

    def interrupt(self):
        os.killpg(self.process.pid, signal.SIGINT)  # as a terminal does

    def terminate(self):
        self.process.terminate()  # as a batch system does

    def end(self):
        out, err = self.process.communicate(timeout=240)
        return self.process.returncode, out, err


def specs_of_driver():
    return [tiny(method, **LONG) for method in ("gd", "lwf")]
