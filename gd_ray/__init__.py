"""Class-incremental learning with unlabeled data in the wild: one trial, in one process, given data.

>>> from gd_ray import METHODS, TrialSpec, run_trial
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gd_ray.methods import METHODS, Method
    from gd_ray.spec import TrialSpec
    from gd_ray.trial import run_trial

__all__ = ["METHODS", "Method", "TrialSpec", "__version__", "run_trial"]

_HOMES = {
    "METHODS": "gd_ray.methods",
    "Method": "gd_ray.methods",
    "TrialSpec": "gd_ray.spec",
    "run_trial": "gd_ray.trial",
}


def __getattr__(name: str) -> Any:
    """Import public names when they are first used: a spec needs no torch."""
    if name == "__version__":
        from importlib.metadata import version

        return version("gd_ray")
    if name not in _HOMES:
        raise AttributeError(f"module 'gd_ray' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
