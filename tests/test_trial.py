"""Whole trials of three stages on a few glyphs: every method, determinism, restarts, invariants of each stage."""

import dataclasses

import numpy as np
import pytest
import torch

from gd_ray.checkpoint import Checkpoint
from gd_ray.data.dataset import ImageSet, LabelledData
from gd_ray.data.pixels import pixel_statistics
from gd_ray.learner import Stage
from gd_ray.learners.distillation import Distillation
from gd_ray.methods import METHODS
from gd_ray.rows import confidences_table, confusions_table
from gd_ray.sources.glyph_images import wild_glyphs
from gd_ray.trial import run_trial
from gd_ray.trial_result import StageResult
from gd_ray.wild.scoring import score_in_process
from gd_ray.wild.stream import MemoryStream
from tests.helpers.tiny import tiny_spec

pytestmark = pytest.mark.usefixtures("small_inference")


def content(result: StageResult) -> dict:
    """All that must be the same in every run: everything but times."""
    values = dataclasses.asdict(result)
    del values["seconds"]
    values |= values.pop("samples")
    return {key: value.tobytes() if isinstance(value, np.ndarray) else repr(value) for key, value in values.items()}


def run(spec, data, stream, **options):
    """The trial's stages and the checkpoint after each."""
    checkpoints = []
    result = run_trial(spec, data, stream, on_stage=lambda _, checkpoint: checkpoints.append(checkpoint), **options)
    return result, checkpoints


def same_weights(a: Checkpoint, b: Checkpoint) -> bool:
    return all(torch.equal(a.weights[name], b.weights[name]) for name in a.weights | b.weights)


@pytest.mark.parametrize("convention", ["paper", "released"])
@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_all_stages(method, convention, tiny_data, tiny_stream):
    spec = tiny_spec(method=method, convention=convention)
    result, checkpoints = run(spec, tiny_data, tiny_stream)
    assert len(result.stages) == 3
    assert 0 <= result.acc <= 1
    assert -1 <= result.fgt <= 1
    for number, (stage, checkpoint) in enumerate(zip(result.stages, checkpoints, strict=True), start=1):
        assert stage.totals == (8,) * number
        assert sum(stage.hits) == sum(n for true, predicted, n in stage.confusion.tolist() if true == predicted)
        assert stage.confusion[:, 2].sum() == sum(stage.totals)
        assert all(np.isfinite(loss) for loss in stage.losses.values())
        # The coreset: 7 in all (BiC 8), evenly over the classes seen, labelled images only; DMC keeps none.
        labels = tiny_data.train.labels.numpy()[checkpoint.coreset]
        counts = np.unique(labels, return_counts=True)[1]
        size = 0 if method == "dmc" else spec.coreset_size
        assert stage.coreset_size == len(checkpoint.coreset) == counts.sum() == size
        assert len(counts) == (2 * number if size else 0)
        assert not size or counts.max() - counts.min() <= 1
        # The external set: each image once.
        samples = stage.samples
        assert len(np.unique(samples.positions)) == len(samples.positions)
        if METHODS[method].external and (number > 1 or METHODS[method].confidence):
            slack = 2 * number if convention == "paper" else 0  # quotas round up
            # DMC and PLCiL take all of the window; others as many as there are labelled images.
            expected = spec.window if method.startswith(("dmc", "plcil")) else stage.labelled_size
            assert 0 < len(samples.positions) <= expected + slack
            if number == 1:
                assert len(samples.positions) == stage.labelled_size
                assert samples.is_ood.all()
        else:
            assert len(samples.positions) == 0


def steps(spec, data, stream):
    return [set(stage.images) - {"score", "evaluate"} for stage in run_trial(spec, data, stream).stages]


def test_only_the_steps_a_method_needs_are_run(tiny_data, tiny_stream):
    for method, later in {
        "baseline": {"model"},
        "lwf": {"model"},
        "dr": {"teacher", "model"},
        "e2e": {"model", "fine-tune"},
        "gd": {"teacher", "model", "fine-tune"},
        "ref-q": {"teacher", "model", "fine-tune"},
    }.items():
        assert steps(tiny_spec(method=method, num_classes=4), tiny_data, tiny_stream) == [{"teacher"}, later]
    released = steps(tiny_spec(method="ref-q", num_classes=4, convention="released"), tiny_data, tiny_stream)
    assert released == [{"teacher"}, {"model", "fine-tune"}]  # no C inside Q


