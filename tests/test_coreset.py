import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from gd_ray.coreset import balanced_set, class_quotas, random_coreset


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
