"""The path of a GPU on a machine without one: fake CUDA tensors, watched for all that would be wrong or slow there."""

import dataclasses
import threading
from unittest import mock

import numpy as np
import pytest
import torch

import gd_ray.learner
import gd_ray.objective
import gd_ray.training
from gd_ray.conventions import convention_named
from gd_ray.cuda_graph import GraphedStep
from gd_ray.data import augmentation
from gd_ray.data.pixels import Statistics
from gd_ray.learners.distillation import Distillation
from gd_ray.methods import METHODS
from gd_ray.networks import classifier
from gd_ray.philox import PhiloxDropout
from gd_ray.training import ReferenceLoss
from gd_ray.wild.sampling import plan_sampling
from gd_ray.wild.scoring import ScoringJob
from gd_ray.wild.stream import MemoryStream, Window
from tests.helpers.fake_gpu import GpuDefectError, fake_gpu
from tests.helpers.fake_training import (
    ALL,
    CURRENT,
    LABELLED,
    STATISTICS,
    fake_stage,
    small_spec,
    train_on_fake_gpu,
    waits_of_evaluation,
    waits_of_scoring,
    watched_updates,
)

pytestmark = [
    pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a real GPU"),
    pytest.mark.filterwarnings("error:this training runs without a CUDA graph"),
]

CEILINGS = {"teacher": 270, "model": 400, "fine-tune": 350}
"""Kernels of an update of gd+ext, WRN-16-2."""


@pytest.fixture(autouse=True)
def short_warm_up(monkeypatch):
    monkeypatch.setattr("gd_ray.cuda_graph.WARM_UP", 1)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_trains_scores_and_tests_without_needless_waits(name):
    method = METHODS[name]
    # Each training has two updates or more, also a teacher that learns from the current task alone.
    few = method.balancing == "balanced set" or not method.external
    sizes, changes = (CURRENT, LABELLED, ALL), {"epoch_factor": 1 / 600 if method.confidence else 1 / 200}
    if method.learner == "bic":  # it holds a tenth of its exemplars out, at least one of each class
        sizes, changes = (32, 132, 192), {"coreset_size": 200, "epoch_factor": 1 / 600}
    if method.learner == "foster":  # its compression is shorter than other trainings
        changes = {"epoch_factor": 1 / 300}
    spec = small_spec(name, fine_tune_factor=60 if few else 10, **changes)
    with fake_stage(spec, sizes) as (watch, learner, stage, previous):
        with watched_updates(watch) as trainings:
            model = learner.train(stage, previous)
        assert trainings
        assert watch.graphs >= len(trainings)
        assert watch.replays >= watch.graphs
        learner.select_coreset(stage, model)
        if method.external:
            waits, units = waits_of_scoring(watch, spec, model)
            assert waits == ["a tensor leaves the GPU"] * len(units)
        assert waits_of_evaluation(watch, model) == ["a tensor leaves the GPU"] * (1 + model.has_own_scores())


@pytest.mark.parametrize("method", ["gd+ext", "dr", "wa+ext", "icarl", "dmc", "foster", "plcil"])
def test_the_released_convention_and_bfloat16_too(method):
    epochs = {"dmc": 1 / 200, "foster": 1 / 300}.get(method, 1 / 600)
    spec = small_spec(method, convention="released", precision="bfloat16", epoch_factor=epochs, fine_tune_factor=10)
    watch, trainings = train_on_fake_gpu(spec)
    assert watch.graphs >= len(trainings)
    if METHODS[method].learner != "distillation":
        # The nine convolutions of each frozen network were cast before the training: 40 casts or more otherwise. PLCiL
        # casts those of M in each of its three passes.
        assert trainings[-1][0]["_to_copy"] <= (77 if method == "plcil" else 33)


def test_an_update_keeps_below_its_ceiling_of_kernels():
    spec = small_spec(network="wrn-16-2", num_classes=100, epoch_factor=1 / 600, fine_tune_factor=10)
    with mock.patch("gd_ray.cuda_graph.WARM_UP", 2):
        _, trainings = train_on_fake_gpu(spec)
    found = {name: sum(updates[1].values()) for name, updates in zip(CEILINGS, trainings, strict=True)}
    assert all(found[name] <= ceiling for name, ceiling in CEILINGS.items()), found
    assert trainings[1][1]["cudnn_batch_norm"] == 3 * 13  # the kernels that CUDA chooses
    assert all(updates[1]["_philox_randint_"] == 1 for updates in trainings)  # one draw for all dropouts


