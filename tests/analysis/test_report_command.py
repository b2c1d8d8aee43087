"""`gd-ray report`: its page, its mistakes, and how long it watches."""

import subprocess
import sys

import pytest

from analysis import report
from gd_ray.errors import Unreachable
from gd_ray.heartbeat import progress_file
from gd_ray.store import read_selections, write_failure
from tests.helpers.made import made_spec, right, select, write_made
from trials.claim import run_heartbeat
from trials.cli import main


def test_watching_ends_with_the_experiment(tmp_path):
    spec = made_spec("gd", 0)
    write_made(str(tmp_path), "x", spec, right(0, 0), stages=1)
    refreshes = []

    def write(refresh):
        refreshes.append(refresh)
        path, results = report.write_report(str(tmp_path), refresh=refresh)
        assert ('http-equiv="refresh"' in path.read_text()) == (refresh is not None)
        if len(refreshes) in (3, 5):  # between two pages, and at the last
            raise Unreachable("storage does not answer for a moment.")
        if len(refreshes) == 2:
            assert "No trial is finished yet" in path.read_text()
            write_made(str(tmp_path), "x", spec, right(0, 0))
        return results

    report.watch(write, seconds=1)
    assert refreshes == [1, 1, 1, 1, None, None]

    def unreachable(_):
        raise Unreachable("storage does not answer at all.")

    with pytest.raises(Unreachable):  # at once a wrong address or missing access
        report.watch(unreachable, seconds=1)


def gd_ray(*arguments):
    code = "from trials.cli import main; main()"
    return subprocess.run([sys.executable, "-c", code, *arguments], capture_output=True, text=True)


def test_the_command(report_folder, tmp_path):
    done = gd_ray("report", str(report_folder), "--out", str(tmp_path / "new" / "page.html"))
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "new" / "page.html").stat().st_size > 100_000
    assert "page.html" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nowhere",), "results 'nowhere' is not a folder"),
        ((".",), "results '.' holds no results"),
        ((".", "--every", "0"), "--every 0 must be at least 1 second"),
        ((".", "--stream", "x"), "--stream: expected name=folder, got 'x'"),
    ],
)
def test_mistakes_are_one_sentence(arguments, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["gd-ray", "report", *arguments])
    with pytest.raises(SystemExit) as stopped:
        main()
    told = capsys.readouterr().err
    assert stopped.value.code == 2
    assert says in told
    assert told.count("\n") == 1


def command(capsys, monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gd-ray", *arguments])
    main()
    return capsys.readouterr().out


def test_report_and_status_agree_and_watching_a_stopped_run_ends(tmp_path, capsys, monkeypatch):
    results, storage = str(tmp_path / "results"), str(tmp_path / "storage")
    specs = [made_spec("gd+ext", 0, ood_ratio=ratio) for ratio in (0.0, 0.5, 1.0)]
    select(results, "sweep", specs, storage=storage)
    write_failure(results, specs[2].trial_id, "ValueError: no", "error.txt")
    (selection,) = read_selections(results)
    with (
        run_heartbeat(progress_file(storage, selection.digest), "run"),
        run_heartbeat(progress_file(storage, specs[0].trial_id), "run"),
    ):
        path, loaded = report.write_report(results)
        assert "Trials not finished yet: 1 running, 1 waiting." in loaded.notes
        assert "there are no tables and figures; nor any stage of one" in path.read_text()
        assert not report.is_over(loaded)
        status = command(capsys, monkeypatch, "status", results)
        assert status.splitlines()[1].split()[:6] == ["sweep", "0", "1", "1", "1", "0"]
        assert "GD+ext, seed 0, OOD ratio 0 " in status
        assert "failed: GD+ext, seed 0, OOD ratio 1: ValueError: no" in status
    write_made(results, "sweep", specs[0], right(0, 0), stages=1, storage=storage)
    said = command(capsys, monkeypatch, "report", results, "--watch", "--every", "1")
    assert "2 trials stopped; run the same command to resume after the last stage." in said
    assert said.splitlines()[-1] == "No trial runs any more: this was the last report."
    text = path.read_text()
    assert "the stages so far are below" in text
    assert f"<summary>GD+ext, seed 0, OOD ratio 0 ({specs[0].trial_id})</summary>" in text
    assert ">GD+ext, seed 0, OOD ratio 1</td>" in text  # which failed
    assert command(capsys, monkeypatch, "status", results).splitlines()[1].split()[:6] == ["sweep", *"00102"]
