"""The same trials on a GPU; skipped where there is none."""

import numpy as np
import pytest
import torch
from tiny import tiny_spec

from gd_ray.data.loader import augmented, batches, draw_augmentation
from gd_ray.data.pixels import Statistics
from gd_ray.inference import predict
from gd_ray.network import WideResNet
from gd_ray.progress import silent
from gd_ray.stage import Stage, StageData
from gd_ray.training import Pool
from gd_ray.trial import run_trial
from gd_ray.wild.scoring import score_in_process

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STATISTICS = Statistics((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def numbers(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count):
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=numbers())


def test_a_gpu_has_the_same_batches_and_augments_them_alike():
    pixels = images(128)
    for mine, theirs in zip(
        batches(torch.arange(128), 32, 8, numbers()), batches(torch.arange(128), 32, 8, numbers(), "cuda"), strict=True
    ):
        assert torch.equal(mine, theirs.cpu())
    on_cpu = augmented(pixels, draw_augmentation(128, numbers()))
    on_gpu = augmented(pixels.cuda(), draw_augmentation(128, numbers(), "cuda")).cpu()
    difference = (on_cpu - on_gpu).abs()
    assert difference.max() <= 1  # a product that falls on a whole number may be cut to the one below
    assert (difference > 0).float().mean() < 1e-3


def test_inference_on_a_gpu_agrees():
    network = WideResNet(16, 2, 0.3, 20, numbers()).eval()
    on_cpu = predict(network, images(300), STATISTICS)
    on_gpu = predict(network.cuda(), images(300), STATISTICS).cpu()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=2e-2, atol=2e-2)  # convolutions in TF32


@pytest.mark.parametrize("method", ["gd+ext", "e2e+ext"])
def test_an_update_waits_for_nothing(method, monkeypatch):
    """No step of a training synchronises with the device; torch raises where one does."""
    import gd_ray.training

    spec = tiny_spec(method=method, batch_size=32, epoch_factor=0.1)
    labels = torch.cat([torch.arange(2, 4).repeat(32), torch.arange(2).repeat(16), torch.full((96,), -1)])
    pool = Pool(images(len(labels)).cuda(), labels.cuda(), STATISTICS)
    places = np.split(np.arange(len(labels)), [64, 96])
    stage = Stage(spec, 2, StageData(pool, *places, 30), silent)
    previous = WideResNet(10, 1, 0.3, 2, numbers()).cuda()
    real, updates, checked = torch.optim.SGD.step, [], []

    def watched(optimiser, *arguments, **named):
        result = real(optimiser, *arguments, **named)
        updates.append(1)
        if len(updates) > 2:  # the first ones set up kernels and memory
            torch.cuda.set_sync_debug_mode("error")
            checked.append(1)
        return result

    def schedule(*arguments, **named):
        torch.cuda.set_sync_debug_mode("default")  # between two trainings
        updates.clear()
        return plan(*arguments, **named)

    def batches(*arguments, **named):
        yield from drawn(*arguments, **named)
        torch.cuda.set_sync_debug_mode("default")  # the sums of the losses leave the device after the last update

    plan, drawn = gd_ray.training.schedule, gd_ray.training.batches
    monkeypatch.setattr(torch.optim.SGD, "step", watched)
    monkeypatch.setattr(gd_ray.training, "schedule", schedule)
    monkeypatch.setattr(gd_ray.training, "batches", batches)
    try:
        teacher = stage.teacher(previous) if spec.trains_teacher else None
        stage.fine_tuned(stage.model(previous, teacher), previous, teacher)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert len(checked) > 20


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("method", ["gd+ext", "e2e", "oracle"])
def test_a_whole_trial_on_a_gpu(method, precision, tiny_data, tiny_stream):
    spec = tiny_spec(method=method, precision=precision)
    result = run_trial(spec, tiny_data, tiny_stream, device="cuda", scorer=score_in_process)
    on_cpu = run_trial(spec, tiny_data, tiny_stream)
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
