"""Learners by name: what trains the model of a stage. They are imported when a trial needs one."""

from collections.abc import Callable
from typing import TYPE_CHECKING

from gd_ray.plugins import Registry, imported

if TYPE_CHECKING:
    from gd_ray.learner import Learner
    from gd_ray.spec import TrialSpec

LEARNERS: Registry[Callable[["TrialSpec"], "Learner"]] = Registry("learner")

LEARNERS["distillation"] = imported("gd_ray.learners.distillation", "Distillation")
LEARNERS["wa"] = imported("gd_ray.learners.wa", "WeightAligning")
LEARNERS["bic"] = imported("gd_ray.learners.bic", "BiasCorrection")
LEARNERS["icarl"] = imported("gd_ray.learners.icarl", "ICaRL")
LEARNERS["dmc"] = imported("gd_ray.learners.dmc", "Consolidation")
LEARNERS["foster"] = imported("gd_ray.learners.foster", "Foster")
LEARNERS["plcil"] = imported("gd_ray.learners.plcil", "PseudoLabeling")
