"""The trainings of a stage on the fake GPU, and the kernels of each update."""

import contextlib
from collections import Counter
from unittest import mock

import numpy as np
import torch

import gd_ray.cuda_graph
import gd_ray.learner
import gd_ray.training
from gd_ray.conventions import convention_named
from gd_ray.data.pixels import Statistics
from gd_ray.evaluation import evaluate
from gd_ray.learners import LEARNERS
from gd_ray.spec import TrialSpec
from gd_ray.wild.sampling import plan_sampling
from gd_ray.wild.scoring import ScoringJob
from gd_ray.wild.stream import MemoryStream, Window
from tests.helpers.fake_gpu import fake_gpu
from tests.helpers.stages import make_stage

STATISTICS = Statistics((0.5,) * 3, (0.2,) * 3)
CURRENT, LABELLED, ALL = 32, 48, 96


def small_spec(method="gd+ext", **changes):
    """A spec of a few updates, all of which run."""
    small = {"network": "wrn-10-1", "batch_size": 16, "epoch_factor": 1 / 300, "num_classes": 30, "coreset_size": 30}
    return TrialSpec(method=method, **{**small, **changes})


@contextlib.contextmanager
def watched_updates(watch):
    """Let every defect inside `fit` raise; yield the kernels of each update, one Counter each, by training."""
    trainings = []

    def fit(*arguments, **named):
        trainings.append([])
        watch.strict = True
        try:
            return real_fit(*arguments, **named)
        finally:
            watch.strict = False

    def call(step, *inputs, constant):
        watch.kernels, replays = Counter(), watch.replays
        real_call(step, *inputs, constant=constant)
        if watch.replays == replays:
            trainings[-1].append(watch.kernels)
        watch.kernels = Counter()

    def means(sums, updates):
        watch.strict = False  # the sums of the losses leave the device after the last update
        return real_means(sums, updates)

    real_fit, real_call = gd_ray.learner.fit, gd_ray.cuda_graph.GraphedStep.__call__
    real_means = gd_ray.training.LossSums.means
    with (
        mock.patch.object(gd_ray.learner, "fit", fit),
        mock.patch.object(gd_ray.cuda_graph.GraphedStep, "__call__", call),
        mock.patch.object(gd_ray.training.LossSums, "means", means),
    ):
        yield trainings


@contextlib.contextmanager
def fake_stage(spec, sizes=(CURRENT, LABELLED, ALL)):
    """Yield the watch, the second stage of a trial on the fake GPU and its previous model."""
    current, labelled, number = sizes
    previous_classes, seen = spec.task_size, 2 * spec.task_size
    known = np.full(number, -1)
    known[:current] = np.arange(current) % spec.task_size + previous_classes
    known[current:labelled] = np.arange(labelled - current) % previous_classes
    assert known.max() < seen
    with fake_gpu() as watch:
        images = torch.empty(number, 32, 32, 3, dtype=torch.uint8, device="cuda")
        labels = torch.empty(number, dtype=torch.int64, device="cuda")
        stage = make_stage(spec, 2, images, labels, STATISTICS, current, labelled)
        # Fake labels have no values; the tests' own have.
        with (
            mock.patch.object(type(stage), "labels_of", lambda _, indices: known[indices]),
            mock.patch("gd_ray.learners.bic.fit_bias", return_value=(1.0, 0.0)),  # it fits values on the CPU
        ):
            learner = LEARNERS.named(spec.method.learner)(spec)
            rng = torch.Generator().manual_seed(0)
            previous = learner.new_model(previous_classes, rng).to("cuda").eval()
            yield watch, learner, stage, previous


def train_on_fake_gpu(spec, sizes=(CURRENT, LABELLED, ALL)):
    """Train one stage; return its watch and the kernels of each update by training."""
    with fake_stage(spec, sizes) as (watch, learner, stage, previous), watched_updates(watch) as trainings:
        learner.select_coreset(stage, learner.train(stage, previous))
    return watch, trainings


def waits_of_scoring(watch, spec, model):
    """Score a window of two units as a method's sampling asks for; return what waited, and the units."""
    stream = MemoryStream(np.zeros((60, 32, 32, 3), np.uint8), block=30)
    convention, classes = convention_named(spec.convention), model.num_classes
    plan = plan_sampling(spec.method, convention, size=20, ood_ratio=0.5, num_classes=classes)
    means = np.zeros((classes + 2, model.head.in_features), np.float32) if plan.needs_means else None
    job = ScoringJob(model, STATISTICS, stream, Window(0, 60, 60), plan, means)
    units = job.units()
    watch.waits.clear()
    list(job.score_units(units))
    return [what for what, _ in watch.waits], units


def waits_of_evaluation(watch, model):
    """Test a model; return what waited."""
    watch.waits.clear()
    images = torch.empty(60, 32, 32, 3, dtype=torch.uint8)
    evaluate(model, images, np.zeros(60, np.int64), STATISTICS, (model.num_classes,))
    return [what for what, _ in watch.waits]
