"""Class-incremental learning with unlabeled data in the wild: one trial, in one process, given data.

>>> from gd_ray import METHODS, TrialSpec, run_trial
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gd_ray.learner import Learner as Learner
    from gd_ray.learners import LEARNERS as LEARNERS
    from gd_ray.methods import METHODS as METHODS
    from gd_ray.methods import Method as Method
    from gd_ray.methods import register_method as register_method
    from gd_ray.networks.classifier import expand_head as expand_head
    from gd_ray.spec import TrialSpec as TrialSpec
    from gd_ray.trial import run_trial as run_trial
    from gd_ray.wild.sampling import RANKINGS as RANKINGS
    from gd_ray.wild.sampling import Ranking as Ranking

_HOMES = {
    "LEARNERS": "gd_ray.learners",
    "Learner": "gd_ray.learner",
    "METHODS": "gd_ray.methods",
    "Method": "gd_ray.methods",
    "RANKINGS": "gd_ray.wild.sampling",
    "Ranking": "gd_ray.wild.sampling",
    "TrialSpec": "gd_ray.spec",
    "expand_head": "gd_ray.networks.classifier",
    "register_method": "gd_ray.methods",
    "run_trial": "gd_ray.trial",
}
"""What programs and plugins use, and where it is."""


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: a spec needs no torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("gd_ray")
    if name not in _HOMES:
        raise AttributeError(f"module 'gd_ray' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
