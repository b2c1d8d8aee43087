"""The presets, written out a second time from the paper's tables and section 2.3."""

from dataclasses import replace

import pytest

from gd_ray.methods import METHODS
from gd_ray.paper import TABLES

DATASET = ("balanced set", "network")
WEIGHTED = ("weighted fine-tuning", "head")
NOTHING = ("none", "none")
PAPERS = ("prediction", "random")
"""Sampling of previous classes, and of out-of-distribution images."""

# P, C, Q, confidence loss, balancing, what is fine-tuned, sampling of external data.
BY_HAND = {
    "oracle": ("none", "none", False, True, "none", "nothing", *NOTHING),
    "baseline": ("none", "none", False, True, "none", "nothing", *NOTHING),
    "lwf": ("local", "none", False, True, "none", "nothing", *NOTHING),
    "dr": ("local", "distilled", False, True, "none", "nothing", *NOTHING),
    "e2e": ("local", "none", False, True, *DATASET, *NOTHING),
    "gd": ("global", "distilled", False, True, *WEIGHTED, *NOTHING),
    "lwf+ext": ("local", "none", False, True, "none", "nothing", *PAPERS),
    "dr+ext": ("local", "distilled", False, True, "none", "nothing", *PAPERS),
    "e2e+ext": ("local", "none", False, True, *DATASET, *PAPERS),
    "gd+ext": ("global", "distilled", True, True, *WEIGHTED, *PAPERS),
    "ref-p": ("global", "none", False, True, *WEIGHTED, *PAPERS),
    "ref-pc": ("global", "distilled", False, True, *WEIGHTED, *PAPERS),
    "ref-q": ("none", "none", True, True, *WEIGHTED, *PAPERS),
    "teacher-cls": ("global", "hard labels", False, False, *WEIGHTED, *PAPERS),
    "teacher-cls-cnf": ("global", "hard labels", False, True, *WEIGHTED, *PAPERS),
    "teacher-dst": ("global", "distilled", False, False, *WEIGHTED, *PAPERS),
    "balance-none": ("global", "distilled", True, True, "none", "nothing", *PAPERS),
    "balance-dw": ("global", "distilled", True, True, "data weighting", "nothing", *PAPERS),
    "balance-dset": ("global", "distilled", True, True, *DATASET, *PAPERS),
    "sample-ood": ("global", "distilled", True, True, *WEIGHTED, "none", "random"),
    "sample-prev": ("global", "distilled", True, True, *WEIGHTED, "prediction", "none"),
    "sample-ood-pred": ("global", "distilled", True, True, *WEIGHTED, "prediction", "prediction"),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_every_preset_is_the_papers(name):
    method = METHODS[name]
    found = (
        method.previous,
        method.teacher,
        method.ensemble,
        method.confidence,
        method.balancing,
        method.fine_tuned,
        method.previous_sampling,
        method.ood_sampling,
    )
    assert found == BY_HAND[name]
    assert method.external == (found[-2:] != NOTHING)
    assert method.replay_all == (name == "oracle")
    assert method.fine_tunes_from_copy == name.startswith("e2e")


# Learner, whether it starts from the shared first model, whether that is calibrated, sampling of external data.
BEYOND = {
    "wa": ("wa", True, False, *NOTHING),
    "wa+ext": ("wa", True, True, *PAPERS),
    "bic": ("bic", True, False, *NOTHING),
    "bic+ext": ("bic", True, True, *PAPERS),
    "icarl": ("icarl", False, False, *NOTHING),
    "icarl+ext": ("icarl", False, False, *PAPERS),
    "dmc": ("dmc", False, False, "none", "random"),
    "dmc+coreset": ("dmc", True, False, "none", "random"),
    "foster": ("foster", True, False, *NOTHING),
    "foster+ext": ("foster", True, True, *PAPERS),
    "plcil": ("plcil", True, False, "none", "random"),
    "sample-nearest": ("distillation", True, True, "nearest-mean", "random"),
    "sample-nearest-far": ("distillation", True, True, "nearest-mean-far", "random"),
}


@pytest.mark.parametrize("name", BEYOND)
def test_presets_beyond_the_paper(name):
    method = METHODS[name]
    sampling = (method.previous_sampling, method.ood_sampling)
    assert (method.learner, method.shares_first_model, method.calibrated_first_model, *sampling) == BEYOND[name]
    if name.startswith("sample"):  # GD+ext but for the ranking
        assert replace(METHODS["gd+ext"], name=name, title=method.title, previous_sampling=sampling[0]) == method


def test_every_row_of_every_table_is_a_preset():
    assert TABLES == {
        1: ("oracle", "baseline", "lwf", "dr", "e2e", "gd", "lwf+ext", "dr+ext", "e2e+ext", "gd+ext"),
        2: ("ref-p", "ref-pc", "ref-q", "gd+ext"),
        3: ("ref-p", "teacher-cls", "teacher-cls-cnf", "teacher-dst", "ref-pc"),
        4: ("balance-none", "balance-dw", "balance-dset", "gd+ext"),
        5: ("gd", "sample-ood", "sample-prev", "sample-ood-pred", "gd+ext"),
    }
    assert set(BY_HAND) == {name for rows in TABLES.values() for name in rows} <= set(METHODS)