def test_a_unit_is_copied_once_and_the_next_one_read_meanwhile(monkeypatch):
    reads, real_select = [threading.Event() for _ in range(4)], ScoringJob.select

    class Noted(MemoryStream):
        def load(self, unit):
            reads[unit.group].set()
            return super().load(unit)

    def select(job, unit, images):
        assert reads[min(unit.group + 1, 3)].wait(10)
        return real_select(job, unit, images)

    monkeypatch.setattr(ScoringJob, "select", select)
    spec = small_spec()
    with fake_stage(spec) as (watch, _, _, previous):
        stream = Noted(np.zeros((4 * 300, 32, 32, 3), np.uint8), block=300)
        plan = plan_sampling(spec.method, convention_named("paper"), size=20, ood_ratio=0.5, num_classes=10)
        job = ScoringJob(previous, STATISTICS, stream, Window(0, 1200, 1200), plan)
        units = job.units()
        watch.log.clear()
        list(job.score_units(units))
        copies = [
            out
            for name, _, tensors, out in watch.log
            if name == "_to_copy" and tensors[0].device.type == "cpu" and tensors[0].dim() == 4
        ]
    assert [unit.group for unit in units] == [0, 1, 2, 3]
    assert len(copies) == 4


def test_a_gpu_compiles_its_batches_on_request(monkeypatch):
    compiled = []

    def compile_function(function, **options):
        compiled.append(options)
        return function

    monkeypatch.setattr(torch, "compile", compile_function)
    train_on_fake_gpu(small_spec(epoch_factor=1 / 600))
    assert compiled == []
    monkeypatch.setenv("GD_RAY_COMPILE", "1")
    train_on_fake_gpu(small_spec(epoch_factor=1 / 600))
    assert compiled == [{"fullgraph": True}] * 3  # teacher, model, fine-tuning


# Twelve defects, planted one at a time; each must be found. The first seven raise errors of fake tensors or waits.


def luminance_on_the_cpu(patch):
    real = augmentation.constants_for

    def constants_for(*arguments):
        return dataclasses.replace(real(*arguments), luminance=torch.tensor([1.0, 2.0, 3.0]))

    patch(augmentation, "constants_for", clearable(constants_for))


def normalization_on_the_cpu(patch):
    patch(augmentation, "normalization", clearable(lambda statistics, device: (torch.ones(3), torch.ones(3))))


def new_head_on_the_cpu(patch):
    real = classifier._new_head

    def new_head(old, rows, rng, kept):
        head = real(old, rows, rng, kept)
        return torch.nn.Linear(head.in_features, head.out_features)

    patch(classifier, "_new_head", new_head)


def item_in_a_mean(patch):
    patch(
        gd_ray.objective,
        "masked_mean",
        lambda x, mask=None, weights=None: x.sum() / (1 if mask is None else mask.sum().item()),
    )


def branch_on_a_tensor(patch):
    def masked_mean(losses, mask=None, weights=None):
        return losses.mean() if mask is None or mask.any() else losses.sum()

    patch(gd_ray.objective, "masked_mean", masked_mean)


def boolean_index(patch):
    patch(gd_ray.objective, "masked_mean", lambda x, mask=None, weights=None: (x if mask is None else x[mask]).mean())


def loss_read_in_every_update(patch):
    def call(self, *arguments, real=ReferenceLoss.__call__):
        terms = real(self, *arguments)
        float(terms["cls"])
        return terms

    patch(ReferenceLoss, "__call__", call)


def dropout_from_a_cpu_generator(patch):
    patch(gd_ray.learner.Stage, "_dropout_rng", lambda self, purpose: torch.Generator().manual_seed(0))


def batch_index_on_the_cpu(patch):
    real = augmentation.to_device

    def to_device(values, device):
        return values if values.dim() == 3 and values.shape[1] == 5 else real(values, device)

    patch(augmentation, "to_device", to_device)
    patch(gd_ray.training, "graphed", lambda step, device: lambda *inputs, constant: step(*inputs))


def draws_from_pageable_memory(patch):
    patch(augmentation, "to_device", lambda values, device: values.to(device))


def labels_on_the_cpu(patch):
    real = gd_ray.learner.TrainingBatches

    def batches(labels, **named):
        return real(labels=torch.empty(labels.shape, dtype=labels.dtype), **named)

    patch(gd_ray.learner, "TrainingBatches", batches)


def class_counts_on_the_cpu(patch):
    patch(Distillation, "_class_counts", lambda self, stage, *_, **__: torch.ones(sum(stage.task_sizes)))


def clearable(function):
    function.cache_clear = lambda: None
    return function


