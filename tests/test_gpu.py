"""The same trials on a GPU; skipped where there is none."""

import pickle
import warnings

import numpy as np
import pytest
import torch
from rich.console import Console

from gd_ray.arithmetic import set_arithmetic
from gd_ray.checks import check_device
from gd_ray.conventions import convention_named
from gd_ray.cuda_graph import WARM_UP, graphed
from gd_ray.data.augmentation import TrainingBatches, augment
from gd_ray.data.pixels import Statistics
from gd_ray.errors import UserError
from gd_ray.evaluation import in_batches
from gd_ray.failures import explain
from gd_ray.hardware import describe
from gd_ray.learner import Stage
from gd_ray.learners.distillation import Distillation
from gd_ray.networks.classifier import new_classifier
from gd_ray.philox import PhiloxDropout
from gd_ray.seeding import torch_seed
from gd_ray.spec import PRECISIONS
from gd_ray.store import read_rows
from gd_ray.trial import run_trial
from gd_ray.wild.sampling import plan_sampling
from gd_ray.wild.scoring import ScoringJob, score_in_process
from gd_ray.wild.stream import Window
from tests.helpers.batches import sample_augmentation
from tests.helpers.stages import make_stage
from tests.helpers.tiny import tiny_spec
from trials.cost import measure_rate
from trials.experiments import small_spec
from trials.resources import Cluster
from trials.runner import run_experiment

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]
STATISTICS = Statistics((0.5, 0.4, 0.3), (0.2, 0.25, 0.3))


def numbers(seed=0):
    return torch.Generator().manual_seed(seed)


def images(count):
    return torch.randint(0, 256, (count, 32, 32, 3), dtype=torch.uint8, generator=numbers())


@pytest.fixture(params=PRECISIONS)
def precision(request):
    try:
        check_device(tiny_spec(precision=request.param), "cuda")
    except UserError as error:
        pytest.skip(str(error))
    return request.param


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


def test_compiled_batches_agree_and_are_named(monkeypatch):
    load = batches_of("cuda").loader()
    monkeypatch.setenv("GD_RAY_COMPILE", "1")
    compiled = batches_of("cuda").loader()
    for draw in batches_of("cuda"):
        (expected, labels), (inputs, same_labels) = load(*draw), compiled(*draw)
        assert torch.equal(labels, same_labels)
        difference = (inputs - expected).abs()
        assert difference.max() < 2.5 / 255 / min(STATISTICS.std)  # a pixel cut one lower, then made brighter
        assert (difference > 1e-5).float().mean() < 1e-3
    assert describe.__wrapped__("cuda")["arithmetic"].endswith("compiled batches")


def test_inference_on_a_gpu_agrees():
    model = new_classifier("wrn-16-2", 0.3, 20, numbers()).eval()
    on_cpu = in_batches(model.logits, model, images(300), STATISTICS)
    on_gpu = in_batches(model.cuda().logits, model, images(300), STATISTICS).cpu()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-3, atol=1e-3)  # IEEE float32 on both


@pytest.mark.parametrize("graph", ["0", "1"])
@pytest.mark.parametrize("method", ["gd+ext", "e2e+ext"])
def test_an_update_waits_for_nothing(method, graph, monkeypatch):
    """No step of a training synchronizes with the device; torch raises where one does."""
    monkeypatch.setenv("GD_RAY_CUDA_GRAPH", graph)
    spec = tiny_spec(method=method, batch_size=32, epoch_factor=0.1)
    labels = torch.cat([torch.arange(2, 4).repeat(32), torch.arange(2).repeat(16), torch.full((96,), -1)])
    stage = make_stage(spec, 2, images(len(labels)).cuda(), labels.cuda(), STATISTICS, 64, 96)
    previous = new_classifier("wrn-10-1", 0.3, 2, numbers()).cuda()
    checked = []

    def watched(update, device):
        step, constants = graphed(update, device), []

        def call(*inputs, constant):
            constants.append(constant)
            if len(constants) <= WARM_UP or constants[-2] != constant:  # a recording waits
                step(*inputs, constant=constant)
                return
            torch.cuda.set_sync_debug_mode("error")
            try:
                step(*inputs, constant=constant)
            finally:
                torch.cuda.set_sync_debug_mode("default")
            checked.append(constant)

        return call

    monkeypatch.setattr("gd_ray.training.graphed", watched)
    Distillation(spec).train(stage, previous)
    assert len(checked) > 20


def weights_of(spec, data, stream, device="cuda"):
    kept = []
    run_trial(spec, data, stream, device=device, on_stage=lambda _, checkpoint: kept.append(checkpoint))
    return kept[-1].weights


def test_a_graph_gives_the_bytes_of_the_eager_loop_and_a_trial_repeats(precision, tiny_data, tiny_stream, monkeypatch):
    spec = tiny_spec(precision=precision, epoch_factor=0.05)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message="this training runs without a CUDA graph")
        first, again = (weights_of(spec, tiny_data, tiny_stream) for _ in range(2))
    monkeypatch.setenv("GD_RAY_CUDA_GRAPH", "0")
    eager = weights_of(spec, tiny_data, tiny_stream)
    for name, value in first.items():
        assert torch.equal(value, again[name])
        assert torch.equal(value, eager[name])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
