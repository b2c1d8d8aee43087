"""Every method and ablation of the paper as data: adding one of this family is adding a preset.

The fields say what a method does; `gd_ray.stage` reads them and never asks for a method by name.
"""

from dataclasses import dataclass
from typing import Literal, get_args

from gd_ray.errors import UserError, unknown_name

Previous = Literal["none", "local", "global"]
Teacher = Literal["none", "distilled", "hard labels"]
Balancing = Literal["none", "data weighting", "balanced set", "weighted fine-tuning"]
FineTuned = Literal["nothing", "head", "network"]
PreviousSampling = Literal["none", "prediction"]
OodSampling = Literal["none", "random", "prediction"]

_CHOICES = {
    "previous": Previous,
    "teacher": Teacher,
    "balancing": Balancing,
    "fine_tuned": FineTuned,
    "previous_sampling": PreviousSampling,
    "ood_sampling": OodSampling,
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
    previous_sampling: PreviousSampling = "none"
    ood_sampling: OodSampling = "none"
    replay_all: bool = False
    """Keep all training data of previous tasks (the oracle)."""

    def __post_init__(self) -> None:
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

    @property
    def calibrated_first_model(self) -> bool:
        """Whether M_1 learns with the confidence loss on stream images; methods that agree here share M_1."""
        return self.external and self.confidence


def _external(name: str, title: str, base: Method, **changes: object) -> Method:
    """The same method with the paper's external set: previous classes by prediction, OOD at random."""
    fields = {field: getattr(base, field) for field in base.__dataclass_fields__}
    sampling = {"external": True, "previous_sampling": "prediction", "ood_sampling": "random"}
    return Method(**{**fields, **sampling, **changes, "name": name, "title": title})


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
)

METHODS: dict[str, Method] = {method.name: method for method in _presets}

TABLES: dict[int, tuple[str, ...]] = {
    1: ("oracle", "baseline", "lwf", "dr", "e2e", "gd", "lwf+ext", "dr+ext", "e2e+ext", "gd+ext"),
    2: ("ref-p", "ref-pc", "ref-q", "gd+ext"),
    3: ("ref-p", "teacher-cls", "teacher-cls-cnf", "teacher-dst", "ref-pc"),
    4: ("balance-none", "balance-dw", "balance-dset", "gd+ext"),
    5: ("gd", "sample-ood", "sample-prev", "sample-ood-pred", "gd+ext"),
}
"""The rows of each table of the paper, in its order."""
PAPERS_METHODS = frozenset(method for rows in TABLES.values() for method in rows)
"""Any other method is a user's own, a preset or not."""


def method_named(name: str) -> Method:
    """The preset of that name, or a sentence with the nearest one."""
    if name not in METHODS:
        raise unknown_name("method", name, METHODS)
    return METHODS[name]
