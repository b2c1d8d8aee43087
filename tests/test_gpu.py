"""The same trials on a GPU; skipped where there is none."""

import warnings

import numpy as np
import pytest
import torch

from gd_ray.cuda_graph import WARM_UP, GraphedStep
from gd_ray.data.augmentation import TrainingBatches, augment, sample_augmentation
from gd_ray.data.pixels import Statistics
from gd_ray.evaluation import in_batches
from gd_ray.hardware import describe
from gd_ray.learners.distillation import Distillation
from gd_ray.networks.classifier import new_classifier
from gd_ray.philox import PhiloxDropout
from gd_ray.trial import run_trial
from gd_ray.wild.scoring import score_in_process
from tests.helpers.stages import make_stage
from tests.helpers.tiny import tiny_spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STATISTICS = Statistics((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def numbers(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count):
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=numbers())


def batches_of(device):
    return TrainingBatches(
        images=images(128).to(device),
        labels=torch.zeros(128, dtype=torch.int64, device=device),
        statistics=STATISTICS,
        indices=torch.arange(128),
        batch_size=32,
        updates=8,
        shuffle_rng=numbers(),
        augmentation_rng=numbers(1),
    )


def test_a_gpu_has_the_same_batches_and_augments_them_alike():
    pixels = images(128)
    for mine, theirs in zip(
        batches_of("cpu"),
        batches_of("cuda"),
        strict=True,
    ):
        assert all(torch.equal(a, b.cpu()) for a, b in zip(mine, theirs, strict=True))
    on_cpu = augment(pixels, sample_augmentation(128, 32, numbers()))
    on_gpu = augment(pixels.cuda(), sample_augmentation(128, 32, numbers(), "cuda")).cpu()
    difference = (on_cpu - on_gpu).abs()
    assert difference.max() <= 1  # a product that falls on a whole number may be cut to the one below
    assert (difference > 0).float().mean() < 1e-3


def test_inference_on_a_gpu_agrees():
    model = new_classifier("wrn-16-2", 0.3, 20, numbers()).eval()
    on_cpu = in_batches(model.logits, model, images(300), STATISTICS)
    on_gpu = in_batches(model.cuda().logits, model, images(300), STATISTICS).cpu()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=1e-3)  # IEEE float32 on both


@pytest.mark.parametrize("method", ["gd+ext", "e2e+ext"])
def test_an_update_waits_for_nothing(method, monkeypatch):
    """No step of a training synchronizes with the device; torch raises where one does."""
    spec = tiny_spec(method=method, batch_size=32, epoch_factor=0.1)
    labels = torch.cat([torch.arange(2, 4).repeat(32), torch.arange(2).repeat(16), torch.full((96,), -1)])
    stage = make_stage(spec, 2, images(len(labels)).cuda(), labels.cuda(), STATISTICS, 64, 96)
    previous = new_classifier("wrn-10-1", 0.3, 2, numbers()).cuda()
    real, checked = GraphedStep.__call__, []

    def watched(step, *inputs, constant):
        warm = step._warm_updates == WARM_UP and step._constant == constant  # not while a graph is recorded
        torch.cuda.set_sync_debug_mode("error" if warm else "default")
        real(step, *inputs, constant=constant)
        torch.cuda.set_sync_debug_mode("default")
        checked.extend([1] * warm)

    monkeypatch.setattr(GraphedStep, "__call__", watched)
    Distillation(spec).train(stage, previous)
    assert len(checked) > 20


def weights_of(spec, data, stream):
    kept = []
    run_trial(spec, data, stream, device="cuda", on_stage=lambda _, checkpoint: kept.append(checkpoint))
    return kept[-1].weights


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_graph_gives_the_bytes_of_the_eager_loop_and_a_trial_repeats(precision, tiny_data, tiny_stream, monkeypatch):
    spec = tiny_spec(precision=precision, epoch_factor=0.05)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # a step that cannot be recorded
        first, again = (weights_of(spec, tiny_data, tiny_stream) for _ in range(2))
    monkeypatch.setenv("GD_RAY_CUDA_GRAPH", "0")
    eager = weights_of(spec, tiny_data, tiny_stream)
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, eager[name])


def test_dropout_draws_the_words_of_the_cpu():
    for device_masks in zip(*(masks_of(device) for device in ("cpu", "cuda")), strict=True):
        assert torch.equal(*device_masks)


def masks_of(device):
    rng = PhiloxDropout(3, device)
    for _ in range(2):
        rng.next_update()
        for size in (12, 1_000_001):
            yield rng.mask(size, 45875, torch.float32).cpu()


def test_the_row_of_a_trial_names_its_gpu():
    found = describe("cuda", "float32")
    assert found["arithmetic"] == "IEEE float32, deterministic"
    assert torch.cuda.get_device_name() in found["gpu"]
    assert None not in found.values()


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("method", ["gd+ext", "e2e", "oracle"])
def test_a_whole_trial_on_a_gpu(method, precision, tiny_data, tiny_stream):
    spec = tiny_spec(method=method, precision=precision)
    result = run_trial(spec, tiny_data, tiny_stream, device="cuda", scorer=score_in_process)
    on_cpu = run_trial(tiny_spec(method=method), tiny_data, tiny_stream)
    for mine, theirs in zip(result.stages, on_cpu.stages, strict=True):
        assert mine.totals == theirs.totals
        assert mine.images == theirs.images
        assert np.isfinite(list(mine.losses.values())).all()
    first, first_on_cpu = result.stages[0].losses, on_cpu.stages[0].losses
    assert first == pytest.approx(first_on_cpu, rel=0.1)  # rounding differs, and a few updates add it up


def test_a_killed_trial_goes_on_upon_a_gpu(tiny_data, tiny_stream):
    kept = []
    spec = tiny_spec(method="gd+ext")
    run_trial(spec, tiny_data, tiny_stream, device="cuda", last_stage=2, on_stage=lambda _, c: kept.append(c))
    assert all(value.device.type == "cpu" for value in kept[-1].weights.values())
    assert len(run_trial(spec, tiny_data, tiny_stream, device="cuda", resume=kept[-1]).stages) == 3
