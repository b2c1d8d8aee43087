"""Scores a window of the stream with a pool of Ray Data actors; the answer is that of `score_in_process`.

The pipeline runs over a list of units (row groups), not over images: each scorer reads its own row groups, so images
never enter the object store, and only candidates leave a scorer.
"""

import copy
import os
import pickle
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from gd_ray.errors import UserError
from gd_ray.failures import ExplainedError, explain, innermost, is_users
from gd_ray.malloc import keep_freed_memory
from gd_ray.plugins import Plugin, load_plugins, loaded_plugins
from gd_ray.ray_utils import exit_without_destructors, switches
from gd_ray.temporary import temporary_folder
from gd_ray.wild.sampling import Candidates, merge_candidates
from gd_ray.wild.scorer_processes import ScorerProcesses
from gd_ray.wild.scoring import Scorer, ScoringJob


@dataclass(frozen=True, kw_only=True)
class ScorerPool:
    """How many scorers work for a trial, and the resources of each."""

    scorers: int = 1
    cpus: float = 1.0
    trial_gpus: float = 0.0
    """Share of the GPU that a trial and its scorers use."""
    units: int = 2
    """Row groups given to a scorer at a time."""
    restarts: int = 3
    """Scorers of a stage that may die on a machine and be replaced; Ray Data itself would replace them for ever."""


def ray_scorer(pool: ScorerPool) -> Scorer:
    """Return a scorer that spreads a window over a pool of actors, on what the calling trial has reserved if any."""

    def score(job: ScoringJob, on_images: Callable[[int], None]) -> Candidates:
        import ray
        import ray.data

        from gd_ray.ray_utils import actor_options, start_ray

        start_ray()
        # Shipped once per stage; pickled by us, so that loading it waits for the scorer's plugins and import of torch.
        job_on_cpu = replace(job, model=copy.deepcopy(job.model).cpu())
        shipped = ray.put(ray.cloudpickle.dumps(job_on_cpu))  # type: ignore[no-untyped-call]
        units = job.units()
        rows = [{"unit": pickle.dumps(units[k : k + pool.units])} for k in range(0, len(units), pool.units)]
        device = job.model.device.type
        parts: list[Candidates] = []
        with temporary_folder("scorers") as folder:
            dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
                _Scorer,
                fn_constructor_args=(
                    shipped,
                    loaded_plugins(),
                    pool,
                    ScorerProcesses(folder),
                    variables_for(device),
                    device,
                ),
                batch_size=1,
                compute=ray.data.ActorPoolStrategy(size=min(pool.scorers, len(rows))),
                **actor_options(pool.cpus, own_machine=device != "cpu"),
            )
            for row in dataset.iter_rows():
                if row["error"]:
                    raise (UserError if row["users"] else ExplainedError)(row["error"])
                parts.append(pickle.loads(row["candidates"]))
                on_images(row["images"])
                if len(parts) > 8:  # keep memory flat however long the window is
                    parts = [reduce(merge_candidates, parts)]
        return reduce(merge_candidates, parts)

    return score


def variables_for(device: str) -> dict[str, str]:
    """Return the variables that a scorer takes over from its trial, with the GPU that this was granted."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    return switches() | ({"CUDA_VISIBLE_DEVICES": visible} if device != "cpu" and visible is not None else {})


class _Scorer:
    """An actor that holds the previous model and turns units into candidates.

    An error becomes a row, because Ray Data hides the original exception, and starts an actor that fails anew.
    """

    def __init__(
        self,
        shipped: Any,
        plugins: tuple[Plugin, ...],
        pool: ScorerPool,
        processes: ScorerProcesses,
        variables: dict[str, str],
        device: str,
    ) -> None:
        exit_without_destructors()
        os.environ.update(variables)
        self.pool, self.failure = pool, dict[str, list[Any]]()
        try:
            processes.add_this_process()
            dead = processes.dead()
            if len(dead) > pool.restarts:  # one more would die as well
                self.failure = {"error": [processes.explain(dead)]}
            else:
                self.job = self._load(shipped, plugins, device)
        except Exception as error:
            self.failure = self._explained(error)

    def _load(self, shipped: Any, plugins: tuple[Plugin, ...], device: str) -> ScoringJob:
        import ray
        import torch

        keep_freed_memory()
        load_plugins(*plugins)
        torch.set_num_threads(max(1, int(self.pool.cpus)))
        job: ScoringJob = pickle.loads(ray.get(shipped))
        return replace(job, model=job.model.to(device))

    def _explained(self, error: Exception) -> dict[str, list[Any]]:
        from gd_ray.evaluation import BATCH

        text = explain(error, gpus=self.pool.trial_gpus, batch=f"{BATCH} images of the stream in a scorer")
        return {"error": [text], "users": [is_users(innermost(error))]}

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        """Score the units of a row."""
        result: dict[str, list[Any]] = {"candidates": [b""], "images": [0], "error": [""], "users": [False]}
        if self.failure:
            return result | self.failure
        try:
            units = [unit for packed in rows["unit"] for unit in pickle.loads(packed)]
            merged = reduce(merge_candidates, self.job.score_units(units))
        except Exception as error:
            return result | self._explained(error)
        return result | {"candidates": [pickle.dumps(merged)], "images": [sum(map(len, units))]}
