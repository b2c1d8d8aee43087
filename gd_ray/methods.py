"""Every method and ablation of the paper as data: adding one of this family is adding a preset.

The fields say what a method does; `gd_ray.learners.distillation` reads them and never asks for a method by name.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

from gd_ray.errors import UserError, unknown_name
from gd_ray.plugins import Registry

Previous = Literal["none", "local", "global"]
Teacher = Literal["none", "distilled", "hard labels"]
Balancing = Literal["none", "data weighting", "balanced set", "weighted fine-tuning"]
FineTuned = Literal["nothing", "head", "network"]
Option = str | int | float | bool

_CHOICES = {
    "previous": Previous,
    "teacher": Teacher,
    "balancing": Balancing,
    "fine_tuned": FineTuned,
}


@dataclass(frozen=True, kw_only=True)
class Method:
    """What one method learns from, and how it balances and samples."""

    name: str
    title: str
    """How tables and figures call it."""
    previous: Previous = "none"
    """How the previous model P is distilled: task by task (Equation 2) or globally (Equation 3)."""
    teacher: Teacher = "none"
    """The current-task teacher C: trained apart and distilled (Equation 4), or its objective learned directly."""
    ensemble: bool = False
    """Distil the ensemble Q of P and C on the external set (Equation 8)."""
    confidence: bool = True
    """Calibrate what learns the current task alone (C and the first model) with the confidence loss (Equation 12)."""
    balancing: Balancing = "none"
    fine_tuned: FineTuned = "nothing"
    fine_tunes_from_copy: bool = False
    """Fine-tuning distils a copy of M just trained over all tasks, in place of P and C."""
    external: bool = False
    """Learn with an external set sampled from the wild stream."""
    previous_sampling: str = "none"
    """How external images are ranked for previous classes: 'prediction' (Algorithm 2) or a name of RANKINGS."""
    ood_sampling: str = "none"
    """How out-of-distribution images are chosen: 'random', 'prediction' (least confident) or a name of RANKINGS."""
    replay_all: bool = False
    """Keep all training data of previous tasks (the oracle)."""
    learner: str = "distillation"
    """What trains a stage: 'distillation' is the paper's family, which the fields above describe."""
    shares_first_model: bool = True
    """Start from the first model that all methods of a seed share; else the learner trains its own at stage 1."""
    options: tuple[tuple[str, Option], ...] = ()
    """Further values for the learner, given as a mapping or as pairs, such as {"threshold": 0.8}."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", tuple(sorted(dict(self.options).items())))
        for field, kind in _CHOICES.items():
            if getattr(self, field) not in get_args(kind):
                raise unknown_name(f"method {self.name!r}: {field}", str(getattr(self, field)), get_args(kind))
        fine_tunes = self.balancing in ("balanced set", "weighted fine-tuning")
        if fine_tunes != (self.fine_tuned != "nothing"):
            raise UserError(
                f"method {self.name!r}: balancing {self.balancing!r} does not go with fine_tuned "
                f"{self.fine_tuned!r}; balanced sets and weighted fine-tuning need a fine-tuned part, the others none."
            )
        if self.ensemble and not self.external:
            raise UserError(
                f"method {self.name!r}: ensemble=True needs external=True; Q is distilled on external data."
            )
        samples = self.previous_sampling != "none" or self.ood_sampling != "none"
        if self.external != samples:
            raise UserError(
                f"method {self.name!r}: external={self.external} does not go with previous_sampling "
                f"{self.previous_sampling!r} and ood_sampling {self.ood_sampling!r}; set all of them or none."
            )

    def option(self, name: str, default: Option) -> Option:
        return dict(self.options).get(name, default)

    @property
    def calibrated_first_model(self) -> bool:
        """Whether M_1 learns with the confidence loss on stream images; methods that agree here share M_1."""
        return self.external and self.confidence


def _external(name: str, title: str, base: Method, **changes: Any) -> Method:
    """Return the same method with the paper's external set: previous classes by prediction, OOD at random."""
    sampling: dict[str, Any] = {"external": True, "previous_sampling": "prediction", "ood_sampling": "random"}
    return replace(base, name=name, title=title, **sampling | changes)


