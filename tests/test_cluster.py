"""A cluster of three nodes with declared GPUs: placement, a node that dies, and the same results as in one process."""

import os
import signal
import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pandas as pd
import pytest
from test_runner import alone, frame, run

from trials.experiments import EXPERIMENTS

NODE = {"num_cpus": 2, "num_gpus": 1, "object_store_memory": 100 << 20}


@pytest.fixture
def nodes():
    """Three nodes; the driver is connected to the first."""
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


def held(ray):
    """What placement groups hold of each node, as Ray tells it."""
    totals: dict[str, Counter] = {}
    for group in ray.util.placement_group_table().values():
        if group["state"] == "CREATED":
            for bundle, node in group["bundles_to_node_id"].items():
                totals.setdefault(node, Counter()).update(group["bundles"][bundle])
    return totals


def test_all_rows_of_table_1_share_gpus_and_survive_a_dead_node(nodes, tmp_path):
    import ray

    specs = EXPERIMENTS["smoke"].specs()
    seen, killed = [], threading.Event()
    over = threading.Event()

    def watch():
        while not over.wait(0.5):
            now = held(ray)
            if now:
                seen.append(now)
            busy = nodes[0].node_id in now and any((tmp_path / "storage" / "checkpoints").glob("*.pt"))
            if busy and not killed.is_set():  # in the middle: trials run, also on this node
                kill(nodes[0])
                killed.set()

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        failures = run("smoke", specs, tmp_path, gpus=0.25, cpus=0.5, retries=3)
    finally:
        over.set()
        watcher.join()
    assert failures == []
    assert killed.is_set()
    assert sum(node["Alive"] for node in ray.nodes()) == 2
    assert max(len(now) for now in seen) == 3  # all nodes were used
    for now in seen:
        for resources in now.values():
            assert resources["GPU"] <= 1
            assert resources["CPU"] <= 2
    assert max(resources["GPU"] for now in seen for resources in now.values()) > 0.5  # several trials on a GPU
    found = frame(tmp_path / "results", "stages").drop(columns="experiment")
    pd.testing.assert_frame_equal(found, alone(specs, tmp_path / "storage"), check_exact=True)
