"""A cluster of `ray start` that wants a token, as it does wherever Ray once ran alone on its machine."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
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
    try:
        subprocess.run([ray, "start", *options], env=environment(home), check=True, capture_output=True)
        yield f"127.0.0.1:{port}", home
    finally:
        subprocess.run(["pkill", "-9", "-f", folder], check=False)  # 'ray stop' would stop every Ray of this machine
        shutil.rmtree(folder, ignore_errors=True)


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


def test_the_token_of_this_machine_is_shown_and_a_missing_one_asked_for(cluster, tmp_path):
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
    done = run(address, home, tmp_path)
    assert done.returncode == 0, done.stderr
    assert "Baseline" in done.stdout
