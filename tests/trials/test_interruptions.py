"""Runs that are stopped from outside, or whose Ray dies: one sentence, within seconds, and nothing to repair."""

import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray.exceptions import OutOfMemoryError

from gd_ray.errors import UserError
from gd_ray.ray_utils import start_ray
from gd_ray.store import trial_states
from tests.helpers.runs import Driver
from trials.interruption import RayDiedError, explained_memory, limited_start, watched_servers

PROGRAM = """
import sys
from rich.console import Console
from gd_ray.errors import UserError
from trials.grid import read_grid
from trials.resources import Cluster
from trials.runner import run_experiment

try:
    run_experiment(*read_grid("grid.yaml"), "results", Cluster(), Console(quiet=True))
except UserError as error:
    print("its own answer to:", error, file=sys.stderr)
    sys.exit(3)
"""


def kill_server(driver, name):
    """Kill one of the servers that the driver has started."""
    children = map(int, Path(f"/proc/{driver.process.pid}/task/{driver.process.pid}/children").read_text().split())
    (server,) = (pid for pid in children if name in Path(f"/proc/{pid}/cmdline").read_text().partition("\0")[0])
    os.kill(server, signal.SIGKILL)


def seconds_until(condition, limit):
    started = time.monotonic()
    while not condition() and time.monotonic() - started < limit:
        time.sleep(0.1)
    return time.monotonic() - started


def test_a_run_ends_within_seconds_of_a_signal_to_its_group_or_of_the_death_of_ray(tmp_path):
    for package in ("analysis", "gd_ray", "trials"):  # a user's own, which no process of a run may import
        (tmp_path / package).mkdir()
        (tmp_path / package / "__init__.py").touch()
    results, tune = str(tmp_path / "results"), tmp_path / "storage" / "tune"

    def is_running():
        return any(state.state == "running" for state in trial_states(results))

    terminated = Driver(tmp_path)
    terminated.wait_for_checkpoint()
    assert is_running()
    os.killpg(terminated.process.pid, signal.SIGTERM)  # as `timeout` does
    assert seconds_until(lambda: terminated.process.poll() is not None, 60) < 15
    code, out, err = terminated.end()
    assert (code, err) == (130, "gd-ray: stopping ...\ngd-ray: interrupted; run the same command to resume.\n")
    assert "Traceback" not in out
    assert not tune.exists()
    assert not is_running()

    # Only the process of the command line may be ended; a program of the user's gets a message and, if it can be
    # interrupted, an error.
    drivers, program = {"GCS": Driver(tmp_path), "raylet": Driver(tmp_path)}, Driver(tmp_path, PROGRAM)
    for driver in (*drivers.values(), program):
        driver.wait_for_tune()
    kill_server(drivers["GCS"], "gcs_server")
    kill_server(drivers["raylet"], "raylet/raylet")
    kill_server(program, "raylet/raylet")
    for name, driver in drivers.items():
        assert seconds_until(lambda: driver.process.poll() is not None, 90) < 30  # noqa: B023
        code, out, err = driver.end()
        assert code == 1
        assert err.startswith(f"gd-ray: Ray's {name} died (logs: /")
        assert err.endswith("/logs); run the same command to resume.\n")
        assert err.count("\n") == 1
        assert "(raylet)" not in out
        assert "Traceback" not in out
    with suppress(subprocess.TimeoutExpired):  # inside Ray it waits for ever
        program.process.wait(timeout=10)
    if program.process.poll() is None:
        os.killpg(program.process.pid, signal.SIGKILL)
        _, _, err = program.end()
    else:
        code, _, err = program.end()
        assert code == 3
        assert "its own answer to: Ray's raylet died (logs: /" in err
        assert "Traceback" not in err
    assert err.startswith("gd-ray: Ray's raylet died (logs: /")
    assert seconds_until(lambda: not is_running(), 60) < 30