PLANTED = {
    luminance_on_the_cpu: "device",
    normalization_on_the_cpu: "device",
    new_head_on_the_cpu: "device",
    item_in_a_mean: "a number leaves the GPU",
    branch_on_a_tensor: "a number leaves the GPU",
    boolean_index: "boolean index",
    loss_read_in_every_update: "a number leaves the GPU",
    dropout_from_a_cpu_generator: "draws from a generator",
    batch_index_on_the_cpu: "index from the CPU",
    draws_from_pageable_memory: "copy from pageable memory",
    labels_on_the_cpu: "CPU tensor by a GPU index",
    class_counts_on_the_cpu: "copy from pageable memory",
}


@pytest.mark.parametrize("plant", PLANTED, ids=lambda plant: plant.__name__)
def test_a_planted_defect_is_found(plant, monkeypatch):
    plant(monkeypatch.setattr)
    with pytest.raises(RuntimeError, match=PLANTED[plant]) as found:
        train_on_fake_gpu(small_spec(epoch_factor=1 / 600))
    if found.type is GpuDefectError:
        assert "/gd_ray/" in str(found.value) or "test_fake_gpu.py:" in str(found.value)  # file and line


# What a CUDA graph cannot record.


def test_streams_and_graphs_are_of_the_device_that_trains():
    seen = []
    with fake_gpu() as watch:
        graphed = GraphedStep(lambda value: seen.append((watch.current, watch.recording)), torch.device("cuda", 1))
        for _ in range(3):
            graphed(torch.zeros(4, device="cuda:1"), constant=0.1)
    assert seen == [(torch.device("cuda", 1), False), (torch.device("cuda", 1), True)]  # warm-up and recording
    assert watch.current is None


def recorded(step):
    with fake_gpu() as watch:
        graphed = GraphedStep(step, torch.device("cuda", 0))
        value = torch.zeros(4, device="cuda")
        for _ in range(4):
            graphed(value, constant=0.1)
    return watch


def test_a_step_is_recorded_once_per_learning_rate_and_replayed():
    with fake_gpu() as watch:
        graphed = GraphedStep(lambda value: value.add_(1), torch.device("cuda", 0))
        for rate in (0.1, 0.1, 0.1, 0.01, 0.01):
            graphed(torch.zeros(4, device="cuda"), constant=rate)
    assert (watch.graphs, watch.replays) == (2, 4)  # the first update warms up


@pytest.mark.parametrize(
    "step",
    [
        pytest.param(lambda value: value.sum().item(), id="wait"),
        pytest.param(lambda value: value + torch.tensor(2.0), id="value of the CPU"),
        pytest.param(lambda value: value + torch.tensor([2.0], device="cuda"), id="allocation by value"),
    ],
)
def test_a_step_that_cannot_be_recorded_runs_eagerly_with_a_warning(step):
    with pytest.warns(UserWarning, match="without a CUDA graph"):
        watch = recorded(step)
    assert watch.replays == 0


@pytest.mark.parametrize("generator", [None, torch.Generator()])
def test_a_draw_that_depends_on_the_gpu_is_a_defect_everywhere(generator):
    with pytest.raises(GpuDefectError, match="generator"):
        recorded(lambda value: value.uniform_(generator=generator))


# Stateless dropout draws.


def test_dropout_words_depend_on_seed_update_and_position_alone():
    def masks(sizes, seed=5, updates=2):
        rng, result = PhiloxDropout(seed, "cpu"), []
        for _ in range(updates):
            rng.next_update()
            result.append([rng.mask(size, 45875, torch.float32).clone() for size in sizes])
        return result

    first, second = masks([40, 1000])
    assert not torch.equal(first[1], second[1])
    assert not torch.equal(masks([40, 1000], seed=6)[0][1], first[1])
    for (whole,), parts in zip(masks([1040]), (first, second), strict=True):  # the same words in one piece
        assert torch.equal(whole, torch.cat(parts))
    kept = torch.cat([mask for update in masks([10**6], updates=1) for mask in update])
    assert (kept > 0).float().mean().item() == pytest.approx(0.7, abs=0.002)
    assert kept.mean().item() == pytest.approx(1, abs=0.003)
    # A stored table: a later torch with other numbers must not pass unseen.
    assert (first[0] > 0).int().tolist() == TABLE


TABLE = [int(bit) for bit in "1011111011010111101111111001111111000100"]


def test_fake_tensors_leave_torch_as_it_was():
    train_on_fake_gpu(small_spec(epoch_factor=1 / 600))
    layer = torch.nn.Linear(3, 2)
    layer(torch.ones(1, 3)).sum().backward()
    assert layer.weight.grad is not None
    assert Statistics((0.5,) * 3, (0.2,) * 3) == STATISTICS
