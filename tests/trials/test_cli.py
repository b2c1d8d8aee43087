import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image


def gd_ray(*arguments, **options):
    code = "from trials.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True, **options)


@pytest.mark.parametrize(
    "command",
    [
        *((), ("demo",), ("list",), ("plan",), ("run",), ("prepare",), ("status",), ("report",), ("sampled",)),
        *(("pack",), ("export",), ("log",), ("convert",)),
    ],
)
def test_help_teaches_and_comes_fast(command):
    started = time.perf_counter()
    done = gd_ray(*command, "--help")
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) > 4
    assert time.perf_counter() - started < 2


def test_the_demo_ends_with_what_was_forgotten_the_report_and_what_to_try_next(tmp_path, monkeypatch, capsys):
    from tests.helpers.made import write_made
    from trials import cli
    from trials.experiments import EXPERIMENTS

    lost = {"oracle": -10, "baseline": 20, "e2e": 15, "gd": 10, "gd+ext": 5}  # all are finished: no Ray is needed
    for spec in EXPERIMENTS["demo"].specs():
        lost_of = lost[spec.method.name]
        write_made(str(tmp_path / "results/demo"), "demo", spec, lambda stage, task, n=lost_of: 70 - n * (stage > task))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", "")
    cli.demo()
    printed = capsys.readouterr().out
    assert " ".join(printed.split()).startswith("Five methods learn 15 drawn characters in three tasks of five")
    bars = {line.split()[0]: line.count("█") for line in printed.splitlines() if "█" in line}
    assert list(bars) == ["Baseline", "E2E", "GD", "GD+ext"]
    assert list(bars.values()) == [40, pytest.approx(30, abs=1), pytest.approx(20, abs=1), pytest.approx(10, abs=1)]
    assert "nothing: earlier tasks improved" in printed
    assert "With a coreset, GD+ext forgets 2.9 points, Baseline forgets 11.7 points." in printed
    after = printed.partition("report.html")[2]
    assert f"Next, after 'export PATH={Path(sys.executable).parent}:$PATH':\n  gd-ray report" in after
    assert after.count("\n  gd-ray ") == 3


@pytest.mark.parametrize("command", [("list",), ("prepare", "--help")])
def test_a_reader_that_leaves_early_makes_no_traceback(command):
    reader, writer = os.pipe()
    os.close(reader)
    code = "from trials.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", code, *command], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert done.stderr == ""


def test_alone_it_says_in_a_few_lines_where_to_start():
    done = gd_ray()
    lines = done.stdout.splitlines()
    assert done.returncode == 0
    assert len(lines) < 25
    assert sum(line.startswith("  gd-ray ") for line in lines) == 5
    assert lines[-1] == "'gd-ray COMMAND --help' explains each of them, with examples."
    assert gd_ray("plan", "--set", "seed=0", "smoke").returncode == 0  # the name may stand behind a setting


def test_list_names_every_method():
    from gd_ray.methods import METHODS

    found = gd_ray("list").stdout
    assert all(f" {name} " in found for name in METHODS)
    assert "ood_ratio=0.7" in found  # the fields of a trial
    assert "a whole stage  reduced size, 5 seeds" in found  # how sure one can be of a method


