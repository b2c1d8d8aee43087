"""When a failed trial is given up: after too many failures of one stage, not counting outages."""

import pickle
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray import tune

from gd_ray.failures import is_outage, last_line
from gd_ray.ray_utils import machines
from trials.interruption import RESUME, RayDiedError

_OUTAGES = 10
"""Times that a trial may lose its machine or storage in one stage: it may be the trial that ends them."""
_LOOK_S = 10.0
_NO_MACHINE_S = 600.0
"""Time that a cluster has to replace its last machine."""

OnFailure = Callable[[Any, str], None]
"""Takes a trial of Tune and the line that says why it was given up."""


class Attempts(tune.Callback):
    """Raises the limit that Tune compares the failures of a trial with, at each stage and for each outage.

    Tune ends a trial that has one before it runs, or at its last attempt: `take_lost` names those.
    """

    def __init__(self, retries: int, resource: str, on_failure: OnFailure) -> None:
        self.retries, self.resource, self.on_failure = retries, resource, on_failure
        self.stages: Counter[str] = Counter()
        self.outages: Counter[str] = Counter()
        self.lost: set[str] = set()
        self.looked = self.seen = time.monotonic()

    def take_lost(self) -> set[str]:
        """Return the trials that ended only because they lost their machine, once."""
        lost, self.lost = self.lost, set()
        return lost

    def on_trial_result(self, iteration: int, trials: Any, trial: Any, result: Any, **info: Any) -> None:  # noqa: ARG002
        name, stage = trial.config["job"], result.get("stage", 0)
        if stage > self.stages[name]:
            self.stages[name], self.outages[name] = stage, 0
            trial.max_failures = trial.num_failures + self.retries

    def on_trial_recover(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        if self._had_outage(trial):
            trial.max_failures += 1

    def on_trial_error(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        if self._had_outage(trial):
            self.lost.add(trial.config["job"])
        else:
            with suppress(OSError):  # a full disk has no log
                self.on_failure(trial, last_line(Path(trial.error_file).read_text()))

    def on_trial_complete(self, iteration: int, trials: Any, trial: Any, **info: Any) -> None:  # noqa: ARG002
        if "refused" in trial.last_result:
            self.on_failure(trial, trial.last_result["refused"])
        _forget(trial)

    def on_step_begin(self, iteration: int, trials: Any, **info: Any) -> None:  # noqa: ARG002
        """End the run when no machine is left, for which Tune would wait for ever."""
        now = time.monotonic()
        if now - self.looked < _LOOK_S:
            return
        self.looked = now
        if any(machine.get(self.resource) for machine in machines()):
            self.seen = now
        elif now - self.seen > _NO_MACHINE_S:
            raise RayDiedError(
                f"the cluster has had no machine with a {self.resource} for {_NO_MACHINE_S / 60:.0f} minutes; add one, "
                f"then {RESUME}."
            )

    def _had_outage(self, trial: Any) -> bool:
        """Return whether the trial failed because its machine or storage was lost, and may lose more."""
        try:
            error = pickle.loads(Path(trial.pickled_error_file).read_bytes())
        except Exception:  # none was written, or its class is not known here
            return False
        if not is_outage(error):
            return False
        self.outages[trial.config["job"]] += 1
        return self.outages[trial.config["job"]] <= _OUTAGES


def _forget(trial: Any) -> None:
    """Free the metrics and config of a finished trial, which Tune would keep in memory until the run ends."""
    trial.metric_analysis.clear()
    trial.metric_n_steps.clear()
    trial.last_result.pop("config", None)
