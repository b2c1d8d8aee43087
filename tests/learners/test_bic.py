"""BiC against a second implementation from its paper's formulas, and what it refuses."""

import math
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
import torch

from gd_ray.errors import UserError
from gd_ray.learner import Stage
from gd_ray.learners.bic import BiasCorrection, fit_bias, fold_bias
from gd_ray.methods import METHODS
from gd_ray.spec import TrialSpec
from gd_ray.trial import run_trial
from tests.helpers import plain
from tests.helpers.learners import head_of, normal, sentence
from tests.helpers.tiny import tiny_spec

pytestmark = pytest.mark.usefixtures("small_inference")


def bias_loss(rows, labels, num_prev, a, b):
    corrected = [[*z[:num_prev], *(a * value + b for value in z[num_prev:])] for z in rows]
    return plain.mean(plain.cls(z, y) for z, y in zip(corrected, labels, strict=True)) + 0.05 * b**2


def test_the_bias_is_the_best_on_a_grid_and_where_the_loss_is_flat():
    logits = normal(40, 5)
    labels = torch.randint(5, (40,), generator=torch.Generator().manual_seed(1))
    logits[torch.arange(40), labels] += 1.5  # so that it knows something
    logits[:, 2:] += 1.0  # and is biased to new classes
    a, b = fit_bias(logits, labels, 2)
    assert 0.1 < a < 2
    assert b < 0

    def loss(a, b):
        return bias_loss(logits.tolist(), labels.tolist(), 2, a, b)

    grid = [(loss(x / 20, y / 20), x / 20, y / 20) for x in range(5, 40, 2) for y in range(-40, 20, 2)]
    _, x, y = min(grid)
    assert abs(a - x) <= 0.1
    assert abs(b - y) <= 0.1
    assert loss(a, b) <= min(grid)[0]
    for change in ((1e-4, 0), (0, 1e-4)):
        slope = (loss(a + change[0], b + change[1]) - loss(a - change[0], b - change[1])) / 2e-4
        assert slope == pytest.approx(0, abs=1e-7)


def test_no_correction_is_best_where_logits_are_exchangeable_and_calibrated():
    counts = (4, 2, 1, 1)  # of eight images with the same logits, as many of each class as its probability says
    rows, labels = [], []
    for order in permutations(range(4)):
        row = [math.log(counts[k] / 8) for k in order]
        rows += [row] * 8
        labels += [position for position, k in enumerate(order) for _ in range(counts[k])]
    assert fit_bias(torch.tensor(rows), torch.tensor(labels), 2) == pytest.approx((1, 0), abs=1e-6)  # logits: float32


def test_a_folded_bias_leaves_the_corrected_logits():
    head, features = head_of(normal(5, 4).tolist(), normal(5, seed=1).tolist()), normal(20, 4, seed=2)
    expected = head(features).detach()
    expected[:, 3:] = expected[:, 3:] * 0.7 - 0.4
    fold_bias(head, 3, 0.7, -0.4)
    torch.testing.assert_close(head(features), expected, rtol=0, atol=1e-14)


def test_a_few_images_that_are_all_right_do_not_ask_for_an_infinite_scale():
    rows, labels = [[0.0, -1.0], [0.0, 1.0], [0.0, 2.0]], [0, 1, 1]
    a, b = fit_bias(torch.tensor(rows), torch.tensor(labels), 1)
    assert a == 10.0
    best = min(range(-300, 300), key=lambda x: bias_loss(rows, labels, 1, a, x / 1000))
    assert b == pytest.approx(best / 1000, abs=1e-3)


def test_what_bic_holds_out():
    learner = BiasCorrection(TrialSpec(method="bic"))
    assert [learner._check(2000, num_prev) for num_prev in (10, 90)] == [20, 2]


def test_held_out_images_are_in_the_coreset_never_trained_on_and_stay_held_out(tiny_data, monkeypatch):
    trained, held_out, coresets = {}, {}, {}
    fit, select = Stage.fit, BiasCorrection.select_coreset

    def key(stage, index):
        return stage.images[index].numpy().tobytes()

    def watched_fit(self, step, network, loss, indices, parameters=None):
        trained[self.number] = {key(self, i) for i in indices}
        return fit(self, step, network, loss, indices, parameters)

    def watched_select(self, stage, model):
        chosen = select(self, stage, model)
        coresets[stage.number] = {key(stage, i) for i in chosen}
        if stage.number > 1:
            indices = self.held_out(stage)
            held_out[stage.number] = {(key(stage, i), int(stage.labels[i])) for i in indices}
            counts = np.bincount(stage.labels_of(indices))
            assert set(counts) == {2 if stage.number == 2 else 1}
        return chosen

    monkeypatch.setattr(Stage, "fit", watched_fit)
    monkeypatch.setattr(BiasCorrection, "select_coreset", watched_select)
    result = run_trial(tiny_spec(method="bic"), tiny_data)
    for stage in (2, 3):
        images = {image for image, _ in held_out[stage]}
        assert not images & trained[stage]
        assert set(result.stages[stage - 1].recorded) > {"bias scale", "bias offset"}
    new = {image for image, label in held_out[3] if label in (2, 3)}  # classes that were new at stage 2
    assert new <= {image for image, _ in held_out[2]} & coresets[2]


def test_too_few_images_to_hold_out(tiny_data):
    says = "coreset_size 39 leaves method 'bic' 39 images of 4 previous classes, .* none to hold out"
    with pytest.raises(UserError, match=says) as e:
        run_trial(tiny_spec(method=METHODS["bic"], coreset_size=39, train_per_class=None), tiny_data)
    sentence(e)
    with pytest.raises(UserError, match="leaves method 'bic' 32 images of 4 previous classes") as e:  # 8 of a class
        BiasCorrection(tiny_spec(method=METHODS["bic"], coreset_size=2000))
    sentence(e)
    with pytest.raises(UserError, match="coreset_size 0 leaves method 'bic' 0 images"):
        BiasCorrection(TrialSpec(method="bic", coreset_size=0))
    method = replace(METHODS["bic"], options={"held_out": 0.9})
    with pytest.raises(UserError, match="method 'bic': held_out 0.9 must be above 0 and at most 0.5") as e:
        BiasCorrection(tiny_spec(method=method))
    sentence(e)