def test_prepare_makes_a_stream_and_tells_about_it(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / "s" / name).mkdir(parents=True)
        for k in range(3):
            Image.new("RGB", (40, 40), (k, 10 * k, 99)).save(tmp_path / "s" / name / f"{k}.png")
    (tmp_path / "s" / "dog" / "bad.png").write_text("no picture")
    done = gd_ray(
        "prepare", "stream", str(tmp_path / "s"), str(tmp_path / "out"), "--exclude", "cat", "--exclude", "bird"
    )
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "3 images of 32x32 in 1 shard, 0 MB" in text
    assert "Excluded 3 images of 1 class; " in text
    assert "1 could not be read" in text
    assert "Warning: exclude: no image of class 'bird' was found." in text
    from gd_ray.wild.stream import WildStream

    assert len(WildStream.open(str(tmp_path / "out"))) == 3


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("run", "tabel1"), "experiment 'tabel1' does not exist; did you mean 'table1'?"),
        (("run", "smoke", "--set", "ood=1"), "grid key 'ood' does not exist; did you mean 'ood_ratio'?"),
        (("run", "smoke", "--cpus", "0"), "--cpus 0.0 must be at least 0.01"),
        (("run", "smoke", "--data", "a=1", "--data", "a=2"), "--data gives 'a' both '1' and '2'; keep one"),
        (("run", "smoke", "--set", "seed=1", "--set", "seed=2"), "--set names 'seed' twice"),
        (
            ("run", "smoke", "--address", "ray://host:10001"),
            "--address 'ray://host:10001' is not the address of a cluster",
        ),
        (("run", "smoke", "--results", "/proc/no"), "results '/proc/no' cannot be written"),
        (("plan", "smoke", "--where", "seed=9"), "--where seed=9 leaves no trial"),
        (("plan", "smoke", "--at-once", "0"), "--at-once 0 must be at least 1"),
        (("plan", "smoke", "--images-per-second", "nan"), "--images-per-second nan must be a number above 0"),
        (("plan", "smoke", "--results", "foo://x"), "address 'foo://x' cannot be opened"),
        (("plan", "smoke", "--set", "dataset=cifar10"), "data set 'cifar10' does not exist; did you mean 'cifar100'?"),
        (("plan", "smoke", "--set", "depth=10"), "'depth' is now part of network; write network=wrn-DEPTH-WIDTH"),
        (("plan", "smoke", "--plugin", "none.py"), "plugin 'none.py' cannot be read (No such file or directory)."),
        (("plan", "smoke", "--stream", "glyphs:60=x"), "no trial here has 'glyphs:60'; did you mean 'glyphs:600'?"),
        (("run", "smoke", "--data", "glyfs=x"), "--data glyfs=x: no trial here has 'glyfs'; did you mean 'glyphs'?"),
        (("rum", "smoke"), "command 'rum' does not exist; did you mean 'run'?"),
        (("run", "smoke", "--set", "seed=0", "1", "2"), "give several values with commas, --set seed=0,1,2."),
        (("run", "smoke", "--set", "seed=0", "window=9"), "repeat --set for each field, --set seed=0 --set window=9."),
        (("run", "--where", "seed=0", "1", "smoke"), "give several values with commas, --where seed=0,1,smoke."),
        (("plan", "smoke", "--set", "seed=0-4"), "seed '0-4' is no value; give several with commas, seed=0,1,2,3,4."),
        (("plan", "smoke", "--set", "ood_ratio=0.5 1"), "give several with commas, ood_ratio=0.5,1."),
        (("plan", "smoke", "--where", "seed=0:99"), "give several with commas, seed=0,1,…,99."),
        (("status", "--results", "nowhere"), "results 'nowhere' have no experiment"),
        (("report", "--results=nowhere"), "results 'nowhere' is not a folder"),
        (("pack", "nowhere"), "results 'nowhere' have no finished trial"),
        (("convert", "nowhere", "new"), "results 'nowhere' have no finished trial of version 0.1"),
        (("run", "smoke", "--gpus", "inf"), "--gpus inf is more than any machine has; lower it."),
        (("status", "nowhere"), "results 'nowhere' have no experiment"),
        (("prepare", "nowhere", "out"), "write 'gd-ray prepare stream nowhere out'"),
        (("prepare", "stream", "nowhere", "out"), "source 'nowhere' does not exist"),
        (("prepare", "stream", "glyphs:10", "/proc/no"), "out '/proc/no' cannot be written"),
        (("prepare", "stream", "glyphs:10", "out", "--seed", "-1"), "seed -1 must be at least 0"),
        (("prepare", "imagenet32", "glyphs:10", "out", "--seed", "-1"), "seed -1 must be at least 0"),
        (("prepare", "dataset", "glyphs:10", "out"), "has no class for glyphs, image 0"),
        (("prepare", "cifar100", "/dev/null/no"), "CIFAR-100 cannot be downloaded to"),
    ],
)
def test_a_mistake_is_one_sentence_and_exit_code_2(arguments, says, tmp_path):
    done = gd_ray(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("gd-ray: ")
    assert says in done.stderr
    assert done.stderr.count("\n") == 1


def test_a_trial_that_failed_is_told_and_the_exit_code_is_1(tmp_path, monkeypatch, capsys):
    from trials import cli, runner
    from trials.experiments import experiment_named

    (spec,) = [spec for spec in experiment_named("smoke").specs() if spec.method.name == "gd"]
    typed = []

    def failing(name, specs, results, cluster, console, command):
        typed.append(command)
        return [runner.TrialFailure(spec, "ValueError: [bad]", "error.txt")]

    monkeypatch.setattr(runner, "run_experiment", failing)
    monkeypatch.setattr(
        sys, "argv", ["gd-ray", "run", "smoke", "--where", "method=gd,dr", "--results", str(tmp_path / "my results")]
    )
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 1
    told = capsys.readouterr().out
    assert "Failed: GD, seed 0: ValueError: [bad] (log: error.txt)" in told
    assert "2 trials are not finished; run the same command to resume." in told
    assert typed == [f"gd-ray run smoke --where method=gd,dr --results '{tmp_path}/my results'"]


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (
            ("prepare", "stream", "glyphs:10", "out"),
            "; unfinished output is removed, run the same command to start again.",
        ),
        (("run", "smoke"), "; run the same command to resume."),
        (("status", "results"), "."),
    ],
)
def test_an_interruption_promises_only_what_is_true(monkeypatch, capsys, command, says):
    from trials import cli

    def interrupted(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli.tyro.extras, "subcommand_cli_from_dict", interrupted)
    monkeypatch.setattr(sys, "argv", ["gd-ray", *command])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    assert stopped.value.code == 130
    assert capsys.readouterr().err == f"gd-ray: interrupted{says}\n"


