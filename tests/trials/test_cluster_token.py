"""A cluster of `ray start` that wants a token, as it does wherever Ray once ran alone on its machine."""

import os
import platform
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path

import pytest


@pytest.fixture
def cluster(tmp_path):
    """The address of a cluster with a token, and the home folder that holds it."""
    home, folder = tmp_path / "home", tempfile.mkdtemp(prefix="gd")  # Ray's sockets need a short path
    (home / ".ray").mkdir(parents=True)
    (home / ".ray" / "auth_token").write_text("0123456789abcdef" * 4)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    ray = Path(sys.executable).with_name("ray")
    options = ["--head", f"--port={port}", "--num-cpus=1", f"--temp-dir={folder}", "--include-dashboard=false"]
    started = subprocess.Popen(
        [ray, "start", "--block", *options],
        env={**environment(home), "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert any("--block" in line for line in started.stdout), "it ended before it was ready"
        yield f"127.0.0.1:{port}", home
    finally:
        kill_session(started.pid)  # 'ray stop' would stop every Ray of this machine
        started.communicate()
        shutil.rmtree(folder, ignore_errors=True)


def kill_session(leader):
    """Kill the processes of a session; Ray's workers have process groups of their own, but stay in the session."""
    for pid in [int(path.name) for path in Path("/proc").glob("[0-9]*")]:
        with suppress(ProcessLookupError):
            if os.getsid(pid) == leader:
                os.kill(pid, signal.SIGKILL)


def environment(home):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "HOME": str(home), "RAY_USAGE_STATS_ENABLED": "0"}


def run(address, home, folder, **variables):
    code = "from trials.cli import main; main()"
    command = ["run", "smoke", "--where", "method=baseline", "--address", address]
    return subprocess.run(
        [sys.executable, "-c", code, *command],
        cwd=folder,
        env={**environment(home), **variables},
        capture_output=True,
        text=True,
    )


def test_a_cluster_with_a_token_and_one_of_another_version(cluster, tmp_path):
    address, home = cluster
    stranger = tmp_path / "stranger"
    stranger.mkdir()
    done = run(address, stranger, tmp_path)
    assert done.returncode == 2
    assert done.stderr == run(address, stranger, tmp_path, RAY_AUTH_MODE="token").stderr
    assert done.stderr == (
        f"gd-ray: --address '{address}' asks for a token that it did not get; copy ~/.ray/auth_token from the machine "
        f"where the cluster was started, and leave RAY_AUTH_MODE unset or set it to token.\n"
    )
    older = tmp_path / "older"
    older.mkdir()
    (older / "sitecustomize.py").write_text("import ray; ray.__version__ = '2.0.0'")
    done, python = run(address, home, tmp_path, PYTHONPATH=str(older)), f"Python {platform.python_version()}"
    assert done.returncode == 2
    assert done.stderr == (
        f"gd-ray: --address '{address}' is a cluster of Ray {version('ray')} and {python}, but here is Ray 2.0.0 and "
        f"{python}; use the same versions on both.\n"
    )
    done = run(address, home, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Baseline" in done.stdout
