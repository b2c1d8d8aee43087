import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gd_ray.coreset import balanced_set, class_quotas, random_coreset
from gd_ray.learner import Stage
from gd_ray.learners.distillation import Distillation
from gd_ray.trial import run_trial
from tests.helpers.tiny import tiny_spec


@given(st.integers(0, 3000), st.integers(1, 120))
def test_quotas_add_up_differ_by_one_and_favour_the_newest(size, num_classes):
    quotas = class_quotas(size, num_classes)
    assert quotas.sum() == size
    assert quotas.max() - quotas.min() <= 1
    assert (np.diff(quotas) >= 0).all()


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 100), st.integers(0, 2**31))
def test_a_coreset_has_its_size_or_all_there_is(num_classes, per_class, size, seed):
    labels = np.tile(np.arange(num_classes), per_class)
    indices = np.arange(len(labels)) + 1000
    chosen = random_coreset(indices, labels, class_quotas(size, num_classes), np.random.default_rng(seed))
    assert len(chosen) == min(size, len(labels))
    assert len(np.unique(chosen)) == len(chosen)
    assert np.isin(chosen, indices).all()
    counts = np.bincount(labels[chosen - 1000], minlength=num_classes)
    assert counts.max() - counts.min() <= 1


def test_the_draw_is_random_but_fixed_by_the_generator():
    labels, indices = np.zeros(100, int), np.arange(100)
    draws = [random_coreset(indices, labels, np.array([10]), np.random.default_rng(seed)) for seed in (1, 1, 2)]
    assert (draws[0] == draws[1]).all()
    assert (draws[0] != draws[2]).any()


def test_a_balanced_set_has_as_many_of_a_new_class_as_of_a_previous_one():
    coreset = np.arange(10)  # 5 images of each of 2 previous classes
    current, labels = np.arange(10, 70), np.repeat([2, 3], 30)
    chosen = balanced_set(current, labels, coreset, 2, 4, np.random.default_rng(0))
    assert np.isin(coreset, chosen).all()
    new = chosen[chosen >= 10]
    assert np.bincount(labels[new - 10]).tolist() == [0, 0, 5, 5]


@pytest.mark.parametrize("method", ["e2e", "balance-dset", "gd"])
@pytest.mark.parametrize("convention", ["paper", "released"])
def test_the_released_program_draws_its_coreset_from_the_balanced_set(
    method, convention, tiny_data, tiny_stream, monkeypatch
):
    fine_tuned, drawn, labels = {}, {}, {}
    fit, select_coreset = Stage.fit, Distillation.select_coreset

    def watched_fit(stage, step, network, loss, indices, parameters=None):
        fine_tuned[stage.number, step.name] = set(indices.tolist())
        fit(stage, step, network, loss, indices, parameters)

    def watched_selection(learner, stage, model):
        drawn[stage.number] = select_coreset(learner, stage, model)
        labels[stage.number] = stage.labels_of(drawn[stage.number])
        return drawn[stage.number]

    monkeypatch.setattr(Stage, "fit", watched_fit)
    monkeypatch.setattr(Distillation, "select_coreset", watched_selection)
    spec = tiny_spec(method=method, convention=convention, coreset_size=12, train_per_class=8)
    run_trial(spec, tiny_data, tiny_stream)
    from_balanced_set = [set(drawn[number].tolist()) <= fine_tuned[number, "fine-tune"] for number in (2, 3)]
    if method == "gd":  # fine-tunes on all images
        assert all(from_balanced_set)
    else:
        assert from_balanced_set == [convention == "released"] * 2
    assert [np.bincount(labels[number]).tolist() for number in (1, 2, 3)] == [[6] * 2, [3] * 4, [2] * 6]
