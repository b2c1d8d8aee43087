"""Two hosts under a real Slurm: batch scripts as users submit them, a stranger's job. Run by `make test-cluster`.

The hosts are namespaces of this machine with a network of their own; 'ray stop' ends nothing outside of them.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from threading import Event, Thread

import pytest

from gd_ray.store import finished, read_rows

ROOT = Path(__file__).parents[2]
CLUSTERS = ROOT / "trials" / "clusters"
HOSTS = Path(__file__).with_name("slurm-hosts")
BIN = Path(sys.executable).parent
NEEDED = ("slurmctld", "slurmd", "sbatch", "munged", "ip", "unshare", "nsenter")

if os.geteuid() != 0:
    pytest.skip("hosts in namespaces of their own need root.", allow_module_level=True)
if missing := [name for name in NEEDED if not (shutil.which(name) or Path("/usr/sbin", name).exists())]:
    pytest.skip(
        f"Slurm is not complete, {', '.join(missing)} not found: apt install slurm-wlm munge iproute2.",
        allow_module_level=True,
    )


@pytest.fixture(scope="module")
def hosts(tmp_path_factory):
    """Variables with which Slurm's commands reach its two hosts."""
    folder = tmp_path_factory.mktemp("hosts")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SLURM_"))}
    path = f"{BIN}:{kept['PATH']}"
    variables = {**kept, "PATH": path, "SLURM_HOSTS_DIR": str(folder), "SLURM_CONF": str(folder / "slurm.conf")}
    variables["RAY_USAGE_STATS_ENABLED"] = "0"
    try:
        subprocess.run([HOSTS, "start"], env=variables, check=True, timeout=120, capture_output=True)
        yield variables
    finally:
        subprocess.run([HOSTS, "stop"], env=variables, check=True, timeout=60)


