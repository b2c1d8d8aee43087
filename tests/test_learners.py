"""Learners beyond the paper against second implementations from their papers' formulas, and what they refuse."""

import math
from dataclasses import replace
from itertools import pairwise, permutations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from gd_ray.coreset import herd
from gd_ray.errors import UserError
from gd_ray.evaluation import class_means
from gd_ray.learner import Stage
from gd_ray.learners.bic import BiasCorrection, fit_bias, fold_bias
from gd_ray.learners.dmc import Consolidation, consolidation_target
from gd_ray.learners.foster import Foster, boosting_terms, compression_terms, effective_weights
from gd_ray.learners.icarl import ICaRL, sigmoid_terms
from gd_ray.learners.plcil import PseudoLabeling, pseudo_label_terms
from gd_ray.learners.wa import align, replay_terms
from gd_ray.losses import classification
from gd_ray.methods import METHODS
from gd_ray.networks.boosted import boosted_classifier
from gd_ray.networks.classifier import new_classifier
from gd_ray.networks.nearest_mean import NearestMeanClassifier
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes
from gd_ray.training import ReferenceLoss
from gd_ray.trial import run_trial
from tests.helpers import plain
from tests.helpers.tiny import tiny_spec
from trials.cost import spec_cost

pytestmark = pytest.mark.usefixtures("small_inference")
LABELS = [0, 3, -1, 4, 2, -1]
PREV = 3


def normal(*shape, seed=0):
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def assert_same_value_and_gradient(terms, expected, columns=5):
    """`terms` of a (6, 5) tensor of logits; `expected` of the same as lists, differentiated by differences."""
    logits = normal(6, columns).requires_grad_()
    total = sum(terms(logits).values())
    total.backward()
    rows = logits.tolist()
    assert total.item() == pytest.approx(expected(rows), abs=1e-9)
    for i in range(6):
        for j in range(columns):
            sides = []
            for change in (1e-5, -1e-5):
                moved = [list(row) for row in rows]
                moved[i][j] += change
                sides.append(expected(moved))
            assert float(logits.grad[i, j]) == pytest.approx((sides[0] - sides[1]) / 2e-5, abs=1e-9)


# WA


def test_the_loss_of_wa_and_bic():
    previous = normal(6, PREV, seed=1)

    def expected(rows):
        ce = plain.mean(plain.cls(z, y) for z, y in zip(rows, LABELS, strict=True) if y >= 0)
        references = [plain.softmax(p, 2.0) for p in previous.tolist()]
        kd = plain.mean(plain.dst(z[:PREV], q, 2.0) for z, q in zip(rows, references, strict=True))
        return 2 / 5 * ce + 3 / 5 * kd

    assert_same_value_and_gradient(lambda z: replay_terms(z, torch.tensor(LABELS), previous, 2.0), expected)


def head_of(rows, biases):
    head = nn.Linear(len(rows[0]), len(rows)).double()
    with torch.no_grad():
        head.weight[:], head.bias[:] = torch.tensor(rows), torch.tensor(biases)
    return head


def test_aligning_a_head_of_two_and_two_classes_by_hand():
    head = head_of([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0], [2.0, 0.0]], [1.0, 2.0, 3.0, 4.0])
    assert align(head, 2) == 0.5  # mean norms (5 + 1) / 2 and (10 + 2) / 2
    assert head.weight.tolist() == [[3, 4], [0, 1], [3, 4], [1, 0]]
    assert head.bias.tolist() == [1, 2, 1.5, 2]
    assert align(head, 2) == 1.0


def test_aligning_makes_mean_norms_agree_and_keeps_the_order_inside_old_and_new_classes():
    head, features = head_of(normal(7, 4).tolist(), normal(7, seed=1).tolist()), normal(50, 4, seed=2)
    before = head(features)
    align(head, 4)
    norms, after = head.weight.detach().norm(dim=1), head(features)
    assert float(norms[:4].mean()) == pytest.approx(float(norms[4:].mean()), abs=1e-12)
    for columns in (slice(0, 4), slice(4, 7)):
        assert torch.equal(before[:, columns].argmax(dim=1), after[:, columns].argmax(dim=1))
    assert align(head, 4) == pytest.approx(1.0, abs=1e-12)


