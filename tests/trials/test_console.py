"""What the terminal shows of an experiment."""

import io
import time

from rich.console import Console

from gd_ray.errors import Unreachable
from gd_ray.heartbeat import Progress
from gd_ray.store import TrialState, seconds_left
from tests.helpers.made import made_spec
from trials.console import duration, live_view, running_table, status_table, summary


def state(kind, work=100.0, done=0.0, progress=None, detail="", experiment="e", **changes):
    spec = made_spec(**{"method": "gd", **changes})
    own = {"state": kind, "work": work, "work_done": done, "progress": progress, "detail": detail}
    return TrialState(experiment, spec.trial_id, spec.flat(), stages=4, **own)


def shown(renderable):
    console = Console(file=io.StringIO(), width=150)
    console.print(renderable)
    return console.file.getvalue()


def test_the_time_left_is_the_work_left_at_the_rate_of_what_runs():
    fast, slow = Progress(share=0.5, share_per_second=0.01), Progress(share=0.2, share_per_second=0.001)
    states = [state("done", done=100), state("running", 100, 50, fast), state("waiting", 100, 10), state("failed")]
    assert states[1].seconds_left == 50
    assert seconds_left(states) == (50 + 90) / (100 * 0.01)
    # A slow trial ends after the others: the time left is its own.
    assert seconds_left([*states, state("running", 100, 20, slow)]) == 800
    times = (None, 30, 600, 9000, 400000)
    assert [duration(time) for time in times] == ["unknown time", "30 s", "10 min", "2.5 h", "4.6 days"]


def test_lines_and_tables_of_an_experiment():
    progress = Progress(stage=2, step="model", share=0.5, images_per_second=321, share_per_second=0.01)
    states = [state("running", 100, 50, progress, "stage 2 of 4, model"), state("failed"), state("waiting", done=20)]
    assert summary(states) == "0 of 3 trials done, 1 running, 1 failed, 23% of the work, 2 min left"
    assert shown(status_table(states)).splitlines()[1].split() == ["e", "0", "1", "1", "1", "0", "23%", "2", "min"]
    line = shown(running_table(states)).splitlines()[1]
    assert " ".join(line.split()) == "GD, seed 0 stage 2 of 4, model 321 50% 50 s"
    assert "and 3 more" in shown(running_table(states[:1] * 15))
    assert "0%" in shown(status_table([state("waiting", work=0.0)]))


def test_running_trials_are_named_by_what_varies_in_their_experiment():
    progress = Progress(stage=2, share=0.5)
    swept = [state("running", progress=progress, method="gd+ext", ood_ratio=ratio) for ratio in (0.5, 0.7)]
    lines = shown(running_table([*swept, state("waiting", method="gd")])).splitlines()[1:]
    assert [line.strip().split("  ")[0] for line in lines] == [
        "GD+ext, seed 0, OOD ratio 0.5",
        "GD+ext, seed 0, OOD ratio 0.7",
    ]
    other = state("running", progress=progress, experiment="f", task_size=1)
    lines = shown(running_table([*swept, other])).splitlines()[1:]
    assert lines[0].startswith("e: GD+ext, seed 0, OOD ratio 0.5 ")
    assert lines[2].startswith("f: GD, seed 0 ")


def test_storage_that_is_away_is_shown():
    def states():
        raise Unreachable("'/shared/results' is not there")

    pipe, terminal = Console(file=io.StringIO()), Console(file=io.StringIO(), force_terminal=True, width=100)
    with live_view(states, pipe, line_every=0.2), live_view(states, terminal, every=0.2):
        time.sleep(0.5)
    for console in (pipe, terminal):
        assert "trials wait for storage: '/shared/results' is not there" in console.file.getvalue()


def test_a_line_now_and_then_in_a_pipe_and_an_overview_on_a_terminal():
    pipe = Console(file=io.StringIO())
    with live_view(lambda: [state("waiting")], pipe, line_every=1.0):
        time.sleep(2.5)
    lines = pipe.file.getvalue().splitlines()
    assert 1 <= len(lines) <= 3
    assert "0 of 1 trial done" in lines[0]
    terminal = Console(file=io.StringIO(), force_terminal=True)
    running = state("running", 100, 50, Progress(stage=1, step="teacher", share=0.5, share_per_second=0.1))
    with live_view(lambda: [running], terminal):
        time.sleep(1.5)
    assert "GD, seed 0" in terminal.file.getvalue()
