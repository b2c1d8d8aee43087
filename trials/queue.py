"""The order in which the jobs of an experiment run, as a searcher of Ray Tune, which asks it for the next job.

A first model that several trials share is a job of its own, and a trial starts as soon as its own first model is there,
the longest trial first. A job that another run holds goes to the back, so that runs of one experiment share its trials
instead of waiting for each other.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.search import Searcher

from trials.worker import Job, saved_files

WAIT_S = 120.0
"""Time to wait for a job that another run holds when nothing else is to do; enough to see that its process died."""


@dataclass(frozen=True)
class Entry:
    """A job in the queue: a trial, or only the first model that it shares."""

    job: Job
    first_stage: bool = False
    needs_model: bool = False
    """It waits for its first model, which another job trains."""

    @property
    def name(self) -> str:
        """Name of its log folder, unique in a run."""
        return f"first-model-{self.job.spec.first_model_id}" if self.first_stage else self.job.spec.trial_id


def entries_of(jobs: Sequence[Job]) -> list[Entry]:
    """Return the first models that several jobs wait for, then all jobs; a trial with a model of its own trains it."""
    saved = saved_files(jobs[0].storage) if jobs else set()
    waiting = [job for job in jobs if not job.saved(saved.__contains__)]
    number = Counter(job.spec.first_model_id for job in waiting)
    shared = {job.spec.first_model_id: job for job in waiting if number[job.spec.first_model_id] > 1}
    needing = {job.spec.trial_id for job in waiting if job.spec.first_model_id in shared}
    first_models = [Entry(job, first_stage=True) for job in shared.values()]
    return [*first_models, *(Entry(job, needs_model=job.spec.trial_id in needing) for job in jobs)]


class JobQueue(Searcher):
    """Gives Tune the config of the next job: the flat spec of its trial, its name, and how to run it."""

    def __init__(self, entries: Sequence[Entry], take_lost: Callable[[], set[str]] = set) -> None:
        """The entries in the order to run them in. `take_lost` names jobs that ended with their machine, each once."""
        super().__init__()
        self.waiting = list(entries)
        self.entries = {entry.name: entry for entry in entries}
        self.untrained = {entry.job.spec.first_model_id for entry in entries if entry.first_stage}
        self.take_lost = take_lost
        self.held: list[Entry] = []
        self.running: dict[str, Entry] = {}

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:  # type: ignore[override]
        """Return the config of the next job, None while no job can start, or that there will be none."""
        for name in self.take_lost():
            self._put_back(self.entries[name])
        entry, wait_s = next(filter(self._can_start, self.waiting), None), 0.0
        if entry:
            self.waiting.remove(entry)
        elif self.held and not any(other.first_stage for other in self.running.values()):
            entry, wait_s = self.held.pop(0), WAIT_S
        if entry:
            self.running[trial_id] = entry
            own = {"job": entry.name, "first_stage": entry.first_stage, "wait_s": wait_s}
            return {"trial_id": entry.job.spec.trial_id, **entry.job.spec.flat(), **own}
        return None if self.running or self.waiting else Searcher.FINISHED

    def _can_start(self, entry: Entry) -> bool:
        return not (entry.needs_model and entry.job.spec.first_model_id in self.untrained)

    def _put_back(self, entry: Entry) -> None:
        self.waiting.insert(0, entry)
        if entry.first_stage:
            self.untrained.add(entry.job.spec.first_model_id)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:  # noqa: ARG002
        """Note that a job has ended. Trials whose first model failed train it themselves."""
        entry = self.running.pop(trial_id)
        if result and "held" in result:
            self.held.append(entry)
        elif entry.first_stage:
            self.untrained.discard(entry.job.spec.first_model_id)

    def drop(self, first_model_id: str) -> list[Job]:
        """Remove and return the trials that wait for a first model which cannot be trained."""
        kept, dropped = list[Entry](), list[Entry]()
        for entry in self.waiting:
            hopeless = entry.needs_model and entry.job.spec.first_model_id == first_model_id
            (dropped if hopeless else kept).append(entry)
        self.waiting = kept
        return [entry.job for entry in dropped]

    def ranks(self) -> dict[str, int]:
        """Return the places of first models among first models, and of trials among trials."""
        kinds = ([name for name, entry in self.entries.items() if entry.first_stage is kind] for kind in (True, False))
        return {name: rank for names in kinds for rank, name in enumerate(names)}

    def left(self) -> list[Entry]:
        """Return the trials that have not ended."""
        return [entry for entry in (*self.running.values(), *self.waiting, *self.held) if not entry.first_stage]

    def save(self, checkpoint_path: str) -> None:
        """Save nothing: a run resumes from its results and checkpoints."""