def submit(hosts, folder, *words, wait=True):
    command = ["sbatch", "--parsable", *(["--wait"] if wait else []), *words]
    done = subprocess.run(command, cwd=folder, env=hosts, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr + "".join(file.read_text() for file in Path(folder).glob("*.out"))
    return done.stdout.split(";")[0].strip()


def queue(hosts, *options):
    return subprocess.run(["squeue", "-h", *options], env=hosts, capture_output=True, text=True).stdout.strip()


@contextmanager
def watched(storage):
    """Which host computed each stage of each trial, as progress files name it."""
    owners, ended = defaultdict(set), Event()

    def watch():
        while not ended.wait(0.1):
            for file in storage.glob("progress/[!.]*.json"):
                try:
                    progress = json.loads(file.read_text())
                except (OSError, ValueError):
                    continue
                if progress["stage"]:
                    owners[file.stem, progress["stage"]].add(progress["host"].split()[0])

    thread = Thread(target=watch)
    thread.start()
    try:
        yield owners
    finally:
        ended.set()
        thread.join()


def hosts_of(folder):
    """Which hosts finished trials; fast ones end before their first heartbeat."""
    table, _ = read_rows(str(folder / "results"), "trials", columns=["host"])
    return set(table["host"].to_pylist())


def test_an_array_of_two_tasks_computes_every_trial_once(hosts, tmp_path):
    with watched(tmp_path / "storage") as owners:
        submit(hosts, tmp_path, "--array=0-1", "--cpus-per-task=2", CLUSTERS / "slurm-array.sbatch", "smoke")
    assert len(finished(str(tmp_path / "results"))) == 10
    assert hosts_of(tmp_path) == {"hostA", "hostB"}
    assert {stage: found for stage, found in owners.items() if len(found) > 1} == {}


def test_one_ray_over_two_nodes_uses_both(hosts, tmp_path):
    submit(hosts, tmp_path, "--nodes=2", CLUSTERS / "slurm-ray.sbatch", "smoke")
    assert len(finished(str(tmp_path / "results"))) == 10
    assert hosts_of(tmp_path) == {"hostA", "hostB"}
    assert not list(tmp_path.glob(".gd-ray*"))


def test_a_preempted_task_is_queued_again_and_resumes(hosts, tmp_path):
    script = (CLUSTERS / "slurm-array.sbatch", "smoke", "--where", "method=baseline,gd+ext")
    job = submit(hosts, tmp_path, "--array=0-0", "--cpus-per-task=2", "--nodelist=hostA", *script, wait=False)
    while not list(tmp_path.glob("storage/checkpoints/*.pt")):
        assert queue(hosts, "-j", job)
        time.sleep(0.2)
    urgent = ("--partition=urgent", "--exclusive", "--nodelist=hostA", "--output=urgent.out", "--wrap=sleep 1")
    submit(hosts, tmp_path, *urgent)
    state = subprocess.run(["scontrol", "show", "job", job], env=hosts, capture_output=True, text=True).stdout
    assert "Restarts=1" in state
    while queue(hosts, "-j", job):
        subprocess.run(["scontrol", "update", f"jobid={job}", "starttime=now"], env=hosts, capture_output=True)
        time.sleep(1)
    assert len(finished(str(tmp_path / "results"))) == 2


HEAD = "exec ray start --head --node-ip-address=10.77.0.2 --port=6379 --num-cpus=1 --block"


def test_a_job_from_a_client_without_the_token_is_refused(hosts, tmp_path):
    """On the other host, by Ray's own client, by our command, and by the job API where Ray's dashboard is installed."""
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("0123456789abcdef" * 4)
    (tmp_path / "stranger").mkdir()
    folder = tempfile.mkdtemp(prefix="gd")  # Ray's sockets need a short path
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(token), "RAY_TMPDIR": folder}
    stranger = {**hosts, "HOME": str(tmp_path / "stranger"), "RAY_TMPDIR": f"{folder}/s"}

    def on(host, *command, environment):
        run = subprocess.run(
            [HOSTS, "on", host, *command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120
        )
        return run.returncode, run.stdout + run.stderr

    code = (
        "import ray; ray.init('10.77.0.2:6379', log_to_driver=False); print(ray.get(ray.remote(lambda: 42).remote()))"
    )
    with (tmp_path / "head.out").open("w") as out:
        head = subprocess.Popen(
            [HOSTS, "on", "A", "bash", "-c", HEAD], cwd=tmp_path, env={**hosts, **secret}, stdout=out, stderr=out
        )
        try:
            while "Ray runtime started" not in (tmp_path / "head.out").read_text():
                assert head.poll() is None, (tmp_path / "head.out").read_text()
                time.sleep(0.2)
            run = ("gd-ray", "run", "smoke", "--where", "method=baseline", "--address", "10.77.0.2:6379")
            answer, said = on("B", *run, environment=stranger)
            assert answer == 2
            assert said.endswith(
                "gd-ray: --address '10.77.0.2:6379' asks for a token that it did not get; copy ~/.ray/auth_token from "
                "the machine where the cluster was started, and leave RAY_AUTH_MODE unset or set it to token.\n"
            )
            _, said = on("B", "timeout", "20", sys.executable, "-c", code, environment=stranger)
            assert "42" not in said.splitlines()
            answer, said = on("A", sys.executable, "-c", SUBMIT, environment=stranger)
            assert (answer, said.strip()) == (0, "401" if find_spec("aiohttp_cors") else "no dashboard")
            assert on("B", sys.executable, "-c", SUBMIT, environment=stranger) == (
                0,
                "no dashboard\n",
            )  # not to a network
        finally:
            on("A", "ray", "stop", "--force", environment={**hosts, **secret})
            head.wait(timeout=60)
            shutil.rmtree(folder, ignore_errors=True)
    assert not (tmp_path / "results" / "trials").exists()


SUBMIT = """
import json, urllib.error, urllib.request
job = json.dumps({"entrypoint": "echo hello"}).encode()
for host in ("127.0.0.1", "10.77.0.2"):
    try:
        urllib.request.urlopen(urllib.request.Request(f"http://{host}:8265/api/jobs/", job), timeout=5)
    except urllib.error.HTTPError as error:
        print(error.code)
        break
    except OSError:
        pass
    else:
        print("accepted")
        break
else:
    print("no dashboard")
"""
