"""PLCiL against a second implementation from its paper's formulas, and what it refuses."""

from dataclasses import replace

import pytest
import torch

from gd_ray.errors import UserError
from gd_ray.learner import Stage
from gd_ray.learners.plcil import PseudoLabeling, pseudo_label_terms
from gd_ray.losses import classification
from gd_ray.methods import METHODS
from gd_ray.spec import TrialSpec
from gd_ray.steps import StageSizes
from gd_ray.training import ReferenceLoss
from gd_ray.trial import run_trial
from tests.helpers import plain
from tests.helpers.learners import PREV, assert_same_value_and_gradient, normal, run, sentence
from tests.helpers.tiny import tiny_spec

pytestmark = pytest.mark.usefixtures("small_inference")


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
