"""A cluster of three nodes with declared GPUs: placement, a node that dies, and the same results as in one process."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest

from gd_ray.ray_utils import machines
from tests.helpers.placement import total, watched
from tests.helpers.runs import alone, frame, run
from trials.experiments import EXPERIMENTS
from trials.preflight import check_clocks

METHODS = ("oracle", "baseline", "e2e", "gd", "lwf+ext", "gd+ext")
NODE = {"num_cpus": 1, "num_gpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture
def nodes(monkeypatch):
    """Three nodes; the driver is connected to the first."""
    monkeypatch.setenv("GD_RAY_LOGICAL_GPUS", "1")
    import ray
    from ray.cluster_utils import Cluster

    ray.shutdown()
    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    others = [cluster.add_node(**NODE) for _ in range(2)]
    ray.init(address=cluster.address, log_to_driver=False, logging_level="ERROR")
    cluster.wait_for_nodes()
    yield others
    ray.shutdown()
    cluster.shutdown()


def kill(node):
    """As a machine dies: its raylet, and all that this had started."""
    raylet = next(process.process.pid for process in node.all_processes["raylet"])
    parents = {int(path.name): path.joinpath("stat") for path in Path("/proc").iterdir() if path.name.isdigit()}
    children = []
    for pid, stat in parents.items():
        with suppress(OSError):
            if stat.read_text().rsplit(")", 1)[1].split()[1] == str(raylet):
                children.append(pid)
    for pid in (raylet, *children):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def test_trials_share_gpus_and_survive_a_dead_node(nodes, tmp_path, monkeypatch):
    import ray

    assert check_clocks(machines()) == []
    clock = time.time
    monkeypatch.setattr(time, "time", lambda: clock() + 600)
    (note,) = check_clocks(machines())
    monkeypatch.setattr(time, "time", clock)
    assert re.fullmatch(r"clocks differ: that of [\d.]+ is (9|10) minutes behind this machine's; times .* is\.", note)

    specs = [spec for spec in EXPERIMENTS["smoke"].specs() if spec.method.name in METHODS]
    killed = []

    def kill_when_busy(held):
        """In the middle: trials run, also on this node."""
        if not killed and nodes[0].node_id in held and any((tmp_path / "storage" / "checkpoints").glob("*.pt")):
            kill(nodes[0])
            killed.append(nodes[0])

    # Half a GPU a trial, or a scorer: more trials at once would only start more processes on the same cores.
    with watched(ray, kill_when_busy) as seen:
        failures = run("smoke", specs, tmp_path, gpus=0.5, cpus=0.25, retries=0)
    assert failures == []
    assert killed
    deadline = time.monotonic() + 60  # Ray counts a machine as dead after some seconds without an answer
    while sum(node["Alive"] for node in ray.nodes()) > 2 and time.monotonic() < deadline:
        time.sleep(0.5)
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    assert max(len(held) for held in seen) == 3  # all nodes were used
    groups = [on_node for held in seen for on_node in held.values()]
    assert all(total(on_node, "GPU") <= 1 and total(on_node, "CPU") <= 1 for on_node in groups)
    assert max(len(on_node) for on_node in groups) == 2  # trials on one GPU
    found = frame(tmp_path / "results", "stages")
    pd.testing.assert_frame_equal(found, alone(specs, tmp_path / "storage"), check_exact=True)
