"""Templates for clusters: those who read them take them, and none opens a Ray to strangers."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import tomllib
from importlib.metadata import version
from pathlib import Path

import jsonschema
import pytest
import ray
import yaml
from ray.autoscaler.sdk import fillout_defaults

import trials

ROOT = Path(__file__).parents[2]
CLUSTERS = Path(trials.__file__).with_name("clusters")
TEMPLATES = sorted(CLUSTERS.iterdir())
RISK = "Whoever reaches a Ray without a token runs any code in"
TOKEN = {"slurm-ray.sbatch": "RAY_AUTH_MODE=token", "ray-up.yaml": "RAY_AUTH_MODE=token", "rayjob.yaml": "mode: token"}


def strict(schema):
    """The schema without room for unknown fields, which Kubernetes would drop."""
    if isinstance(schema, list):
        return [strict(part) for part in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return closed | {key: strict(value) for key, value in schema.items()}


def rayjob():
    return yaml.safe_load((CLUSTERS / "rayjob.yaml").read_text())


def rayjob_schema():
    schema = json.loads(Path(__file__).with_name("rayjob-v1.schema.json").read_text())
    return {**strict(schema), "required": ["apiVersion", "kind", "metadata", "spec"]}


def test_kubernetes_accepts_the_ray_job():
    job = rayjob()
    jsonschema.validate(job, rayjob_schema())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cluster = job["spec"]["rayClusterSpec"]
    pods = [group["template"]["spec"] for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    images = {container["image"] for pod in pods for container in pod["containers"]}
    assert images == {f"registry.example.org/me/gd_ray:{project['version']}"}
    assert images.pop() in (CLUSTERS / "Containerfile").read_text()
    assert cluster["rayVersion"] == version("ray")  # that of the image, made from the same pins
    assert cluster["headGroupSpec"]["rayStartParams"] == {"num-cpus": "0"}  # a head without trials
    for pod in pods:
        assert {mount["name"] for mount in pod["containers"][0]["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    folders = re.findall(r"(/shared\S*)", job["spec"]["entrypoint"])
    assert len(folders) == 4


def test_a_misspelled_or_mistyped_field_of_the_ray_job_is_found():
    for change in ({"backoffLimits": 3}, {"backoffLimit": "3"}):
        job = rayjob()
        job["spec"] |= change
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(job, rayjob_schema())


def test_ray_up_accepts_its_file():
    config = fillout_defaults(yaml.safe_load((CLUSTERS / "ray-up.yaml").read_text()))
    jsonschema.validate(config, json.loads((Path(ray.__file__).parent / "autoscaler" / "ray-schema.json").read_text()))
    assert config["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    assert "chmod 600 ~/.ray/auth_token" in config["setup_commands"][0]
    for command in config["head_start_ray_commands"] + config["worker_start_ray_commands"]:
        assert command.startswith("RAY_AUTH_MODE=token ")


@pytest.mark.parametrize("file", [*TEMPLATES, ROOT / "README.md"], ids=lambda file: file.name)
def test_no_command_opens_a_ray_to_strangers(file):
    text = file.read_text()
    assert not re.search(r"dashboard.host|RAY_AUTH_MODE=disabled|^[^#]*\bray stop", text, re.MULTILINE)
    if "ray start" in text or file.name in TOKEN:
        assert TOKEN.get(file.name, "RAY_AUTH_MODE=token") in text
        assert RISK in " ".join(text.replace("\n#", " ").split())


def test_every_template_that_starts_a_ray_is_known_here():
    starts = {file.name for file in TEMPLATES if re.search(r"ray start|ray symmetric-run|RayJob", file.read_text())}
    assert starts == set(TOKEN)


def write_command(folder, name, text):
    (folder / name).write_text(f"#!/usr/bin/env bash\n{text}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def slurm(tmp_path):
    """A folder with commands that stand in for Slurm's, Ray's and ours, and a function that starts a batch script."""
    write_command(tmp_path, "scontrol", 'if [ "$1" = show ]; then printf "n1\\nn2\\n"; else echo "$@" >> requeued; fi')
    write_command(tmp_path, "srun", 'while [[ $1 = --* ]]; do shift; done; exec "$@"')
    write_command(
        tmp_path, "ray", 'stat -c "%a %s" "$RAY_AUTH_TOKEN_PATH"; echo $RAY_AUTH_MODE ${@:1:6}; exec "${@:7}"'
    )
    write_command(
        tmp_path, "gd-ray", 'trap "exit 130" TERM; echo "$@" > started; for k in {1..100}; do sleep 0.1; done'
    )

    def start(name, *words):
        job = {"SLURM_JOB_ID": f"x{os.getpid()}", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NNODES": "2"}
        environment = {**os.environ, **job, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
        command = ["bash", CLUSTERS / name, *words]
        options = {"stdout": subprocess.PIPE, "text": True, "start_new_session": True}
        return subprocess.Popen(command, cwd=tmp_path, env=environment, **options)

    return tmp_path, start


def wait_for(file):
    while not file.exists() or not file.read_text():
        time.sleep(0.02)
    return file.read_text()


@pytest.mark.parametrize(("received", "requeues"), [(signal.SIGUSR1, True), (signal.SIGTERM, False)])
def test_an_array_task_is_requeued_at_its_time_limit_but_not_when_cancelled(slurm, received, requeues):
    folder, start = slurm
    task = start("slurm-array.sbatch", "smoke", "--where", "method=gd")
    assert wait_for(folder / "started") == "run smoke --where method=gd\n"
    if requeues:
        task.send_signal(received)
    else:
        os.killpg(task.pid, received)  # as Slurm, to all processes of the job
    assert task.wait(timeout=20) == 130
    assert (folder / "requeued").exists() == requeues


def test_one_ray_over_nodes_has_a_token_that_only_its_owner_reads_and_is_requeued_at_its_time_limit(slurm):
    folder, start = slurm
    of_killed_job = Path(f"/tmp/gd-ray-0{os.getpid()}")
    of_killed_job.mkdir()
    job = start("slurm-ray.sbatch", "smoke")
    assert wait_for(folder / "started") == "run smoke --address n1:6379\n"
    job.send_signal(signal.SIGUSR1)
    printed, _ = job.communicate(timeout=20)
    assert job.returncode == 130
    assert printed.splitlines() == ["600 64", "token symmetric-run --address n1:6379 --min-nodes 2 --"]
    assert (folder / "requeued").exists()
    assert not list(folder.glob(".gd-ray*"))
    assert not Path(f"/tmp/gd-ray-x{os.getpid()}").exists()
    assert not of_killed_job.exists()


def test_a_run_in_a_slurm_job_takes_what_slurm_gave(monkeypatch, tmp_path):
    from gd_ray import slurm

    ended = []
    monkeypatch.setattr(slurm.atexit, "register", lambda *call: ended.append(call))
    for name in ("SLURM_CPUS_ON_NODE", "SLURM_CPUS_PER_TASK", "CUDA_VISIBLE_DEVICES", "RAY_TMPDIR", "RAY_AUTH_MODE"):
        monkeypatch.delenv(name, raising=False)
    assert slurm.slurm_options() == {}
    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "12")
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", "")  # restored after the test
    monkeypatch.setenv("RAY_TMPDIR", str(tmp_path))
    assert slurm.slurm_options() == {"num_cpus": 12, "num_gpus": 0}  # GPUs of others on this machine are not ours
    assert not ended  # the user's folder stays
    monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.delenv("RAY_AUTH_TOKEN_PATH")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "4")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,3")
    assert slurm.slurm_options() == {"num_cpus": 4, "num_gpus": 2}
    ((stop, folder),) = ended
    assert os.environ["RAY_TMPDIR"] == str(folder)
    assert len(str(folder)) <= 36  # sockets have paths of at most 107 bytes
    assert folder.stat().st_mode & 0o777 == 0o700
    token = Path(os.environ["RAY_AUTH_TOKEN_PATH"])
    assert token.stat().st_mode & 0o777 == 0o600
    assert len(token.read_text()) == 64
    stop(folder)
    assert not folder.exists()


def test_the_folder_of_a_killed_task_is_removed_by_the_next_one_and_no_other(tmp_path):
    from gd_ray import slurm

    code = f"from gd_ray import slurm; slurm._own_folder({str(tmp_path)!r}); print(flush=True); input()"
    task = subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    task.stdout.readline()
    (killed,) = tmp_path.iterdir()
    (tmp_path / "gd-of-another-program").mkdir()
    living = slurm._own_folder(str(tmp_path))
    assert killed.exists()  # its task lives
    task.kill()
    task.wait()
    newest = slurm._own_folder(str(tmp_path))
    assert {path.name for path in tmp_path.iterdir()} == {living.name, newest.name, "gd-of-another-program"}


def test_a_slurm_job_with_fewer_cpus_than_asked_for_is_refused(monkeypatch):
    from gd_ray.errors import UserError
    from trials.resources import Cluster, resolve_resources

    monkeypatch.setenv("SLURM_CPUS_ON_NODE", "2")
    with pytest.raises(UserError) as error:
        resolve_resources(Cluster(cpus=4), [{"CPU": 2.0}], (), 1)
    assert str(error.value) == (
        "--cpus 4 is more than the 2 of the largest machine (ask Slurm for more with --cpus-per-task); lower it."
    )


def test_list_names_the_folder_of_the_templates(capsys):
    from trials.console import print_names

    print_names({})
    assert f"in {CLUSTERS}: Containerfile, ray-up.yaml, rayjob.yaml, slurm-array.sbatch" in capsys.readouterr().out