def test_only_the_loss_terms_a_method_has_are_computed(tiny_data, tiny_stream):
    def terms(method, convention="paper"):
        spec = tiny_spec(method=method, num_classes=4, convention=convention)
        stage = run_trial(spec, tiny_data, tiny_stream).stages[-1]
        return {name for name in stage.losses if not name.startswith("teacher ")}

    assert terms("baseline") == {"model cls"}
    assert terms("gd+ext") == {
        f"{step} {name}" for step in ("model", "fine-tune") for name in ("cls", "previous", "teacher", "ensemble")
    }
    assert terms("teacher-cls") == {
        f"{step} {name}" for step in ("model", "fine-tune") for name in ("cls", "previous", "teacher cls")
    }
    assert terms("ref-p") == {f"{step} {name}" for step in ("model", "fine-tune") for name in ("cls", "previous")}


@pytest.mark.parametrize("method", ["gd+ext", "e2e", "oracle"])
def test_the_same_spec_gives_the_same_bytes(method, tiny_data, tiny_stream):
    (first, a), (second, b) = (run(tiny_spec(method=method), tiny_data, tiny_stream) for _ in range(2))
    assert [content(stage) for stage in first.stages] == [content(stage) for stage in second.stages]
    assert all(same_weights(x, y) for x, y in zip(a, b, strict=True))
    other = run_trial(tiny_spec(method=method, seed=1), tiny_data, tiny_stream)
    assert [content(stage) for stage in other.stages] != [content(stage) for stage in first.stages]


BEYOND = ("wa", "bic", "icarl", "dmc", "foster", "plcil")


@pytest.mark.parametrize(
    "method", ["gd+ext", "e2e+ext", "oracle", *(name for name in METHODS if name.startswith((*BEYOND, "sample-n")))]
)
def test_a_restart_after_any_stage_gives_the_same_bytes(method, tiny_data, tiny_stream, tmp_path):
    spec = tiny_spec(method=method)
    whole, checkpoints = run(spec, tiny_data, tiny_stream)
    torch.rand(5)  # a global generator in another state must not matter
    for stage, checkpoint in enumerate(checkpoints, start=1):
        checkpoint.save(tmp_path / f"{stage}.pt")
        resumed, rest = run(spec, tiny_data, tiny_stream, resume=Checkpoint.load(tmp_path / f"{stage}.pt"))
        assert [content(s) for s in resumed.stages] == [content(s) for s in whole.stages]
        for table in (confusions_table, confidences_table):
            assert table(spec, resumed.stages).equals(table(spec, whole.stages))
        assert len(rest) == 3 - stage
        if rest:
            assert same_weights(rest[-1], checkpoints[-1])


def test_another_network_learns_all_stages_of_larger_images():
    pixels = wild_glyphs(60).repeat(2, axis=1).repeat(2, axis=2)
    images = ImageSet.from_arrays(pixels[:24], list(range(4)) * 6)
    data = LabelledData("large", images, images, pixel_statistics(pixels), ("a", "b", "c", "d"))
    sizes = {"num_classes": 4, "train_per_class": 6, "test_per_class": 4, "coreset_size": 4, "window": 20}
    spec = tiny_spec(method="gd+ext", dataset="large", network="resnet-32", epoch_factor=0.001, **sizes)
    result = run_trial(spec, data, MemoryStream(pixels))
    assert [len(stage.hits) for stage in result.stages] == [1, 2]
    assert result.stages[1].samples.is_ood.sum() == 11  # 0.7 of 12 + 4 labelled images


