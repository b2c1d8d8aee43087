"""Scores a window of the stream with a pool of Ray Data actors; the answer is that of `score_in_process`.

The pipeline runs over a list of units (row groups), not over images: each scorer reads its own row groups, so images
never enter the object store, and only candidates leave a scorer.
"""

import copy
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from functools import reduce
from typing import Any

from gd_ray.allocator import keep_freed_memory
from gd_ray.data.pixels import Statistics
from gd_ray.errors import UserError
from gd_ray.network import WideResNet
from gd_ray.wild.sampling import Candidates, SamplingPlan, merge_candidates
from gd_ray.wild.scoring import Scorer, unit_candidates
from gd_ray.wild.stream import Stream, Window


@dataclass(frozen=True, kw_only=True)
class ScorerPool:
    """How many scorers work for a trial, and what each of them holds."""

    scorers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    units: int = 2
    """Row groups given to a scorer at a time."""

    def bundles(self) -> list[dict[str, float]]:
        """What a trial's placement group must hold for the pool, besides the trial itself."""
        return [{"CPU": self.cpus, **({"GPU": self.gpus} if self.gpus else {})} for _ in range(self.scorers)]


def ray_scorer(pool: ScorerPool) -> Scorer:
    """A scorer that spreads a window over a pool of actors, inside the caller's placement group if it has one."""

    def score(
        previous: WideResNet,
        statistics: Statistics,
        stream: Stream,
        window: Window,
        plan: SamplingPlan,
        on_images: Callable[[int], None],
    ) -> Candidates:
        import ray
        import ray.data

        from gd_ray.wild.on_ray import bind_to_trial, start_ray

        start_ray()
        bind_to_trial()
        # Shipped once per stage; pickled by us, so that loading it waits for the scorer's own import of torch.
        work = ray.put((pickle.dumps(copy.deepcopy(previous).cpu()), statistics, stream, plan))
        units = stream.units(window, plan.skipped)
        rows = [{"unit": pickle.dumps(units[k : k + pool.units])} for k in range(0, len(units), pool.units)]
        found: list[Candidates] = []
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Scorer,
            fn_constructor_args=(work, pool),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(pool.scorers, len(rows))),
            num_cpus=pool.cpus,
            num_gpus=pool.gpus or None,
        )
        for row in dataset.iter_rows():
            if row["error"]:
                raise UserError(row["error"])
            found.append(pickle.loads(row["candidates"]))
            on_images(row["images"])
            if len(found) > 8:  # keep memory flat however long the window is
                found = [reduce(merge_candidates, found)]
        return reduce(merge_candidates, found)

    return score


class _Scorer:
    """One actor: holds the previous model once and turns units into candidates."""

    def __init__(self, work: Any, pool: ScorerPool) -> None:
        import ray
        import torch

        keep_freed_memory()
        torch.set_num_threads(max(1, int(pool.cpus)))
        weights, self.statistics, self.stream, self.plan = ray.get(work)
        device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
        self.previous: WideResNet = pickle.loads(weights).to(device)

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        """What is wrong with the stream is told as a row: Ray Data says of an exception only that there was one."""
        try:
            return {**self._found(rows), "error": [""]}
        except UserError as error:
            return {"candidates": [b""], "images": [0], "error": [str(error)]}

    def _found(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        units = [unit for packed in rows["unit"] for unit in pickle.loads(packed)]
        found = reduce(
            merge_candidates,
            (unit_candidates(self.previous, self.statistics, self.stream, self.plan, u) for u in units),
        )
        return {"candidates": [pickle.dumps(found)], "images": [sum(len(unit) for unit in units)]}