def test_a_signal_while_ray_starts_gets_the_same_answer(tmp_path, monkeypatch):
    # Ray's part in C++ starts with this file. Its own handler would print a stack, and its destructors crash.
    with tempfile.TemporaryDirectory() as short:  # the paths of Ray's sockets have a limit
        monkeypatch.setenv("RAY_TMPDIR", short)
        driver = Driver(tmp_path)
        assert seconds_until(lambda: [*Path(short).glob("ray/session_*/logs/python-core-driver-*")], 60) < 60
        driver.terminate()
        code, out, err = driver.end()
    assert (code, err) == (130, "gd-ray: stopping ...\ngd-ray: interrupted; run the same command to resume.\n")
    assert out == "grid: 2 trials, 0 of them finished already.\n"


@pytest.fixture
def heeds_interrupts():
    """A process that a shell starts in the background ignores SIGINT."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("heeds_interrupts")
def test_a_raylet_that_died_before_the_run_first_looked_is_noticed(tmp_path, monkeypatch):
    import ray

    node = {"NodeID": "a", "RayletSocketName": str(tmp_path / "sockets" / "raylet")}
    with socket.create_server(("127.0.0.1", 0)) as gcs:
        address = f"127.0.0.1:{gcs.getsockname()[1]}"
        context = SimpleNamespace(get_node_id=lambda: "a", gcs_address=address)
        monkeypatch.setattr(ray, "get_runtime_context", lambda: context)
        monkeypatch.setattr(ray, "nodes", lambda: [node])
        with pytest.raises(RayDiedError, match="Ray's raylet died"), watched_servers(0.0):
            seconds_until(lambda: False, 20)


def test_a_ray_that_does_not_start_is_told_in_one_sentence(monkeypatch):
    import ray

    def init(*_, **__):
        raise Exception("The current node timed out during startup. This could happen because\nthe raylet failed.")

    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    monkeypatch.setenv("RAY_TMPDIR", "/scratch")
    with pytest.raises(UserError) as error:
        start_ray()
    assert str(error.value) == (
        "Ray did not start on this machine (The current node timed out during startup); run the same command when it "
        "is less busy and /scratch has space, or see Ray's logs, usually in /scratch/ray/session_latest/logs."
    )


LIMITED = """
import ctypes, sys, threading, time
from trials import interruption

def show_life():
    while True:
        print(".", flush=True)
        time.sleep(0.05)

threading.Thread(target=show_life, daemon=True).start()
interruption._START_WITHIN_S, interruption._STOP_WITHIN_S = map(float, sys.argv[1:])
with interruption.interruptible():
    with interruption.limited_start():
        pass
    time.sleep(1)  # not ended: it did start
    with interruption.limited_start():
        mutex, library = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
        while True:  # with Python's lock, as Ray waits for its first workers
            library.pthread_mutex_lock(mutex)
"""


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        (("0.5", "7"), "gd-ray: Ray did not start within 0 minutes; run the same command to resume.\n"),
        (("240", "0.1"), "gd-ray: interrupted; run the same command to resume.\n"),
    ],
)
def test_a_command_whose_ray_never_starts_ends_and_can_be_interrupted(limits, message):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    process = subprocess.Popen([sys.executable, "-c", LIMITED, *limits], **options)
    if limits[0] == "240":
        process.stdout.readline()
        while select.select([process.stdout], [], [], 2.0)[0]:  # until no thread can run
            process.stdout.readline()
        os.killpg(process.pid, signal.SIGTERM)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (-signal.SIGKILL, message)


def test_a_start_without_a_command_is_not_watched(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a user's program may not be ended"))
    with limited_start():
        pass


def test_a_full_memory_is_told_in_one_sentence():
    killed = OutOfMemoryError("4 worker(s) were killed. Memory was 22.10GB used / 23.54GB limit (0.938874) and so on")
    with pytest.raises(RayDiedError) as raised, explained_memory():
        raise RuntimeError("Caught unexpected exception") from killed
    assert str(raised.value) == (
        "a machine ran out of memory (22.10GB of 23.54GB used), and Ray ended trials; end other programs there, or run "
        "fewer trials at once with a higher --cpus, then run the same command to resume."
    )
    with pytest.raises(RuntimeError, match="another"), explained_memory():
        raise RuntimeError("another")