def test_a_selection_that_cannot_be_read_is_one_sentence(tmp_path):
    folder = tmp_path / "experiments" / "smoke"
    folder.mkdir(parents=True)
    (folder / "0123.parquet").write_bytes(b"PAR1")
    done = gd_ray("status", str(tmp_path))
    assert done.returncode == 2
    assert "cannot be read, experiments/smoke/0123.parquet; delete it, and 'gd-ray run smoke'" in done.stderr


@pytest.mark.parametrize("command", [("status",), ("report",), ("pack",), ("run", "smoke", "--results")])
def test_results_of_the_former_layout_are_refused_with_the_command_that_converts_them(tmp_path, command):
    for folder in ("trials", "stages", "ledger"):
        (tmp_path / folder / "experiment=smoke").mkdir(parents=True)
    done = gd_ray(*command, str(tmp_path), cwd=tmp_path)
    assert done.returncode == 2
    assert f"have the layout of version 0.1; convert them with 'gd-ray convert {tmp_path} NEW'." in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (("report",), "of '{address}' cannot be listed (…); check the address, its access and the network."),
        (("run", "smoke", "--results"), "'{address}' cannot be written (…); check the address and the network."),
    ],
)
def test_an_object_store_that_does_not_answer_is_one_sentence(command, says, monkeypatch, capsys, tmp_path):
    from trials import cli

    with socket.socket() as closed:  # bound, but nobody listens
        closed.bind(("127.0.0.1", 0))
        host = f"127.0.0.1:{closed.getsockname()[1]}"
        place = f"bucket/results?endpoint_override={host}&scheme=http&region=nowhere"
        monkeypatch.setattr(sys, "argv", ["gd-ray", *command, f"s3://access:secret@{place}"])
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as stopped:
            cli.main()
    assert stopped.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    before, after = says.format(address=f"s3://{place}").split("…")  # the address without its secret
    assert before in lines[0]
    assert lines[0].endswith(after)


