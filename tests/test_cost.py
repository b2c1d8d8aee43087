import dataclasses

import pytest
import torch
from tiny import tiny_spec

from gd_ray.methods import METHODS
from gd_ray.network import WideResNet
from gd_ray.seeding import Purpose, generator
from gd_ray.trial import run_trial
from trials.cost import multiply_adds, shares_done, spec_work, total_work, trial_cost
from trials.plan import by_network, to_compute, work_of

pytestmark = pytest.mark.usefixtures("small_inference")


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


def test_longer_fine_tuning_is_done_and_counted(tiny_data):
    spec = tiny_spec(method="e2e", num_classes=4, coreset_size=8, epoch_factor=0.1)
    done, longer = (
        run_trial(s, tiny_data).stages[-1].images for s in (spec, dataclasses.replace(spec, fine_tune_factor=4))
    )
    assert longer["fine-tune"] == 4 * done["fine-tune"]
    assert longer["model"] == done["model"]
    cost = trial_cost(dataclasses.replace(spec, fine_tune_factor=4), 8, 4)
    assert next(step.images for step in cost[::-1] if step.step == "fine-tune") == longer["fine-tune"]


def test_a_plan_counts_a_shared_first_model_once():
    specs = [tiny_spec(method=method, seed=seed) for method in ("baseline", "lwf", "gd+ext") for seed in (0, 1)]
    stages = [step.stage for step in to_compute(specs)]
    assert stages.count(1) == 2 * 2 * 2  # plain and calibrated, two seeds; training and evaluation
    cost = trial_cost(specs[0], 8, 4)
    rest = total_work([step for step in cost if step.stage > 1])
    assert shares_done(cost)[0] == pytest.approx(1 - rest / total_work(cost))


@pytest.mark.parametrize(("depth", "width"), [(10, 1), (16, 2), (28, 3)])
def test_multiply_adds_are_those_of_the_network(depth, width):
    """Counted a second time while an image goes through it: each output of a convolution costs its kernel's weights."""
    network = WideResNet(depth, width, 0.0, 10, generator(0, 1, Purpose.INITIALISATION))
    counted = []
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda conv, _, out: counted.append(out[0].numel() * conv.weight[0].numel()))
    network(torch.zeros(1, 3, 32, 32))
    assert multiply_adds(depth, width) == sum(counted)


def test_networks_of_different_size_are_weighed():
    small, large = (tiny_spec(method="gd", depth=16, width=width) for width in (1, 2))
    assert work_of(by_network([small, large])) == spec_work(small) + spec_work(large)
    assert round(multiply_adds(16, 2) / 1e6) == 101
    assert spec_work(large) / spec_work(small) == multiply_adds(16, 2) / multiply_adds(16, 1)
