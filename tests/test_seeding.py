from itertools import combinations, product

import numpy as np
import torch

from gd_ray.data.tasks import seed_permutation
from gd_ray.seeding import Purpose, generator, numpy_generator


def test_every_seed_stage_and_purpose_has_numbers_of_its_own():
    keys = list(product((0, 1), (1, 2), Purpose))
    for draw in (
        lambda key: tuple(torch.rand(3, generator=generator(*key)).tolist()),
        lambda key: tuple(numpy_generator(*key).random(3).tolist()),
    ):
        values = [draw(key) for key in keys]
        assert values == [draw(key) for key in keys]
        assert all(a != b for a, b in combinations(values, 2))


def test_class_orders_are_the_facts():
    for seed in range(10):
        assert (seed_permutation(seed, 100) == np.random.RandomState(seed).permutation(100)).all()
    assert seed_permutation(0, 100)[:5].tolist() == [26, 86, 2, 55, 75]