@pytest.mark.parametrize("address", [(), ("--address", "auto")])
def test_a_ray_address_for_jobs_is_no_clusters_own(tmp_path, monkeypatch, address):
    monkeypatch.setenv("RAY_ADDRESS", "http://head:8265")
    done = gd_ray("run", "smoke", *address, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("gd-ray: RAY_ADDRESS 'http://head:8265' is not the address of a cluster; unset it")
    assert done.stderr.count("\n") == 1


def test_a_cluster_that_does_not_answer_is_told_within_ten_seconds(tmp_path):
    def refused(address):
        started = time.perf_counter()
        done = gd_ray("run", "smoke", "--address", address, cwd=tmp_path)
        assert done.returncode == 2
        assert done.stderr.startswith(f"gd-ray: --address '{address}' does not answer; start a cluster there")
        assert done.stderr.count("\n") == 1
        return time.perf_counter() - started

    with socket.socket() as mute:
        mute.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{mute.getsockname()[1]}"
        start_up = refused(address)  # nobody listens: refused at once, so that this is the time to start on any machine
        mute.listen()  # takes connections, and never says a word
        assert refused(address) < 6 + 2 * start_up


def test_plan_tells_what_an_experiment_costs_and_imports_little(tmp_path):
    heavy = "('torch', 'ray', 'pandas', 'analysis')"
    code = f"import sys; from trials.cli import main; main(); print([name for name in {heavy} if name in sys.modules])"
    command = [sys.executable, "-c", code, "plan", "table1", "--where", "dataset=cifar100"]
    started = time.perf_counter()
    subprocess.run([sys.executable, "-c", "import torch"], check=True)  # how fast this machine is at the moment
    imported = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=True)
    assert time.perf_counter() - imported < 1 + 2 * (imported - started)
    lines = done.stdout.splitlines()
    assert lines[0] == "table1: 300 trials, 0 finished, 300 to run."
    assert lines[1].startswith("Images to train on: ")
    assert lines[2].startswith(f"Stream 'tinyimages' is not at {tmp_path}/streams/tinyimages, so full windows are ")
    assert lines[3].endswith("million of wrn-16-2. --measure times them on this machine.")
    assert lines[-1] == "[]"
    assert not list(tmp_path.iterdir())


def test_plan_knows_the_stream_and_the_speed_of_finished_trials(tmp_path, capsys, monkeypatch):
    from gd_ray.fingerprint import Fingerprints
    from gd_ray.store import write_trial
    from gd_ray.trial_result import TrialResult
    from tests.helpers.made import made_stage
    from trials import cli
    from trials.experiments import experiment_named

    def plan(*arguments):
        monkeypatch.setattr(sys, "argv", ["gd-ray", "plan", "smoke", "--results", str(tmp_path), *arguments])
        cli.main()
        return capsys.readouterr().out.splitlines()

    setting = ("--where", "method=gd,gd+ext", "--set", "window=1000000", "--at-once", "1")
    lines = plan(*setting)
    assert lines[1].endswith("; to score: 1,166.")  # 600 images at two stages, without those taken as OOD
    assert len(lines) == 3
    assert plan(*setting, "--measure")[2].endswith("per second (measured just now with one thread of this machine).")
    spec = next(spec for spec in experiment_named("smoke").specs() if spec.method.name == "gd")
    stages = tuple(made_stage(spec, stage, lambda *_: 50) for stage in (1, 2, 3))
    write_trial(str(tmp_path), TrialResult(spec, stages, Fingerprints()), device="cpu", threads=1)
    lines = plan(*setting)
    assert lines[0] == "smoke: 2 trials, 1 finished, 1 to run."
    assert lines[2].startswith("About ")
    assert " with 1 trial at once, at " in lines[2]
    assert lines[2].endswith("forward passes per second (as in 1 finished trial).")
