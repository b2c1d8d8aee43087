"""Ray as this project uses it: quiet, and inside the resources of the trial that calls it."""

import logging
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import Any

_WAITING = 3

Mapper = Callable[[Callable[[Any], Any], list[Any]], Iterator[Any]]
"""Applies a function to items, in this process or in others; the results may come in any order."""

OnProgress = Callable[[str, int, int], None]
"""Told the step, and how many of its parts are done of how many."""


def counted(step: str, results: Iterable[Any], total: int, on_progress: OnProgress) -> Iterator[Any]:
    """The results as they come, each of them told."""
    on_progress(step, 0, total)
    for done, result in enumerate(results, start=1):
        yield result
        on_progress(step, done, total)


def start_ray(**options: Any) -> None:
    """Starts a local Ray, unless the process is connected to one already."""
    import ray

    if not ray.is_initialized():
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR, **options)


def bind_to_trial() -> None:
    """Keeps Ray Data's actors inside the current placement group.

    Data spreads its actors over the cluster by default; inside a Tune trial they would then wait for ever for CPUs
    that other trials hold.
    """
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)
    group = ray.util.get_current_placement_group()
    if group is not None:
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)
        context.scheduling_strategy = context.scheduling_strategy_large_args = strategy


def map_in_process(function: Callable[[Any], Any], items: list[Any]) -> Iterator[Any]:
    """One after another, here."""
    return map(function, items)


def map_with_ray(function: Callable[[Any], Any], items: list[Any]) -> Iterator[Any]:
    """In parallel on all CPUs of the cluster, as Ray tasks; a few wait for each CPU, the rest stay here.

    Nothing flows from one task to another, so Ray Data would add nothing here but half a second to each call.
    """
    import ray

    start_ray()
    cpus = int(ray.cluster_resources()["CPU"])  # type: ignore[no-untyped-call]
    shared, left = ray.put(function), iter(items)
    task = ray.remote(num_cpus=1)(_applied)
    running = {task.remote(shared, item) for item in islice(left, _WAITING * cpus)}
    try:
        while running:
            (done,), _ = ray.wait(list(running), num_returns=1)
            running.remove(done)
            running |= {task.remote(shared, item) for item in islice(left, 1)}
            yield ray.get(done)
    finally:
        for stopped in running:
            ray.cancel(stopped, force=True)


def _applied(function: Callable[[Any], Any], item: Any) -> Any:
    return function(item)
