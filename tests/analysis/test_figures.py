"""Figures average only what may be averaged, and captions name the rest."""

from itertools import product

import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

import analysis
from analysis.aggregate import settings
from analysis.figures import all_figures
from analysis.figures.comparison import by_ood_ratio, improvement, incremental, paired_slopes
from analysis.figures.single_trial import accuracy_heat_maps, confusion_matrices, confusion_matrix
from analysis.figures.style import ON_DARK, OTHER_COLOURS, line_style, panels
from gd_ray.methods import METHODS, Method
from gd_ray.paper import TABLES
from tests.helpers.made import made_spec, write_made


def test_a_sweep_averages_only_seeds_that_all_its_points_have(tmp_path):
    # The higher ratio is better by 4 points on every seed; seed 2 is easy, and only the lower ratio has it so far.
    for ratio, seed in ((0.0, 0), (0.0, 2), (0.7, 0), (0.7, 1)):
        level = int(40 + 10 * seed + 4 * (ratio > 0))
        write_made(str(tmp_path), "x", made_spec("gd+ext", seed, ood_ratio=ratio), lambda s, r, level=level: level)
    trials = analysis.load(str(tmp_path)).trials
    shown = by_ood_ratio(trials, "cifar100")
    np.testing.assert_allclose(shown.figure.axes[0].lines[0].get_ydata().astype(float), [40, 44])
    assert "over one seed" in shown.caption
    assert by_ood_ratio(trials[trials["seed"] > 0], "cifar100") is None  # no seed in common


def test_a_sweep_leaves_out_points_that_share_no_seed_with_the_others(tmp_path):
    for ratio, seed in ((0.0, 0), (0.0, 1), (0.5, 0), (0.5, 1), (1.0, 2)):
        write_made(str(tmp_path), "x", made_spec("gd+ext", seed, ood_ratio=ratio), lambda s, r: 50)
    shown = by_ood_ratio(analysis.load(str(tmp_path)).trials, "cifar100")
    np.testing.assert_allclose(shown.figure.axes[0].lines[0].get_xdata().astype(float), [0.0, 0.5])
    assert "over 2 seeds" in shown.caption


def test_lines_over_other_seeds_are_told(tmp_path):
    for method, seeds in (("gd", 3), ("baseline", 3), ("gd+ext", 1)):
        for seed in range(seeds):
            write_made(str(tmp_path), "x", made_spec(method, seed, num_classes=6), lambda s, r, seed=seed: 60 + seed)
    results = analysis.load(str(tmp_path))
    caption = incremental(results, results.trials, "cifar100").caption
    assert "mean over 3 seeds (unequal seeds: GD+ext seed 0; do not compare these lines)" in caption
    even = results.trials[results.trials["method"] != "gd+ext"]
    assert "mean over 3 seeds, bands" in incremental(results, even, "cifar100").caption


def test_arrows_of_what_external_data_change_are_over_the_same_seeds(tmp_path):
    for method, seed, level in (("gd", 0, 50), ("gd", 1, 80), ("gd+ext", 0, 55), ("oracle", 7, 90)):
        write_made(str(tmp_path), "x", made_spec(method, seed), lambda s, r, level=level: level)
    shown = improvement(analysis.load(str(tmp_path)).trials, "cifar100")
    start, end = (line.get_ydata()[0] for line in shown.figure.axes[0].lines[-2:])
    assert (start, end) == pytest.approx((50, 55))
    assert "over the seeds that both have (of seed 0)" in shown.caption
    assert "means. Oracle for comparison. Look" in shown.caption
    write_made(str(tmp_path), "x", made_spec("oracle", 7, num_classes=12, task_size=4), lambda s, r: 90)
    both = improvement(analysis.load(str(tmp_path)).trials, "cifar100")
    assert "means. Oracle, dotted, for comparison. Look" in both.caption
    looks = [figure.figure.axes[0].lines[0].get_linestyle() for figure in (shown, both)]
    assert looks == ["None", ":"]


def contrast(colour: str, page: str) -> float:
    """Return the contrast of two colours by the formula of the Web Content Accessibility Guidelines."""
    parts = np.array([to_rgb(colour), to_rgb(page)])
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    low, high = sorted(linear @ [0.2126, 0.7152, 0.0722])
    return (high + 0.05) / (low + 0.05)


def test_lines_stand_out_on_a_dark_page():
    assert contrast("#ffffff", "#000000") == pytest.approx(21)
    assert min(contrast(ON_DARK.get(colour, colour), "#14181d") for colour in OTHER_COLOURS) > 3
    figure = Figure()
    figure.subplots().plot([0, 1], "o-", color="#332288")
    ((_, image), *_) = panels(figure)
    for kind in ("fill", "stroke"):
        assert f'[style*="{kind}: #332288"] {{ {kind}: #8f80e6'.encode() in image
        assert image.count(f"{kind}: #332288".encode()) > 1  # as matplotlib writes it


