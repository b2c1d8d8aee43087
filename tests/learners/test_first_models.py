"""First models that learners share, and those of their own."""

from dataclasses import replace

import pytest
import torch

from gd_ray.methods import METHODS
from tests.helpers.learners import run
from tests.helpers.tiny import tiny_spec

pytestmark = pytest.mark.usefixtures("small_inference")


def test_first_models(tiny_data, tiny_stream):
    """DMC's, and iCaRL's with cross-entropy, have the weights that methods share; none resumes another's stage."""

    def first(method):
        return run(tiny_spec(method=method), tiny_data, tiny_stream, last_stage=1)[1][0]

    shared = first("gd")
    for method in ("wa", "bic", "dmc+coreset"):
        assert replace(tiny_spec(method=method), coreset_size=7).first_model_id == shared.first_model_id
    icarl = replace(METHODS["icarl"], options={"loss": "cross-entropy"})
    for method in ("dmc", icarl):
        own = first(method)
        assert own.first_model_id != shared.first_model_id
        assert all(torch.equal(own.weights[name], value) for name, value in shared.weights.items())
    assert tiny_spec(method="wa+ext").first_model_id == tiny_spec(method="gd+ext").first_model_id
