import pytest
from tiny import tiny_spec

from gd_ray.methods import METHODS
from gd_ray.trial import run_trial
from trials.cost import trial_cost


@pytest.mark.parametrize("method", METHODS)
def test_the_cost_from_the_spec_is_what_a_trial_does(method, tiny_data, tiny_stream):
    spec = tiny_spec(method=method, coreset_size=8)
    result = run_trial(spec, tiny_data, tiny_stream)
    expected = {(step.stage, step.step): step.images for step in trial_cost(spec, 8, 4)}
    found = {(s.stage, step): images for s in result.stages for step, images in s.images.items() if images}
    assert set(found) == set(expected)
    for key, images in found.items():
        # The external set may miss or exceed its size by a few images, so by a batch an epoch.
        slack = 16 if METHODS[method].external and key[1] in ("teacher", "model") else 0
        assert images == pytest.approx(expected[key], abs=slack), key
