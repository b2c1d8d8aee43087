"""Scores a window of the stream with a pool of Ray Data actors; the answer is that of `score_in_process`.

The pipeline runs over a list of units (row groups), not over images: each scorer reads its own row groups, so images
never enter the object store, and only candidates leave a scorer.
"""

import copy
import pickle
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path
from typing import Any
from uuid import uuid4

from gd_ray.errors import UserError
from gd_ray.malloc import keep_freed_memory
from gd_ray.plugins import Plugin, load_plugins, loaded_plugins
from gd_ray.wild.sampling import Candidates, merge_candidates
from gd_ray.wild.scoring import Scorer, ScoringJob


@dataclass(frozen=True, kw_only=True)
class ScorerPool:
    """How many scorers work for a trial, and the resources of each."""

    scorers: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    units: int = 2
    """Row groups given to a scorer at a time."""
    restarts: int = 3
    """Scorers of a stage that may die on a machine and be replaced; Ray Data itself would replace them for ever."""


def ray_scorer(pool: ScorerPool) -> Scorer:
    """Return a scorer that spreads a window over a pool of actors, inside the caller's placement group if any."""

    def score(job: ScoringJob, on_images: Callable[[int], None]) -> Candidates:
        import ray
        import ray.data

        from gd_ray.ray_utils import bind_to_trial, start_ray

        start_ray()
        bind_to_trial()
        # Shipped once per stage; pickled by us, so that loading it waits for the scorer's plugins and import of torch.
        job_on_cpu = replace(job, model=copy.deepcopy(job.model).cpu())
        shipped = ray.put(ray.cloudpickle.dumps(job_on_cpu))  # type: ignore[no-untyped-call]
        units = job.units()
        rows = [{"unit": pickle.dumps(units[k : k + pool.units])} for k in range(0, len(units), pool.units)]
        starts = Path(tempfile.gettempdir(), f"gd-ray-scorers-{uuid4().hex}")
        parts: list[Candidates] = []
        dataset = ray.data.from_items(rows, override_num_blocks=len(rows)).map_batches(
            _Scorer,
            fn_constructor_args=(shipped, loaded_plugins(), pool, starts),
            batch_size=1,
            compute=ray.data.ActorPoolStrategy(size=min(pool.scorers, len(rows))),
            num_cpus=pool.cpus,
            num_gpus=pool.gpus or None,
        )
        try:
            for row in dataset.iter_rows():
                if row["died"]:
                    raise RuntimeError(
                        f"{row['died']} scorers of the stream died, killed or out of memory perhaps; Ray's logs say why"
                    )
                if row["error"]:
                    raise UserError(row["error"])
                parts.append(pickle.loads(row["candidates"]))
                on_images(row["images"])
                if len(parts) > 8:  # keep memory flat however long the window is
                    parts = [reduce(merge_candidates, parts)]
            return reduce(merge_candidates, parts)
        finally:
            starts.unlink(missing_ok=True)

    return score


def _count_start(starts: Path) -> int:
    """Add a byte to the file that counts the scorers which a stage started on this machine; return their number."""
    with starts.open("ab") as file:
        file.write(b".")
    return starts.stat().st_size


class _Scorer:
    """An actor that holds the previous model and turns units into candidates."""

    def __init__(self, shipped: Any, plugins: tuple[Plugin, ...], pool: ScorerPool, starts: Path) -> None:
        import ray
        import torch

        died = _count_start(starts) - pool.scorers
        self.died = died if died > pool.restarts else 0
        if self.died:  # one more would die as well
            return
        keep_freed_memory()
        load_plugins(*plugins)
        torch.set_num_threads(max(1, int(pool.cpus)))
        job: ScoringJob = pickle.loads(ray.get(shipped))
        device = "cuda" if ray.get_gpu_ids() and torch.cuda.is_available() else "cpu"
        self.job = replace(job, model=job.model.to(device))

    def __call__(self, rows: dict[str, Any]) -> dict[str, list[Any]]:
        """Score the units of a row. Return user errors as a row, because Ray Data hides the original exception."""
        result: dict[str, list[Any]] = {"candidates": [b""], "images": [0], "error": [""], "died": [self.died]}
        if self.died:
            return result
        try:
            units = [unit for packed in rows["unit"] for unit in pickle.loads(packed)]
            found = reduce(merge_candidates, map(self.job.score_unit, units))
        except UserError as error:
            return result | {"error": [str(error)]}
        return result | {"candidates": [pickle.dumps(found)], "images": [sum(map(len, units))]}