# BiC


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


# iCaRL


def test_the_loss_of_icarl():
    previous = normal(6, PREV, seed=1)

    def sigmoid(value):
        return 1 / (1 + math.exp(-value))

    def entropy(value, target):
        return -target * math.log(sigmoid(value)) - (1 - target) * math.log(1 - sigmoid(value))

    def expected(rows):
        new = plain.mean(
            sum(entropy(z[k], float(k == y)) for k in (3, 4)) for z, y in zip(rows, LABELS, strict=True) if y >= 0
        )
        old = plain.mean(
            sum(entropy(z[k], sigmoid(p[k])) for k in range(PREV)) for z, p in zip(rows, previous.tolist(), strict=True)
        )
        return new + old

    def first(rows):  # without a P, on labelled images: every output has a label
        pairs = list(zip(rows, LABELS, strict=True))
        return plain.mean(sum(entropy(z[k], float(k == y)) for k in range(5)) for z, y in pairs if y >= 0)

    assert_same_value_and_gradient(lambda z: sigmoid_terms(z, torch.tensor(LABELS), previous), expected)
    assert_same_value_and_gradient(lambda z: sigmoid_terms(z, torch.tensor(LABELS), None), first)


@given(st.integers(0, 2**31), st.integers(1, 30), st.integers(0, 40))
def test_herding_is_brute_force(seed, number, wanted):
    rows = np.random.default_rng(seed).normal(size=(number, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    features, mu = rows.tolist(), [sum(column) / number for column in rows.T.tolist()]
    taken, w = [], mu
    for _ in range(min(wanted, number)):
        products = [sum(a * b for a, b in zip(f, w, strict=True)) for f in features]
        taken.append(max((i for i in range(number) if i not in taken), key=lambda i: (products[i], -i)))
        w = [a + b - c for a, b, c in zip(w, mu, features[taken[-1]], strict=True)]
    assert herd(rows, wanted).tolist() == taken


def test_herding_takes_the_earlier_of_equal_images():
    assert herd(np.array([[1.0, 0.0]] * 3), 2).tolist() == [0, 1]


def test_the_nearest_mean_has_the_largest_product_also_of_a_class_with_one_exemplar():
    rng = np.random.default_rng(0)
    features = rng.normal(size=(7, 16))
    features /= np.linalg.norm(features, axis=1, keepdims=True)
    labels = np.array([0, 0, 0, 1, 2, 2, 2])
    means = class_means(features, labels, 3)
    for k in range(3):
        mu = sum(f for f, y in zip(features, labels, strict=True) if y == k) / (labels == k).sum()
        np.testing.assert_allclose(means[k], mu / math.sqrt(float(mu @ mu)), rtol=0, atol=1e-12)
    np.testing.assert_allclose(means[1], features[3], atol=1e-15)
    model = new_classifier("wrn-10-1", 0.0, 3, torch.Generator().manual_seed(0), NearestMeanClassifier).eval()
    images = torch.rand(20, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        f = model.features(images)
        model.means = torch.nn.functional.normalize(f[:3] + 0.1 * f[3:6], dim=1)
        f = f / f.norm(dim=1, keepdim=True)
        distances = (f[:, None] - model.means[None]).norm(dim=2)
        assert torch.equal(model.predict(images), distances.argmin(dim=1))


def run(spec, data, stream=None, **options):
    checkpoints = []
    result = run_trial(spec, data, stream, on_stage=lambda _, c: checkpoints.append(c), **options)
    return result, checkpoints


def test_icarl_reports_the_head_apart_and_keeps_the_first_of_its_ranking(tiny_data):
    result, checkpoints = run(tiny_spec(method="icarl", epoch_factor=0.02), tiny_data)
    differs = []
    for stage, checkpoint in zip(result.stages, checkpoints, strict=True):
        assert stage.head_confusion[:, 2].sum() == stage.confusion[:, 2].sum() == sum(stage.totals)
        differs.append(stage.head_confusion.tolist() != stage.confusion.tolist())
        assert checkpoint.weights["means"].norm(dim=1).tolist() == pytest.approx([1.0] * 2 * stage.stage)
    assert any(differs)
    labels = tiny_data.train.labels.numpy()
    for before, after in pairwise(checkpoints):
        for k in np.unique(labels[before.coreset]):
            old, new = (c.coreset[labels[c.coreset] == k].tolist() for c in (before, after))
            assert new == old[: len(new)]
    assert run_trial(tiny_spec(method="wa"), tiny_data, last_stage=2).stages[1].head_confusion is None


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


def test_icarl_with_cross_entropy_runs(tiny_data, tiny_stream):
    method = replace(METHODS["icarl+ext"], options={"loss": "cross-entropy"})
    stage = run_trial(tiny_spec(method=method), tiny_data, tiny_stream, last_stage=2).stages[1]
    assert set(stage.losses) == {"model cls", "model previous"}


# DMC


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


# FOSTER


def test_weights_by_effective_numbers_by_hand():
    # Effective numbers 1 and 1.5; inverses 1 and 2/3, whose mean is 5/6.
    assert effective_weights(np.array([1, 2]), 0.5).tolist() == pytest.approx([1.2, 0.8], abs=1e-15)
    assert effective_weights(np.array([3, 500]), 0.0).tolist() == [1, 1]
    few, many = effective_weights(np.array([20, 500]), 0.97).tolist()
    assert few / many == pytest.approx((1 - 0.97**500) / (1 - 0.97**20), abs=1e-12)


def test_the_loss_of_boosting():
    weights = [1.4, 1.3, 1.1, 0.7, 0.5]

    def expected(rows):
        pairs = list(zip(rows, LABELS, strict=True))
        scaled = [([value / w for value, w in zip(z[:5], weights, strict=True)], y) for z, y in pairs]
        cls = plain.mean(plain.cls(z, y) for z, y in scaled if y >= 0)
        new = plain.mean(plain.cls(z[5:10], y) for z, y in pairs if y >= 0)
        return cls + new + plain.mean(plain.dst(z[:PREV], plain.softmax(z[10:], 2.0), 2.0) for z in rows)

    def terms(outputs):
        return boosting_terms(outputs, torch.tensor(LABELS), torch.tensor(weights, dtype=torch.float64), 2.0)

    assert_same_value_and_gradient(terms, expected, columns=5 + 5 + PREV)


def test_the_loss_of_compression():
    boosted, weights = normal(6, 5 + 5 + PREV, seed=1), [1.4, 1.3, 1.1, 0.7, 0.5]

    def expected(rows):
        losses = []
        for z, reference in zip(rows, boosted.tolist(), strict=True):
            target = [p * w for p, w in zip(plain.softmax(reference[:5], 2.0), weights, strict=True)]
            losses.append(plain.dst(z, [value / sum(target) for value in target], 2.0))
        return plain.mean(losses)

    def terms(logits):
        weigh = torch.tensor(weights, dtype=torch.float64)
        return compression_terms(logits, torch.tensor(LABELS), boosted, weigh, 2.0)

    assert_same_value_and_gradient(terms, expected)


def test_a_boosted_network_starts_from_the_previous_one_which_does_not_learn():
    rng = torch.Generator().manual_seed(0)
    previous = new_classifier("wrn-10-1", 0.3, PREV, rng).eval()
    boosted, images = boosted_classifier(previous, 5, rng).train(), torch.rand(4, 3, 32, 32, generator=rng)
    dim = previous.head.in_features
    with torch.no_grad():
        features = previous.features(images)
        assert torch.equal(boosted.features(images)[:, :dim], features)  # no statistics of the batch
        own, new, old = boosted.eval().logits(images).split((5, 5, PREV), dim=1)
        assert torch.equal(boosted.head.weight[:PREV, :dim], previous.head.weight)
        twice = torch.cat([features, boosted.backbone.new(images)], dim=1)
        torch.testing.assert_close(own, twice @ boosted.head.weight.T + boosted.head.bias)
        torch.testing.assert_close(new, twice[:, dim:] @ boosted.head.new.weight.T)
        torch.testing.assert_close(old, previous(images))
    learned = {name for name, parameter in boosted.named_parameters() if parameter.requires_grad}
    assert learned == {f"backbone.new.{name}" for name, _ in previous.backbone.named_parameters()} | {
        *("head.weight", "head.bias", "head.new.weight", "head.new.bias")
    }


# PLCiL


def test_the_loss_of_plcil():
    weak = {"model": 3 * normal(6, 5, seed=1), "previous": 2 * normal(6, PREV, seed=2)}
    own, labels = normal(4, 5, seed=3), [4, 0, 2, 3]
    counted = {}

    def pseudo(rows, name):
        losses = []
        for z, seen in zip(rows, weak[name].tolist(), strict=True):
            p = plain.softmax(seen)
            losses.append(plain.cls(z, p.index(max(p))) if max(p) >= 0.7 else 0.0)
        counted[name] = sum(loss > 0 for loss in losses) / 6
        return plain.mean(losses)

    def expected(rows):
        cls = plain.mean(plain.cls(z, y) for z, y in zip(own.tolist(), labels, strict=True))
        return cls + pseudo(rows, "model") + 3 / 5 * pseudo(rows, "previous")

    def terms(logits, strong):
        return pseudo_label_terms(logits, torch.tensor(labels), strong, weak, 0.7)

    assert_same_value_and_gradient(lambda strong: terms(own, strong)[0], expected)
    shares = terms(own, normal(6, 5))[1].tolist()
    assert shares == pytest.approx([counted["model"], counted["previous"]], abs=1e-15)
    assert all(0 < share < 1 for share in shares)


def stage_of_plcil(data, stream, threshold, **changes):
    method = replace(METHODS["plcil"], options={"threshold": threshold})
    result, checkpoints = run(tiny_spec(method=method, **changes), data, stream, last_stage=2)
    return result.stages[1], checkpoints[1].weights


def test_plcil_with_a_threshold_above_1_learns_from_labels_alone(tiny_data, tiny_stream, monkeypatch):
    """The same parameters as of plain cross-entropy on the same labelled batches; batch norms also see the stream."""
    changes = {"dropout": 0.0, "epoch_factor": 0.02}
    stage, weights = stage_of_plcil(tiny_data, tiny_stream, 1.5, **changes)
    assert [value for name, value in stage.losses.items() if "pseudo" in name] == [0, 0]
    fit = Stage.fit

    def labelled_only(self, step, network, loss, indices, parameters=None, *, batches=None, **sgd):
        if batches is not None:
            loss = ReferenceLoss(lambda z, y: {"cls": classification(z, y).mean()}, precision="float32")
            batches = batches.labelled
        return fit(self, step, network, loss, indices, parameters, batches=batches, **sgd)

    monkeypatch.setattr(Stage, "fit", labelled_only)
    plain_stage, expected = stage_of_plcil(tiny_data, tiny_stream, 1.5, **changes)
    assert plain_stage.losses["model cls"] == stage.losses["model cls"]
    learned = [name for name in weights if "running" not in name and "tracked" not in name]
    assert all(torch.equal(weights[name], expected[name]) for name in learned)
    assert not torch.equal(weights["backbone.norm.running_mean"], expected["backbone.norm.running_mean"])


@pytest.mark.parametrize(("threshold", "share"), [(1e-6, 1.0), (1.5, 0.0)])
def test_the_share_of_images_with_pseudo_labels_is_stored(threshold, share, tiny_data, tiny_stream):
    stage, _ = stage_of_plcil(tiny_data, tiny_stream, threshold)
    assert [stage.recorded[f"share with pseudo-label of {name}"] for name in ("model", "previous")] == [share, share]


def test_an_epoch_of_plcil_is_all_labelled_images_with_seven_times_as_many_of_the_stream():
    learner = PseudoLabeling(TrialSpec(method="plcil"))
    assert learner.external_size(7000) == 100_000
    (step,) = learner.steps(StageSizes(5, 40, 10, current=5000, exemplars=2000, external=100_000))
    assert (step.batch_size, step.schedule(learner.spec).updates) == (32 + 224, 150 * (7000 // 32))
    # Of 256 images 32 are learned from; of 224, M and P look at the weak view and M learns from the strong one.
    assert 256 * step.passes == pytest.approx(32 * 3 + 224 * (2 + 3))
    assert [step.schedule(learner.spec).rate(0), learner.spec.weight_decay / 5] == pytest.approx([0.03, 1e-4])


# Bad input


def sentence(error):
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_a_coreset_without_an_image_of_each_class(tiny_data, tiny_stream):
    with pytest.raises(
        UserError, match="coreset_size 5 leaves method 'icarl' no exemplar .* raise it to 6 or more"
    ) as e:
        run_trial(tiny_spec(method="icarl", coreset_size=5), tiny_data)
    sentence(e)
    says = (
        "coreset_size 3 leaves method 'sample-nearest' no image of some of 4 previous classes.* raise it to 4 or more"
    )
    with pytest.raises(UserError, match=says) as e:
        run_trial(tiny_spec(method="sample-nearest", coreset_size=3), tiny_data, tiny_stream)
    sentence(e)


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


def test_a_loss_that_icarl_does_not_have():
    method = replace(METHODS["icarl"], options={"loss": "sigmoyd"})
    with pytest.raises(UserError, match="method 'icarl': loss 'sigmoyd' does not exist; did you mean 'sigmoid'"):
        ICaRL(tiny_spec(method=method))


def test_plcil_without_a_stream_or_with_too_small_a_batch(tiny_data):
    with pytest.raises(UserError, match="method 'plcil' learns with external data, but no stream was given") as e:
        run_trial(tiny_spec(method="plcil"), tiny_data)
    sentence(e)
    for changes, says in (
        ({"external": False, "ood_sampling": "none"}, "learns from stream images; give it external=True and a stream"),
        ({"options": {"threshold": 0}}, "threshold 0.0 must be above 0"),
        ({"options": {"stream_ratio": 0}}, "stream_ratio 0 must be at least 1"),
    ):
        with pytest.raises(UserError, match=f"method 'plcil'.* {says}") as e:
            PseudoLabeling(tiny_spec(method=replace(METHODS["plcil"], **changes)))
        sentence(e)
    says = "method 'plcil' takes a quarter of batch_size 3 as labelled .* which is none; raise it to 4 or more"
    with pytest.raises(UserError, match=says) as e:
        PseudoLabeling(tiny_spec(method="plcil", batch_size=3))
    sentence(e)


def test_foster_without_an_image_of_each_class_or_with_a_wrong_beta():
    says = "coreset_size 3 leaves method 'foster' no image of some of 4 previous classes.* raise it to 4 or more"
    with pytest.raises(UserError, match=says) as e:
        Foster(tiny_spec(method="foster", coreset_size=3))
    sentence(e)
    method = replace(METHODS["foster"], options={"boosting_beta": 1.0})
    with pytest.raises(UserError, match="method 'foster': boosting_beta 1.0 must be at least 0 and below 1") as e:
        Foster(tiny_spec(method=method))
    sentence(e)
