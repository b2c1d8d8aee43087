"""Learners by name: what trains the model of a stage. They are imported when a trial needs one."""

from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING

from gd_ray.plugins import Registry

if TYPE_CHECKING:
    from gd_ray.learner import Learner
    from gd_ray.spec import TrialSpec

LEARNERS: Registry[Callable[["TrialSpec"], "Learner"]] = Registry("learner")


def _register(name: str, class_name: str) -> None:
    """Register a class of the module of that name; it needs torch, so it is not imported yet."""

    @LEARNERS.register(name)
    def build(spec: "TrialSpec") -> "Learner":
        learner: Learner = getattr(import_module(f"gd_ray.learners.{name}"), class_name)(spec)
        return learner


_register("distillation", "Distillation")
_register("wa", "WeightAligning")
_register("bic", "BiasCorrection")
_register("icarl", "ICaRL")
_register("dmc", "Consolidation")
