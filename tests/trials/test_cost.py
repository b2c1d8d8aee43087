import dataclasses
from collections import Counter

import numpy as np
import pytest
import torch

from gd_ray.learner import StageLog
from gd_ray.methods import METHODS
from gd_ray.networks.classifier import Classifier, new_classifier
from gd_ray.seeding import Purpose, generator
from gd_ray.trial import run_trial
from gd_ray.wild.sampling import Candidates, select
from gd_ray.wild.scoring import score_in_process
from tests.helpers.tiny import tiny_spec
from trials.cost import amount, multiply_adds, shares_done, spec_cost, spec_work, steps_to_compute, total_work
from trials.registry import Sizes

pytestmark = pytest.mark.usefixtures("small_inference")


@pytest.fixture
def passes(monkeypatch):
    """Images that went through a network, by stage: a forward pass each, and two more where gradients came back."""
    found, stage = Counter(), [0]
    features, add = Classifier.features, StageLog.add

    def watched(model, inputs, *dropout):
        result = features(model, inputs, *dropout)
        padding = (inputs.amax(dim=(2, 3)) == inputs.amin(dim=(2, 3))).all(dim=1)  # where nothing learns
        found[stage[0]] += int((~padding).sum()) * (3 if result.requires_grad else 1)
        return result

    def next_stage(log, step, *rest):
        add(log, step, *rest)
        if step == "evaluate":
            stage[0] += 1

    monkeypatch.setattr(Classifier, "features", watched)
    monkeypatch.setattr(StageLog, "add", next_stage)
    return found


def enough_of_each_class(job, on_images):
    """Score, then name as many images for each class as the plan asks for, whatever the untrained model says."""
    score_in_process(job, on_images)
    classes = np.repeat(np.arange(job.plan.num_classes), job.plan.quota)
    first, wanted = job.plan.skipped, len(classes) + job.plan.num_ood
    previous = select(np.arange(first, first + len(classes)), classes, np.ones(len(classes)), quota=job.plan.quota)
    ood = select(np.arange(first, first + wanted), np.zeros(wanted, int), np.ones(wanted), quota=wanted)
    return Candidates(previous, ood)


@pytest.mark.parametrize("method", METHODS)
def test_the_cost_from_the_spec_is_what_a_trial_does(method, tiny_data, tiny_stream, passes):
    """Each image of each step, and each pass of an image through a network: to learn, as reference, to choose, to test.

    The sizes are such that quotas of classes need no rounding.
    """
    spec = tiny_spec(method=method, coreset_size=8, ood_ratio=0.5)
    result = run_trial(spec, tiny_data, tiny_stream, scorer=enough_of_each_class)
    cost = spec_cost(spec)
    found = {(s.stage, step): images for s in result.stages for step, images in s.images.items() if images}
    assert found == {(step.stage, step.step): step.images for step in cost}
    expected = {stage: total_work([step for step in cost if step.stage == stage]) for stage in (1, 2, 3)}
    assert {stage + 1: work for stage, work in passes.items()} == pytest.approx(expected)


def test_a_window_longer_than_the_stream_costs_the_stream_and_own_data_their_images(tiny_data, tiny_stream):
    spec = tiny_spec(method="gd+ext", coreset_size=8, window=100_000, train_per_class=None, test_per_class=None)
    with pytest.warns(UserWarning, match="will see some images again"):
        result = run_trial(spec, tiny_data, tiny_stream)
    known = spec_cost(spec, Sizes(train_per_class=8, test_per_class=4, stream=len(tiny_stream)))
    for step in ("score", "evaluate", "fine-tune"):
        expected = sum(part.images for part in known if part.step == step)
        assert sum(stage.images.get(step, 0) for stage in result.stages) == expected
    assert total_work(spec_cost(spec)) > 20 * total_work(known)


def test_longer_fine_tuning_is_done_and_counted(tiny_data):
    spec = tiny_spec(method="e2e", num_classes=4, coreset_size=8, epoch_factor=0.1)
    done, longer = (
        run_trial(s, tiny_data).stages[-1].images for s in (spec, dataclasses.replace(spec, fine_tune_factor=4))
    )
    assert longer["fine-tune"] == 4 * done["fine-tune"]
    assert longer["model"] == done["model"]
    cost = spec_cost(dataclasses.replace(spec, fine_tune_factor=4))
    assert next(step.images for step in cost[::-1] if step.step == "fine-tune") == longer["fine-tune"]


def test_a_plan_counts_a_shared_first_model_once():
    specs = [tiny_spec(method=method, seed=seed) for method in ("baseline", "lwf", "gd+ext") for seed in (0, 1)]
    stages = [step.stage for steps in steps_to_compute(specs).values() for step in steps]
    assert stages.count(1) == 2 * 2 * 2  # plain and calibrated, two seeds; training and evaluation
    cost = spec_cost(specs[0])
    rest = total_work([step for step in cost if step.stage > 1])
    assert shares_done(cost)[0] == pytest.approx(1 - rest / total_work(cost))


@pytest.mark.parametrize("name", ["wrn-10-1", "wrn-16-2", "wrn-28-3", "resnet-32", "resnet-18"])
def test_multiply_adds_are_those_of_the_network(name):
    """Counted a second time while an image goes through it: each output of a convolution costs its kernel's weights."""
    network = new_classifier(name, 0.0, 10, generator(0, 1, Purpose.INITIALISATION))
    counted = []
    for module in network.modules():
        if isinstance(module, torch.nn.Conv2d):
            module.register_forward_hook(lambda conv, _, out: counted.append(out[0].numel() * conv.weight[0].numel()))
    network(torch.zeros(1, 3, 32, 32))
    assert multiply_adds(name) == sum(counted)


def test_networks_of_different_size_are_weighed():
    small, large = (tiny_spec(method="gd", network=name) for name in ("wrn-16-1", "wrn-16-2"))
    steps = steps_to_compute([small, large])
    work = sum(total_work(cost) * multiply_adds(name) for name, cost in steps.items())
    assert work == spec_work(small) + spec_work(large)
    assert round(multiply_adds("wrn-16-2") / 1e6) == 101
    assert spec_work(large) / spec_work(small) == multiply_adds("wrn-16-2") / multiply_adds("wrn-16-1")


def test_small_numbers_are_exact():
    assert [amount(number) for number in (0, 999, 20_480, 1_250_000)] == ["0", "999", "20,480", "1.2 million"]