def test_a_trial_leaves_the_global_generators_alone(tiny_data, tiny_stream):
    results = []
    for disturbance in (1, 2):
        torch.manual_seed(disturbance)
        np.random.seed(disturbance)
        before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()
        results.append(run_trial(tiny_spec(method="gd+ext"), tiny_data, tiny_stream))
        assert torch.equal(torch.get_rng_state(), before)
        assert (np.random.get_state()[1] == numpy_before).all()
    assert [content(s) for s in results[0].stages] == [content(s) for s in results[1].stages]


def test_methods_of_one_kind_share_their_first_model(tiny_data, tiny_stream):
    def first(name):
        return run(tiny_spec(method=name), tiny_data, tiny_stream, last_stage=1)[1][0]

    firsts = {name: first(name) for name in ("gd", "lwf", "oracle")}
    assert same_weights(firsts["gd"], firsts["lwf"])
    assert same_weights(firsts["gd"], firsts["oracle"])
    assert len({checkpoint.first_model_id for checkpoint in firsts.values()}) == 1
    calibrated = {name: first(name) for name in ("gd+ext", "lwf+ext")}
    assert same_weights(*calibrated.values())
    assert not same_weights(calibrated["gd+ext"], firsts["gd"])
    uncalibrated = first("teacher-cls")
    assert same_weights(uncalibrated, firsts["gd"])
    assert uncalibrated.first_model_id == firsts["gd"].first_model_id

    # Continuing another method's first stage is the same as running one's own.
    spec = tiny_spec(method="gd")
    shared = run_trial(spec, tiny_data, tiny_stream, resume=firsts["lwf"])
    own = run_trial(spec, tiny_data, tiny_stream)
    assert [content(s) for s in shared.stages] == [content(s) for s in own.stages]


def test_head_only_fine_tuning_leaves_shared_parameters_and_runs_no_backward_there(tiny_data, tiny_stream, monkeypatch):
    seen = []
    fine_tune = Distillation.fine_tune

    def watched(self, stage, step, model, previous, teacher):
        shared = {name: value.clone() for name, value in model.named_parameters() if "head" not in name}
        head, statistics = model.head.weight.clone(), model.backbone.norm.running_mean.clone()
        model.zero_grad(set_to_none=True)
        fine_tune(self, stage, step, model, previous, teacher)
        assert all(torch.equal(dict(model.named_parameters())[name], value) for name, value in shared.items())
        assert all(p.grad is None for name, p in model.named_parameters() if "head" not in name)
        assert not torch.equal(model.head.weight, head)
        assert not torch.equal(model.backbone.norm.running_mean, statistics)  # it stays in training mode
        seen.append(stage.number)

    monkeypatch.setattr(Distillation, "fine_tune", watched)
    run_trial(tiny_spec(method="gd+ext"), tiny_data, tiny_stream)
    assert seen == [2, 3]


def test_the_model_starts_from_the_previous_model(tiny_data):
    """With a learning rate that moves nothing, the shared part of every stage is that of the first."""
    spec = tiny_spec(method="gd", learning_rate=1e-30, weight_decay=0.0)
    _, checkpoints = run(spec, tiny_data, None)
    names = [name for name in checkpoints[0].weights if "running" not in name and "num_batches" not in name]
    for checkpoint in checkpoints[1:]:
        for name in names:
            old = checkpoints[0].weights[name]
            torch.testing.assert_close(checkpoint.weights[name][: len(old)], old, rtol=0, atol=1e-25)


