"""The printed numbers against sums of the paper's columns, added up from its text apart from this program."""

import pytest

from analysis.published import PUBLISHED
from gd_ray.paper import TABLES

# Sum of means and sum of standard deviations of each column, ten rows each.
COLUMNS = {
    ("cifar100", 5, "acc"): (623.1, 11.9),
    ("cifar100", 5, "fgt"): (160.2, 4.4),
    ("cifar100", 10, "acc"): (637.9, 10.6),
    ("cifar100", 10, "fgt"): (135.9, 3.6),
    ("cifar100", 20, "acc"): (644.5, 9.1),
    ("cifar100", 20, "fgt"): (110.4, 3.4),
    ("imagenet32", 5, "acc"): (500.9, 17.4),
    ("imagenet32", 5, "fgt"): (175.9, 4.4),
    ("imagenet32", 10, "acc"): (521.4, 15.1),
    ("imagenet32", 10, "fgt"): (145.8, 4.1),
    ("imagenet32", 20, "acc"): (534.6, 11.0),
    ("imagenet32", 20, "fgt"): (113.8, 4.1),
}
# ACC, its deviations, FGT, its deviations.
ABLATIONS = {
    2: (263.7, 4.1, 44.3, 1.2),
    3: (324.3, 5.4, 62.8, 1.8),
    4: (270.3, 4.0, 37.2, 1.0),
    5: (332.4, 5.4, 46.8, 1.4),
}


@pytest.mark.parametrize("column", COLUMNS)
def test_columns_of_the_full_table(column):
    dataset, size, metric = column
    cells = [PUBLISHED[dataset, size, method, metric] for method in TABLES[1]]
    assert sum(cell.mean for cell in cells) == pytest.approx(COLUMNS[column][0])
    assert sum(cell.sd for cell in cells) == pytest.approx(COLUMNS[column][1])


@pytest.mark.parametrize("number", ABLATIONS)
def test_columns_of_the_ablations(number):
    sums = []
    for metric in ("acc", "fgt"):
        cells = [PUBLISHED["cifar100", 10, method, metric] for method in TABLES[number]]
        sums += [sum(cell.mean for cell in cells), sum(cell.sd for cell in cells)]
    assert sums == pytest.approx(ABLATIONS[number])


def test_there_is_no_other_cell():
    ablations = {method for number in ABLATIONS for method in TABLES[number]} - set(TABLES[1])
    assert {key[2] for key in PUBLISHED} == {*TABLES[1], *ablations}
    assert len(PUBLISHED) == 10 * len(COLUMNS) + 2 * len(ablations)


# Relative improvements that "Comparison of methods" of Section 4.2 states for ImageNet with task size 5.
CLAIMS = (
    ("acc", "gd", "e2e", 4.8),
    ("fgt", "gd", "e2e", 6.0),
    ("acc", "e2e+ext", "e2e", 3.2),
    ("acc", "gd+ext", "gd", 10.5),
    ("fgt", "e2e+ext", "e2e", 1.1),
    ("fgt", "gd+ext", "gd", 43.1),
    ("acc", "gd+ext", "e2e", 15.8),  # this and the next are the abstract's too
    ("fgt", "gd+ext", "e2e", 46.5),
)


def test_the_claims_of_the_text_follow_from_the_table():
    # Both sides are rounded to 0.1: the ratio of two printed means can be off by as much.
    for metric, first, second, percent in CLAIMS:
        better, worse = (PUBLISHED["imagenet32", 5, name, metric].mean for name in (first, second))
        slack = 100 * (0.05 / worse + better * 0.05 / worse**2) + 0.05
        assert 100 * abs(better - worse) / worse == pytest.approx(percent, abs=slack)
