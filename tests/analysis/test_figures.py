"""Figures average only what may be averaged, and captions name the rest."""

import numpy as np
import pytest

import analysis
from analysis.figures.comparison import by_ood_ratio, improvement, incremental
from tests.helpers.made import made_spec, write_made


def test_a_sweep_averages_only_seeds_that_all_its_points_have(tmp_path):
    # The higher ratio is better by 4 points on every seed; seed 2 is easy, and only the lower ratio has it so far.
    for ratio, seed in ((0.0, 0), (0.0, 2), (0.7, 0), (0.7, 1)):
        level = int(40 + 10 * seed + 4 * (ratio > 0))
        write_made(str(tmp_path), "x", made_spec("gd+ext", seed, ood_ratio=ratio), lambda s, r, level=level: level)
    trials = analysis.load(str(tmp_path)).trials
    shown = by_ood_ratio(trials, "cifar100", "paper")
    np.testing.assert_allclose(shown.figure.axes[0].lines[0].get_ydata().astype(float), [40, 44])
    assert "over one seed" in shown.caption
    assert by_ood_ratio(trials[trials["seed"] > 0], "cifar100", "paper") is None  # no seed in common


def test_a_sweep_leaves_out_points_that_share_no_seed_with_the_others(tmp_path):
    for ratio, seed in ((0.0, 0), (0.0, 1), (0.5, 0), (0.5, 1), (1.0, 2)):
        write_made(str(tmp_path), "x", made_spec("gd+ext", seed, ood_ratio=ratio), lambda s, r: 50)
    shown = by_ood_ratio(analysis.load(str(tmp_path)).trials, "cifar100", "paper")
    np.testing.assert_allclose(shown.figure.axes[0].lines[0].get_xdata().astype(float), [0.0, 0.5])
    assert "over 2 seeds" in shown.caption


def test_lines_over_other_seeds_are_told(tmp_path):
    for method, seeds in (("gd", 3), ("baseline", 3), ("gd+ext", 1), ("ref-p", 4)):  # an ablation has no line
        for seed in range(seeds):
            write_made(str(tmp_path), "x", made_spec(method, seed, num_classes=6), lambda s, r, seed=seed: 60 + seed)
    results = analysis.load(str(tmp_path))
    caption = incremental(results, results.trials, "cifar100", 2, "paper").caption
    assert "mean over 3 seeds (unequal seeds: GD+ext only seed 0; do not compare these lines)" in caption
    even = results.trials[results.trials["method"] != "gd+ext"]
    assert "mean over 3 seeds, bands" in incremental(results, even, "cifar100", 2, "paper").caption


def test_arrows_of_what_external_data_change_are_over_the_same_seeds(tmp_path):
    for method, seed, level in (("gd", 0, 50), ("gd", 1, 80), ("gd+ext", 0, 55), ("oracle", 7, 90)):
        write_made(str(tmp_path), "x", made_spec(method, seed), lambda s, r, level=level: level)
    shown = improvement(analysis.load(str(tmp_path)).trials, "cifar100", "paper")
    start, end = (line.get_ydata()[0] for line in shown.figure.axes[0].lines[:2])
    assert (start, end) == pytest.approx((50, 55))
    assert "over the seeds that both have (of seed 0)" in shown.caption