_baseline = Method(name="baseline", title="Baseline")
_oracle = Method(name="oracle", title="Oracle", replay_all=True)
_lwf = Method(name="lwf", title="LwF", previous="local")
_dr = Method(name="dr", title="DR", previous="local", teacher="distilled")
_e2e = Method(
    name="e2e",
    title="E2E",
    previous="local",
    balancing="balanced set",
    fine_tuned="network",
    fine_tunes_from_copy=True,
)
_gd = Method(
    name="gd", title="GD", previous="global", teacher="distilled", balancing="weighted fine-tuning", fine_tuned="head"
)
_gd_ext = _external("gd+ext", "GD+ext", _gd, ensemble=True)

_wa = Method(name="wa", title="WA", learner="wa")
_bic = Method(name="bic", title="BiC", learner="bic")
# These two keep no random coreset, so they cannot start from a shared first stage; DMC's first model is equal to it.
_icarl = Method(name="icarl", title="iCaRL", learner="icarl", shares_first_model=False)
_dmc = Method(
    name="dmc",
    title="DMC",
    learner="dmc",
    confidence=False,
    external=True,
    ood_sampling="random",
    shares_first_model=False,
)
_foster = Method(name="foster", title="FOSTER", learner="foster")
_plcil = Method(name="plcil", title="PLCiL", learner="plcil", confidence=False, external=True, ood_sampling="random")

_presets = (
    _oracle,
    _baseline,
    _lwf,
    _dr,
    _e2e,
    _gd,
    _external("lwf+ext", "LwF+ext", _lwf),
    _external("dr+ext", "DR+ext", _dr),
    _external("e2e+ext", "E2E+ext", _e2e),
    _gd_ext,
    # Table 2: reference models.
    _external("ref-p", "P", _gd, teacher="none"),
    _external("ref-pc", "P+C", _gd),
    _external("ref-q", "Q", _gd_ext, previous="none", teacher="none"),
    # Table 3: the teacher. Row 1 is ref-p and row 5 is ref-pc.
    _external("teacher-cls", "P+cls", _gd, teacher="hard labels", confidence=False),
    _external("teacher-cls-cnf", "P+cls+cnf", _gd, teacher="hard labels"),
    _external("teacher-dst", "P+dst", _gd, confidence=False),
    # Table 4: balancing. Row 4 is gd+ext.
    _external("balance-none", "no balancing", _gd_ext, balancing="none", fine_tuned="nothing"),
    _external("balance-dw", "DW", _gd_ext, balancing="data weighting", fine_tuned="nothing"),
    _external("balance-dset", "FT-DSet", _gd_ext, balancing="balanced set", fine_tuned="network"),
    # Table 5: sampling. Row 1 is gd and row 5 is gd+ext.
    _external("sample-ood", "OOD random", _gd_ext, previous_sampling="none"),
    _external("sample-prev", "Prev by prediction", _gd_ext, ood_sampling="none"),
    _external("sample-ood-pred", "Prev and OOD by prediction", _gd_ext, ood_sampling="prediction"),
    # Beyond the paper: its sampling with other rankings, and other methods on its protocol.
    _external("sample-nearest", "Prev by nearest mean", _gd_ext, previous_sampling="nearest-mean"),
    _external("sample-nearest-far", "Prev far from new classes", _gd_ext, previous_sampling="nearest-mean-far"),
    _wa,
    _external("wa+ext", "WA+ext", _wa),
    _bic,
    _external("bic+ext", "BiC+ext", _bic),
    _icarl,
    _external("icarl+ext", "iCaRL+ext", _icarl, confidence=False),
    _dmc,
    replace(_dmc, name="dmc+coreset", title="DMC+coreset", shares_first_model=True, options=(("coreset", True),)),
    _foster,
    _external("foster+ext", "FOSTER+ext", _foster),
    _plcil,
)

METHODS: Registry[Method] = Registry("method")


def register_method(method: Method) -> Method:
    METHODS[method.name] = method
    return method


for _method in _presets:
    register_method(_method)

STAGE_BY_HAND = frozenset(
    [
        *("baseline", "lwf", "lwf+ext", "dr", "e2e", "e2e+ext", "gd", "gd+ext", "balance-dw", "balance-dset"),
        *("wa", "wa+ext", "bic", "bic+ext", "icarl", "icarl+ext", "dmc", "dmc+coreset"),
        *("foster", "foster+ext", "plcil"),
    ]
)
"""Methods of which tests/test_stage_by_hand.py computes the weights of a whole stage a second time."""


def second_implementation(name: str) -> str:
    """Return what of a method agrees with a second implementation in the tests, written from its paper."""
    if name in STAGE_BY_HAND:
        return "a whole stage"
    return "its formulas" if name in METHODS and name not in METHODS.origins else "not yet"