def test_the_references_of_each_training(tiny_data, tiny_stream, monkeypatch):
    """Which models are distilled: E2E fine-tunes from a copy of M, FT-DSet and GD keep P and C."""
    seen, references_of = [], []
    build, fit = Distillation._loss, Stage.fit

    def watched_loss(self, objective, previous, teacher, **options):
        references_of[:] = [previous, teacher]
        return build(self, objective, previous, teacher, **options)

    def watched_fit(self, step, network, loss, indices, parameters=None):
        if step.name != "teacher":
            previous, teacher = references_of
            start = {name: value.clone() for name, value in network.state_dict().items()}
            copied = all(torch.equal(value, start[name]) for name, value in previous.state_dict().items())
            external = int((self.labels[torch.from_numpy(indices)] < 0).sum())
            seen.append((step.name, copied, teacher is not None, previous.num_classes, external > 0))
        return fit(self, step, network, loss, indices, parameters)

    monkeypatch.setattr(Distillation, "_loss", watched_loss)
    monkeypatch.setattr(Stage, "fit", watched_fit)

    def references(method, convention="paper"):
        seen.clear()
        run_trial(tiny_spec(method=method, num_classes=4, convention=convention), tiny_data, tiny_stream)
        return seen[-1]

    assert references("e2e+ext") == ("fine-tune", True, False, 4, False)  # external data is dropped
    assert references("balance-dset") == ("fine-tune", False, True, 2, False)
    assert references("gd+ext") == ("fine-tune", False, True, 2, True)
    assert references("ref-p") == ("fine-tune", False, False, 2, True)
    assert references("ref-p", "released") == ("fine-tune", True, False, 4, True)
    assert references("lwf+ext") == ("model", False, False, 2, True)


def test_what_the_teacher_learns_from(tiny_data, tiny_stream, monkeypatch):
    """With the confidence loss all images, without it the current task's only; it starts from P."""
    seen = []
    fit = Stage.fit

    def watched(self, step, network, loss, indices, parameters=None):
        if step.name == "teacher" and self.number == 2:
            labels = self.labels[torch.from_numpy(indices)]
            start = [parameter.detach().clone() for parameter in network.parameters()]
            seen.append((set(labels.unique().tolist()), start))
        return fit(self, step, network, loss, indices, parameters)

    monkeypatch.setattr(Stage, "fit", watched)
    checkpoints = {}
    for method in ("gd", "gd+ext", "teacher-dst"):
        _, checkpoints[method] = run(tiny_spec(method=method, num_classes=4), tiny_data, tiny_stream)
    assert [labels for labels, _ in seen] == [{0, 1, 2, 3}, {-1, 0, 1, 2, 3}, {2, 3}]
    for (_, start), saved in zip(seen, checkpoints.values(), strict=True):
        moved = ("running", "num_batches", "head")  # what batches count, and rows for new classes
        shared = {name: value for name, value in saved[0].weights.items() if not any(word in name for word in moved)}
        assert len(start) == len(shared) + 2  # weight and bias of the head
        assert all(map(torch.equal, start, shared.values()))


def test_progress_is_told_to_the_end(tiny_data, tiny_stream):
    told = {}
    run_trial(
        tiny_spec(method="gd+ext"),
        tiny_data,
        tiny_stream,
        on_progress=lambda stage, step, done, total: told.__setitem__((stage, step), (done, total)),
    )
    assert set(told) == {(1, "teacher"), (1, "evaluate")} | {
        (stage, step) for stage in (2, 3) for step in ("score", "teacher", "model", "fine-tune", "evaluate")
    }
    assert all(done == total for done, total in told.values())


def test_scoring_uses_the_previous_model_and_its_classes(tiny_data, tiny_stream):
    seen = []

    def spy(job, on_images):
        seen.append((job.model.num_classes, job.plan.num_classes, job.window.length))
        return score_in_process(job, on_images)

    run_trial(tiny_spec(method="gd+ext"), tiny_data, tiny_stream, scorer=spy)
    assert seen == [(2, 2, 60), (4, 4, 60)]


def test_released_data_weighting_counts_external_images_of_previous_classes(tiny_data, tiny_stream, monkeypatch):
    counts = {}
    count = Distillation._class_counts

    def watched(self, stage, indices, **options):
        result = count(self, stage, indices, **options)
        counts[self.spec.convention, stage.number] = (result.tolist(), stage.external_previous)
        return result

    monkeypatch.setattr(Distillation, "_class_counts", watched)
    for convention in ("paper", "released"):
        run_trial(tiny_spec(method="balance-dw", convention=convention), tiny_data, tiny_stream)
    plain, _ = counts["paper", 2]
    extended, external = counts["released", 2]
    assert plain[2:] == extended[2:] == [8, 8]
    assert sum(plain[:2]) == 7
    assert external > 0
    assert [b - a for a, b in zip(plain[:2], extended[:2], strict=True)] == pytest.approx([external / 2] * 2)