def test_a_trial_on_the_second_gpu_gives_the_bytes_of_the_first(tiny_data, tiny_stream):
    if len({torch.cuda.get_device_name(device) for device in range(2)}) > 1:
        pytest.skip("the two devices are of different kinds")
    first, second = (weights_of(tiny_spec(), tiny_data, tiny_stream, device) for device in ("cuda:0", "cuda:1"))
    assert all(torch.equal(value, second[name]) for name, value in first.items())


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


@pytest.mark.parametrize("method", ["icarl+ext", "bic", "wa+ext", "dmc", "foster+ext", "plcil"])
def test_other_learners_on_a_gpu(method, tiny_data, tiny_stream):
    spec = tiny_spec(method=method, coreset_size=20)
    result = run_trial(spec, tiny_data, tiny_stream, device="cuda")
    assert len(result.stages) == spec.num_tasks
    assert all(np.isfinite(list(stage.losses.values())).all() for stage in result.stages)


def test_units_that_are_read_ahead_give_the_candidates_of_one_after_another(tiny_stream):
    spec = tiny_spec(method="gd+ext")
    plan = plan_sampling(spec.method, convention_named("paper"), size=20, ood_ratio=0.5, num_classes=4)
    model = new_classifier("wrn-10-1", 0.0, 4, numbers()).cuda().eval()
    window = Window(0, len(tiny_stream), len(tiny_stream))
    job = ScoringJob(model, STATISTICS, tiny_stream, window, plan)
    units = job.units()
    assert len(units) > 2
    for ahead, unit in zip(job.score_units(units), units, strict=True):
        assert pickle.dumps(ahead) == pickle.dumps(job.select(unit, tiny_stream.load(unit)))


def test_determinism_has_a_switch(monkeypatch):
    set_arithmetic("cuda")
    assert torch.are_deterministic_algorithms_enabled()
    monkeypatch.setenv("GD_RAY_DETERMINISTIC", "0")
    set_arithmetic("cuda")
    assert not torch.are_deterministic_algorithms_enabled()
    monkeypatch.undo()
    set_arithmetic("cuda")
    assert torch.backends.cudnn.deterministic


def test_memory_that_is_not_there_is_named():
    with pytest.raises(torch.OutOfMemoryError) as error:
        torch.empty(1 << 50, dtype=torch.uint8, device="cuda")
    assert explain(error.value, gpus=0.5, batch="batches of 8 images in a trial").startswith(
        "the GPU ran out of memory for batches of 8 images in a trial with 0.5 of it; raise --gpus"
    )


def test_plan_measures_the_gpu():
    rate, source, devices = measure_rate("wrn-10-1", seconds=0.1)
    assert rate > 0
    assert torch.cuda.get_device_name() in source
    assert devices == torch.cuda.device_count()


def test_a_run_on_ray_uses_the_gpu_and_its_rows_name_it(tmp_path):
    """Two trials with a scorer each on the GPUs of this machine, whole or shared; float32 prints what tf32 saves."""
    import ray

    small = {"num_classes": 6, "task_size": 2, "train_per_class": 8, "test_per_class": 4, "coreset_size": 8}
    size = {"stream": "glyphs:600", "window": 200, "batch_size": 8, "epoch_factor": 0.01}
    specs = [small_spec("gd+ext", seed, **small, **size) for seed in range(2)]
    printed = Console(record=True, width=300)
    ray.shutdown()
    try:
        cluster = Cluster(storage=str(tmp_path / "storage"), scorers=1)
        assert run_experiment("mine", specs, str(tmp_path / "results"), cluster, printed) == []
    finally:
        ray.shutdown()
    rows = read_rows(str(tmp_path / "results"), "trials")[0].to_pylist()
    assert [row["device"] for row in rows] == ["cuda"] * 2
    assert all(torch.cuda.get_device_name() in row["gpu"] for row in rows)
    assert ("precision=tf32 takes" in printed.export_text()) == (torch.cuda.get_device_capability()[0] >= 8)


@pytest.mark.parametrize("method", ["gd+ext", "e2e", "oracle"])
def test_a_whole_trial_on_a_gpu(method, precision, tiny_data, tiny_stream, monkeypatch):
    spec = tiny_spec(method=method, precision=precision)
    result = run_trial(spec, tiny_data, tiny_stream, device="cuda", scorer=score_in_process)
    monkeypatch.setattr(Stage, "_dropout_rng", dropout_of_a_gpu)
    on_cpu = run_trial(tiny_spec(method=method), tiny_data, tiny_stream)
    for mine, theirs in zip(result.stages, on_cpu.stages, strict=True):
        assert mine.totals == theirs.totals
        assert mine.images == theirs.images
        assert np.isfinite(list(mine.losses.values())).all()
    first, first_on_cpu = result.stages[0].losses, on_cpu.stages[0].losses
    # Draws are the same, rounding differs, and a few updates add it up; bfloat16 has three digits.
    assert first == pytest.approx(first_on_cpu, rel=0.05 if precision == "bfloat16" else 5e-3)


def dropout_of_a_gpu(stage, purpose):
    return PhiloxDropout(torch_seed(stage.spec.seed, stage.number, purpose), stage.device)


def test_a_killed_trial_goes_on_upon_a_gpu(tiny_data, tiny_stream):
    kept = []
    spec = tiny_spec(method="gd+ext")
    run_trial(spec, tiny_data, tiny_stream, device="cuda", last_stage=2, on_stage=lambda _, c: kept.append(c))
    assert all(value.device.type == "cpu" for value in kept[-1].weights.values())
    assert len(run_trial(spec, tiny_data, tiny_stream, device="cuda", resume=kept[-1]).stages) == 3
