"""Trials of different settings, splits, streams or methods are never averaged."""

import pytest

import analysis
from analysis.aggregate import mixed_note, settings
from analysis.tables import LAYOUTS, fill
from gd_ray.methods import Method
from tests.helpers.known_results import cell, papers, write_known
from tests.helpers.made import made_spec, write_made


def test_the_validation_split_is_never_averaged_with_reported_trials(tmp_path):
    for seed in range(4):
        spec, right = papers("gd+ext", seed, 60 + seed, dataset="imagenet32", stream="imagenet2011")
        write_made(str(tmp_path), "x", spec, right)
    reported, validation = settings(analysis.load(str(tmp_path)))
    assert cell(fill(LAYOUTS["1"], reported), "gd+ext", "acc")["seeds"] == (1, 2, 3)
    assert cell(fill(LAYOUTS["1"], reported), "gd+ext", "acc")["verdict"] != ""
    assert validation.label == validation.differs == "the validation split"
    assert cell(fill(LAYOUTS["1"], validation), "gd+ext", "acc")["verdict"] == ""
    assert "whether they are reported or for validation" in mixed_note([reported, validation])


def test_settings_that_differ_in_the_last_digits_are_told_apart(tmp_path):
    for factor in (0.3333333, 0.33333333):
        write_made(str(tmp_path), "x", made_spec("gd", 0, epoch_factor=factor), lambda stage, task: 90)
    found = settings(analysis.load(str(tmp_path)))
    assert [found.index(setting) for setting in found] == [0, 1]
    assert len({setting.label for setting in found}) == 2


def test_mixed_settings_are_never_averaged(known_results):
    write_known(known_results, "gd", 0, (10, 10), convention="released")
    write_known(known_results, "gd", 1, (20, 20), learning_rate=0.5)
    found = settings(analysis.load(str(known_results)))
    assert len(found) == 3
    assert "differ in learning_rate, convention and cannot be averaged" in mixed_note(found)
    first = fill(LAYOUTS["1"], found[0])
    assert cell(first, "gd", "acc")["mean"] == pytest.approx(66)
    assert cell(first, "gd", "acc")["n"] == 3


def test_other_streams_and_ratios_are_left_out_and_told(known_results):
    for ratio in (0.0, 0.5):
        write_known(known_results, "gd+ext", 0, (10, 10), ood_ratio=ratio)
    (setting,) = settings(analysis.load(str(known_results)))
    assert (setting.trials["method"] == "gd+ext").sum() == 3
    assert (setting.variants["method"] == "gd+ext").sum() == 5
    assert any("left out of them: 2 trials with other values (ood_ratio 0, 0.5)" in note for note in setting.notes)


def test_one_name_for_two_methods(known_results):
    write_known(known_results, Method(name="gd", title="GD", previous="global"), 5, (10, 10))
    (setting,) = settings(analysis.load(str(known_results)))
    assert (setting.trials["method"] == "gd").sum() == 3
    assert any("1 trial with another meaning of 'gd'" in note for note in setting.notes)
