"""DMC against a second implementation from its paper's formulas, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from gd_ray.errors import UserError
from gd_ray.learners.dmc import Consolidation, consolidation_target
from gd_ray.methods import METHODS
from gd_ray.spec import TrialSpec
from gd_ray.trial import run_trial
from tests.helpers.learners import normal, sentence
from tests.helpers.tiny import tiny_spec
from trials.cost import spec_cost

pytestmark = pytest.mark.usefixtures("small_inference")


def test_both_blocks_of_the_target_are_centred_image_by_image():
    p, c = normal(6, 3), normal(6, 2, seed=1)
    target = consolidation_target(p, c)
    for row, old, new in zip(target.tolist(), p.tolist(), c.tolist(), strict=True):
        expected = [z - sum(old) / 3 for z in old] + [z - sum(new) / 2 for z in new]
        assert row == pytest.approx(expected, abs=1e-15)
        assert sum(row[:3]) == pytest.approx(0, abs=1e-12)
        assert sum(row[3:]) == pytest.approx(0, abs=1e-12)


def test_least_squares_on_the_target_recovers_linear_specialists():
    x, p, c = normal(40, 4), normal(3, 4, seed=1), normal(2, 4, seed=2)
    student = torch.linalg.lstsq(x, consolidation_target(x @ p.T, x @ c.T)).solution.T
    torch.testing.assert_close(student[:3], p - p.mean(dim=0), rtol=0, atol=1e-12)
    torch.testing.assert_close(student[3:], c - c.mean(dim=0), rtol=0, atol=1e-12)


def test_dmc_takes_as_many_updates_as_gd_with_external_data():
    """At task size 10 of the paper: 19,620 of its M, on 100,000 stream images."""

    def model(method):
        (step,) = (step for step in spec_cost(TrialSpec(method=method)) if (step.stage, step.step) == (5, "model"))
        return step.images // 128

    assert model("dmc") == model("dmc+coreset") == model("gd+ext") == 19_620
    assert Consolidation(TrialSpec(method="dmc")).external_size(7000) == 100_000


def test_dmc_without_a_stream(tiny_data, tiny_stream):
    method = replace(METHODS["dmc"], external=False, ood_sampling="none")
    with pytest.raises(UserError, match="method 'dmc' learns from unlabeled images only; give it external=True") as e:
        run_trial(tiny_spec(method=method), tiny_data, tiny_stream)
    sentence(e)
    with pytest.raises(UserError, match="learns with external data, but no stream was given") as e:
        run_trial(tiny_spec(method="dmc"), tiny_data)
    sentence(e)
    with pytest.raises(
        UserError, match="stream 'glyphs' offers 200 images, but a stage samples up to 300 of them; lower window"
    ):
        run_trial(tiny_spec(method="dmc", window=300), tiny_data, tiny_stream)
