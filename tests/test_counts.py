"""Counts of a model on test images against plain loops, and what the results folder keeps of them."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from gd_ray.counts import CALIBRATION_BINS, EDGES, OUTCOMES, count
from gd_ray.data.tasks import class_order
from gd_ray.evaluation import evaluate, in_batches
from gd_ray.learners.distillation import train_teacher
from gd_ray.networks.classifier import new_classifier
from gd_ray.spec import TrialSpec
from gd_ray.store import pack, read_rows, write_stages, write_trial
from gd_ray.trial import run_trial
from gd_ray.trial_result import TrialResult
from tests.helpers import plain
from tests.helpers.tiny import tiny_spec
from trials.cost import spec_cost

pytestmark = pytest.mark.usefixtures("small_inference")


def of_task(label, sizes):
    return next(task for task in range(len(sizes)) if label < sum(sizes[: task + 1]))


def first_of_highest(row, classes):
    return max(classes, key=lambda k: (row[k], -k))


@given(st.integers(0, 2**31), st.lists(st.integers(1, 4), min_size=1, max_size=4).map(tuple), st.booleans())
def test_counts_are_those_of_a_loop(seed, sizes, by_head):
    rng = np.random.default_rng(seed)
    classes, number = sum(sizes), 40
    labels = rng.integers(classes, size=number)
    scores = rng.integers(-3, 4, size=(number, classes)).astype(np.float32)  # with ties
    logits = None if by_head else (8 * rng.normal(size=(number, classes))).astype(np.float32)
    unseen = rng.normal(size=(7, classes)).astype(np.float32)
    found = count(scores, logits, unseen, labels, sizes)

    head = (scores if logits is None else logits).tolist()
    aware, top5, nll = [0] * len(sizes), [0] * len(sizes), [0.0] * len(sizes)
    confusion = np.zeros((classes, classes), int)
    for row, label, z in zip(scores.tolist(), labels.tolist(), head, strict=True):
        task = of_task(label, sizes)
        confusion[label, first_of_highest(row, range(classes))] += 1
        own = [k for k in range(classes) if of_task(k, sizes) == task]
        aware[task] += first_of_highest(row, own) == label
        top5[task] += label in sorted(range(classes), key=lambda k: (-row[k], k))[:5]
        nll[task] += plain.cls(z, label)
    assert (found.confusion == confusion).all()
    assert (found.task_aware_hits, found.top5_hits) == (tuple(aware), tuple(top5))
    assert found.nll == pytest.approx(nll, rel=1e-9)
    assert (found.head_confusion is None) == by_head

    bins = {}
    kinds = [int(first_of_highest(z, range(classes)) != y) for z, y in zip(head, labels.tolist(), strict=True)]
    for z, kind in zip([*head, *unseen.tolist()], [*kinds, *[2] * 7], strict=True):
        p = max(plain.softmax(z))
        others = sum(math.exp(value - max(z)) for k, value in enumerate(z) if k != first_of_highest(z, range(classes)))
        place = sum(edge <= (-math.log(others) if others else math.inf) for edge in EDGES)
        old = bins.get((kind, place), (0, 0.0))
        bins[kind, place] = (old[0] + 1, old[1] + p)
    assert {(int(a), int(b)): int(n) for a, b, n, _ in found.confidences} == {key: n for key, (n, _) in bins.items()}
    for kind, place, _, total in found.confidences:
        assert total == pytest.approx(bins[int(kind), int(place)][1], rel=1e-6)


def test_bins_keep_the_limits_of_calibration_apart():
    for k in range(1, CALIBRATION_BINS):
        p = k / CALIBRATION_BINS
        assert np.isclose(EDGES, math.log(p / (1 - p)), rtol=0, atol=1e-12).any()
    assert (np.diff(EDGES) > 0).all()


def test_images_of_later_classes_are_only_asked_for_confidence(tiny_data):
    model = new_classifier("wrn-10-1", 0.0, 2, torch.Generator().manual_seed(0)).eval()
    images, labels = tiny_data.test.images[:12], np.array([0, 1, 2, 3, -1, 0, 1, -1, 4, 0, 1, 2])
    found = evaluate(model, images, labels, tiny_data.statistics, (2,))
    assert found.confusion.sum() == 6
    by_outcome = {name: found.confidences[found.confidences[:, 0] == k, 2].sum() for k, name in enumerate(OUTCOMES)}
    assert by_outcome == {"right": np.trace(found.confusion), "wrong": 6 - np.trace(found.confusion), "unseen": 4}
    predicted = in_batches(model.predict, model, images[[0, 1, 5, 6, 9, 10]], tiny_data.statistics)
    assert np.trace(found.confusion) == (predicted.numpy() == labels[[0, 1, 5, 6, 9, 10]]).sum()


@pytest.fixture(scope="module")
def icarl(tiny_data):
    return run_trial(tiny_spec(method="icarl"), tiny_data)


def test_a_trials_counts(icarl):
    for number, stage in enumerate(icarl.stages, start=1):
        outcomes = {k: stage.confidences[stage.confidences[:, 0] == k, 2].sum() for k in range(3)}
        assert outcomes == {0: sum(stage.head_hits), 1: 8 * number - sum(stage.head_hits), 2: 24 - 8 * number}
        assert all(a >= b for a, b in zip(stage.task_aware_hits, stage.hits, strict=True))
        assert all(a >= b for a, b in zip(stage.top5_hits, stage.hits, strict=True))
        head = stage.head_confusion
        assert sum(stage.head_hits) == head[head[:, 0] == head[:, 1], 2].sum()
        assert stage.images["evaluate"] == 24
    last = icarl.stages[-1].recorded
    assert last["model in images"] == pytest.approx(4 * last["parameters"] / 3072)
    assert set(icarl.stages[0].recorded) == set(last) - {"head norm old", "head bias old"}


def test_the_confidence_of_a_teacher_is_that_of_its_own_classes_against_all_others(tiny_data, tmp_path, monkeypatch):
    teachers = []

    def watched(stage, network):
        teachers.append(train_teacher(stage, network))
        return teachers[-1]

    monkeypatch.setattr("gd_ray.learners.distillation.train_teacher", watched)
    result = run_trial(tiny_spec(method="dr"), tiny_data)
    first, *later = result.stages
    assert first.teacher_confidences is None
    order, (images, labels) = class_order(tiny_data, 0).tolist(), (tiny_data.test.images, tiny_data.test.labels)
    for stage, teacher in zip(later, teachers, strict=True):
        own = order[2 * stage.stage - 2 : 2 * stage.stage]
        probabilities = in_batches(teacher.logits, teacher, images, tiny_data.statistics).double().softmax(dim=1)
        counts, sums = [0, 0, 0], [0.0, 0.0, 0.0]
        for row, label in zip(probabilities.tolist(), labels.tolist(), strict=True):
            if label in order[:6]:
                outcome = 2 if label not in own else int(own[row.index(max(row))] != label)
                counts[outcome] += 1
                sums[outcome] += max(row)
        assert counts[:2] != [0, 0]
        for outcome in range(3):
            rows = stage.teacher_confidences[stage.teacher_confidences[:, 0] == outcome]
            assert rows[:, 2].sum() == counts[outcome]
            assert rows[:, 3].sum() == pytest.approx(sums[outcome], rel=1e-9)
    write(tmp_path, result)
    stored = read_rows(str(tmp_path), "teacher_confidences")[0].to_pandas()
    assert stored.groupby("stage")["count"].sum().to_dict() == {2: 24, 3: 24}


def write(folder, result):
    write_stages(str(folder), result.spec, result.stages)
    write_trial(str(folder), result, device="cpu", threads=1, peak_memory=5)
    return read(folder)


def read(folder):
    kinds = ("stages", "confusions", "confidences")
    return {kind: read_rows(str(folder), kind)[0].to_pandas().astype({"trial_id": str}) for kind in kinds}


def test_the_folder_has_every_count(icarl, tmp_path):
    tables = write(tmp_path, icarl)
    stages, confusions, confidences = tables.values()
    for stage in icarl.stages:
        rows = stages[stages["stage"] == stage.stage]
        for name in ("hits", "head_hits", "task_aware_hits", "top5_hits", "nll"):
            assert tuple(rows[name]) == getattr(stage, name)
        assert (rows["recorded_head_norm_new"] == stage.recorded["head norm new"]).all()
        assert rows["recorded_head_norm_old"].isna().all() == (stage.stage == 1)
        own = confusions[confusions["stage"] == stage.stage]
        for column, counts in (("count", stage.confusion), ("head_count", stage.head_confusion)):
            names = ["true_class", "predicted_class", column]
            assert sorted(map(tuple, own.loc[own[column] > 0, names].to_numpy().tolist())) == sorted(
                map(tuple, counts.tolist())
            )
        own = confidences[confidences["stage"] == stage.stage]
        assert (own["outcome"] == np.array(OUTCOMES)[stage.confidences[:, 0].astype(int)]).all()
        assert (own[["bin", "count", "confidence"]].to_numpy() == stage.confidences[:, 1:]).all()
    assert read_rows(str(tmp_path), "trials")[0]["peak_memory"].to_pylist() == [5]
    assert pack(str(tmp_path))["confidences"] == 1
    for kind, table in read(tmp_path).items():
        assert table.equals(tables[kind])


def test_stages_of_an_older_checkpoint_lack_only_what_they_have_not(icarl, tmp_path):
    missing = dict.fromkeys(("head_hits", "task_aware_hits", "top5_hits", "nll", "confidences"))
    first = replace(icarl.stages[0], **missing, recorded={})
    tables = write(tmp_path / "mixed", TrialResult(icarl.spec, (first, *icarl.stages[1:])))
    assert tables["stages"]["top5_hits"].isna().tolist() == [True] + 5 * [False]
    assert set(tables["confidences"]["stage"]) == {2, 3}
    tables = write(tmp_path / "old", TrialResult(icarl.spec, (first,)))
    assert "nll" not in tables["stages"]
    assert tables["confidences"].empty


@pytest.mark.parametrize("task_size", [5, 10, 20])
@pytest.mark.parametrize("method", ["baseline", "wa", "dmc"])
def test_evaluation_is_below_a_fiftieth_of_any_stage_at_the_papers_sizes(method, task_size):
    spec = TrialSpec(method=method, task_size=task_size)
    for stage in range(1, spec.num_tasks + 1):
        work = {step.step: step.work for step in spec_cost(spec) if step.stage == stage}
        assert work["evaluate"] == (20_000 if "teacher" in work and stage > 1 else 10_000)
        assert work["evaluate"] < 0.01 * sum(work.values())