def test_methods_that_a_figure_has_no_room_for_are_named(tmp_path):
    own = Method(name="zz", title="My own", previous="local")
    methods = [*list(METHODS)[:13], own]
    for method in methods:
        write_made(str(tmp_path), "x", made_spec(method, 0, num_classes=6), lambda s, r: 60)
    write_made(str(tmp_path), "x", made_spec("wa", 0, num_classes=6, task_size=3), lambda s, r: 60)
    results = analysis.load(str(tmp_path))
    left = ", ".join(METHODS[name].title for name in (*list(METHODS)[11:13], "wa"))
    for draw in (accuracy_heat_maps, confusion_matrices):
        shown = draw(results, results.trials, "cifar100")
        titles = [axes.get_title() for axes in shown.figure.axes]
        assert titles == [*(METHODS[name].title for name in list(METHODS)[:11]), "My own", ""]  # the last is the scale
        assert f" Not shown: {left} (see analysis.load(RESULTS)." in shown.caption
        ticks = shown.figure.axes[0].get_xticks()
        np.testing.assert_array_equal(ticks, ticks.round())
    small = results.trials[results.trials["task_size"] == 2]
    assert " Not shown: " in incremental(results, small, "cifar100").caption
    assert paired_slopes(results.trials, "cifar100") is None  # one seed
    write_made(str(tmp_path), "x", made_spec(own, 1, num_classes=6), lambda s, r: 60)
    seeds = paired_slopes(analysis.load(str(tmp_path)).trials, "cifar100")
    assert "thick" not in seeds.caption  # one seed has every method
    assert [text.get_text() for text in seeds.figure.axes[0].get_yticklabels()][-1] == "My own"
    assert len(seeds.figure.axes[0].get_yticks()) == 14
    assert " Not shown: WA (see" in seeds.caption


def test_external_data_change_methods_of_any_name(tmp_path):
    for method in ("wa", "wa+ext"):
        write_made(str(tmp_path), "x", made_spec(method, 0), lambda s, r: 60)
    assert improvement(analysis.load(str(tmp_path)).trials, "cifar100") is not None


def test_a_sweep_of_any_method_is_drawn_and_points_left_out_are_named(tmp_path):
    for method, ratio, seed in product(("gd+ext", "lwf+ext"), (0.0, 0.5), (0, 1)):
        write_made(str(tmp_path), "x", made_spec(method, seed, ood_ratio=ratio), lambda s, r: 50)
    write_made(str(tmp_path), "x", made_spec("gd+ext", 2, ood_ratio=1.0), lambda s, r: 50)
    shown = by_ood_ratio(analysis.load(str(tmp_path)).trials, "cifar100")
    assert "ACC and FGT of LwF+ext, GD+ext against" in shown.caption
    assert "Without 1: no seed in common." in shown.caption


def test_a_method_looks_the_same_in_every_figure_and_like_no_other():
    trials = pd.DataFrame({"method": [*METHODS], "method_external": False})
    looks = {name: line_style(trials, name) for name in METHODS}
    assert line_style(trials[trials["method"] == "bic"], "bic") == looks["bic"]
    families = {name.partition("+")[0]: (look["color"], look["marker"]) for name, look in looks.items()}
    assert len(set(families.values())) == len(families)
    assert looks["bic"]["color"] not in {looks[name]["color"] for name in TABLES[1]}
    assert looks["bic+ext"]["color"] == looks["bic"]["color"]


def test_figures_show_the_numbers(report_folder):
    results = analysis.load(str(report_folder))
    (setting,) = settings(results)
    pictures = {shown.name: shown for shown in all_figures(results, setting, lambda *_: None)}
    assert "samples-glyphs" not in pictures  # no stream at hand
    axes = pictures["incremental-glyphs-2"].figure.axes[0]
    line = next(line for line in axes.lines if line.get_label() == "GD")
    curves = results.curves.merge(setting.trials[["trial_id"]], on="trial_id")
    rows = curves[(curves["method"] == "gd") & (curves["task_size"] == 2) & (curves["stage"] > 1)]
    expected = 100 * rows.groupby("classes_seen")["acc"].mean()
    np.testing.assert_allclose(line.get_ydata(), expected)
    np.testing.assert_array_equal(line.get_xdata(), [4, 6, 8])
    ratios = pictures["ood-ratio-glyphs"].figure.axes[0].lines[0].get_xdata()
    np.testing.assert_allclose(ratios.astype(float), [0.0, 0.5, 0.7, 1.0])
    distances = pictures["distance-glyphs"].figure.axes[0].lines[0]
    np.testing.assert_allclose(distances.get_xdata().astype(float), [1, 2, 3])
    assert np.all(np.diff(distances.get_ydata()) < 0)


def test_confusion_matrix_in_the_order_learned():
    # Class 9 is learned first, then 4; in the end 4 of 10 images of class 9 are taken for class 4.
    rows = [(1, 9, 9, 10), (2, 9, 9, 6), (2, 9, 4, 4), (2, 4, 4, 10)]
    counts = pd.DataFrame(rows, columns=["stage", "true_class", "predicted_class", "count"])
    matrix, borders = confusion_matrix(counts)
    np.testing.assert_allclose(matrix, [[0.6, 0.4], [0, 1]])
    assert borders == [1, 2]
