"""What placement groups hold of each node while something runs, as Ray tells it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

Bundle = dict[str, float]
Held = dict[str, dict[str, list[Bundle]]]
"""The bundles on each node, by group; a group is a trial."""


def _held(ray) -> Held:
    found: Held = {}
    for name, group in ray.util.placement_group_table().items():
        if group["state"] == "CREATED":
            for bundle, node in group["bundles_to_node_id"].items():
                found.setdefault(node, {}).setdefault(name, []).append(group["bundles"][bundle])
    return found


def total(groups: dict[str, list[Bundle]], resource: str) -> float:
    return sum(bundle.get(resource, 0) for bundles in groups.values() for bundle in bundles)


@contextmanager
def watched(ray, on_look=lambda held: None) -> Iterator[list[Held]]:
    """Looks twice a second until the block ends; fills the list that it gives."""
    seen: list[Held] = []
    over = threading.Event()

    def watch():
        while not over.wait(0.5):
            if held := _held(ray):
                seen.append(held)
                on_look(held)

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        yield seen
    finally:
        over.set()
        watcher.join()
