"""Every measure of 'Other conventions' against a plain loop, and its place in the report."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import mannwhitneyu

import analysis
from analysis import measures, report
from analysis.aggregate import settings
from analysis.conventions_table import TITLES, convention_parts, recorded_grids, trial_measures
from analysis.figures.calibration import calibration_figures
from analysis.figures.comparison import by_memory
from gd_ray.counts import EDGES, confidence_histogram
from gd_ray.fingerprint import Fingerprints
from gd_ray.store import write_stages, write_trial
from gd_ray.trial import run_trial
from gd_ray.trial_result import TrialResult
from tests.helpers.made import made_spec, made_stage, select
from tests.helpers.tiny import tiny_spec


@given(st.integers(0, 2**31), st.lists(st.integers(1, 9), min_size=2, max_size=6))
def test_accuracy_and_forgetting_of_others(seed, sizes):
    rng = np.random.default_rng(seed)
    t = len(sizes)
    a, oracle = (np.where(np.tril(np.ones((t, t))), rng.random((t, t)), np.nan) for _ in range(2))
    by_stage = [sum(sizes[r] * a[s][r] for r in range(s + 1)) / sum(sizes[: s + 1]) for s in range(t)]
    assert measures.seen_accuracy(a, sizes) == pytest.approx(by_stage)
    old = sum(sizes[r] * a[t - 1][r] for r in range(t - 1)) / sum(sizes[:-1])
    assert measures.old_accuracy(a, sizes) == pytest.approx(old)
    falls = [max(a[s][r] for s in range(r, t - 1)) - a[t - 1][r] for r in range(t - 1)]
    assert measures.forgetting_by_maximum(a) == pytest.approx(sum(falls) / (t - 1))
    rises = [a[t - 1][r] - a[r][r] for r in range(t - 1)]
    assert measures.backward_transfer(a) == pytest.approx(sum(rises) / (t - 1))
    lacking = [oracle[k][k] - a[k][k] for k in range(1, t)]
    assert measures.intransigence(np.diag(a), np.diag(oracle)) == pytest.approx(sum(lacking) / (t - 1))
    assert measures.forgetting_by_maximum(np.stack([a, oracle]))[0] == pytest.approx(sum(falls) / (t - 1))


def histogram(log_odds, outcomes):
    rows = confidence_histogram(np.asarray(log_odds, float), np.asarray(outcomes))
    counts, sums = np.zeros((3, measures.BINS)), np.zeros((3, measures.BINS))
    for outcome, place, number, total in rows:
        counts[int(outcome), int(place)], sums[int(outcome), int(place)] = number, total
    return counts, sums


def made_confidences(seed):
    """Log odds and outcomes of 2,000 images of classes seen and 1,000 of unseen ones."""
    rng = np.random.default_rng(seed)
    log_odds = np.concatenate([rng.normal(3, 3, 2000), rng.normal(1, 2, 1000)])
    return log_odds, np.concatenate([rng.integers(0, 2, 2000), np.full(1000, 2)])


@pytest.mark.parametrize("seed", range(3))
def test_the_calibration_error_is_that_of_a_loop_over_images(seed):
    log_odds, outcomes = made_confidences(seed)
    (right, wrong, _), sums = histogram(log_odds, outcomes)
    ranges = [[] for _ in range(15)]
    for x, outcome in zip(log_odds.tolist(), outcomes.tolist(), strict=True):
        if outcome < 2:
            p = 1 / (1 + np.exp(-x))
            ranges[min(int(p * 15), 14)].append((p, outcome == 0))
    expected = sum(abs(sum(p for p, _ in own) - sum(hit for _, hit in own)) for own in ranges) / 2000
    assert measures.calibration_error(right, wrong, sums[:2].sum(axis=0)) == pytest.approx(expected, rel=1e-9)


def test_a_perfectly_calibrated_set_has_no_error_and_a_sure_one_that_is_wrong_has_all():
    log_odds, outcomes = [], []
    for right, images in ((1, 4), (3, 5), (9, 10), (1, 2)):  # `right` of `images` are right, as sure as that
        p = right / images
        log_odds += [np.log(p / (1 - p))] * images
        outcomes += [0] * right + [1] * (images - right)
    (right, wrong, _), sums = histogram(log_odds, outcomes)
    assert measures.calibration_error(right, wrong, sums[:2].sum(axis=0)) == pytest.approx(0, abs=1e-12)
    (right, wrong, _), sums = histogram([100.0] * 5, [1] * 5)
    assert measures.calibration_error(right, wrong, sums[:2].sum(axis=0)) == pytest.approx(1)


@pytest.mark.parametrize("seed", range(3))
def test_detection_of_unseen_classes_against_scipy_and_a_loop(seed):
    log_odds, outcomes = made_confidences(seed)
    seen, unseen = log_odds[outcomes < 2], log_odds[outcomes == 2]
    counts, _ = histogram(log_odds, outcomes)
    exact = mannwhitneyu(seen, unseen).statistic / (len(seen) * len(unseen))
    assert measures.auroc(counts[:2].sum(axis=0), counts[2]) == pytest.approx(exact, abs=1e-4)
    threshold = sorted(seen)[len(seen) // 20]  # 95% are at least as sure
    above = sum(x >= threshold for x in unseen) / len(unseen)
    assert measures.fpr95(counts[:2].sum(axis=0), counts[2]) == pytest.approx(above, abs=2e-3)
    # On whole bins there is nothing to round: the same values for scipy, ties and all.
    binned = np.searchsorted(EDGES, log_odds, side="right")
    tied = mannwhitneyu(binned[outcomes < 2], binned[outcomes == 2]).statistic / (len(seen) * len(unseen))
    assert measures.auroc(counts[:2].sum(axis=0), counts[2]) == pytest.approx(tied, rel=1e-12)


def test_detection_without_unseen_classes_is_unknown():
    counts, _ = histogram([1.0, 2.0], [0, 1])
    assert np.isnan(measures.auroc(counts[0], counts[2]))
    assert np.isnan(measures.fpr95(counts[0], counts[2]))


@pytest.fixture(scope="module")
def trials(tiny_data):
    """Four methods whose first task has three classes, one of them with two sizes of the coreset, one with teachers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("gd_ray.evaluation.BATCH", 16)
        changes = {"num_classes": 7, "first_task_size": 3}
        specs = [tiny_spec(method=method, **changes) for method in ("oracle", "baseline", "icarl")]
        specs += [replace(specs[1], coreset_size=14), tiny_spec(method="dr", **changes)]
        return [run_trial(spec, tiny_data) for spec in specs]


@pytest.fixture(scope="module")
def folder(trials, tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("measures"))
    for result in trials:
        write_stages(folder, result.spec, result.stages)
        write_trial(folder, result, device="cpu", threads=1)
    select(folder, "mine", [result.spec for result in trials])
    return folder


def calibration_of(rows):
    """Return ECE and AUROC of the confidences of a stage."""
    counts, sums = np.zeros((3, measures.BINS)), np.zeros((3, measures.BINS))
    for outcome, place, number, total in rows:
        counts[int(outcome), int(place)], sums[int(outcome), int(place)] = number, total
    error = measures.calibration_error(counts[0], counts[1], sums[:2].sum(axis=0))
    return error, measures.auroc(counts[0] + counts[1], counts[2])


def test_the_measures_of_a_trial_are_those_of_its_counts(trials, folder):
    results = analysis.load(folder)
    oracle = trials[0].accuracy
    frames = [trial_measures(results, setting.trials) for setting in settings(results)]
    frame = pd.concat(frames).set_index("trial_id")
    for result in (*trials[:3], trials[4]):
        row, later = frame.loc[result.spec.trial_id], result.stages[1:]
        assert row["last"] == pytest.approx(sum(later[-1].hits) / 28)
        assert row["new"] == pytest.approx(later[-1].hits[-1] / 8)
        assert row["with_first"] == pytest.approx((result.accuracy[0, 0] + 2 * result.acc) / 3)
        for name in ("task_aware_hits", "top5_hits", "nll"):
            assert row[name] == pytest.approx(np.mean([sum(getattr(s, name)) / sum(s.totals) for s in later]))
        assert row["intransigence"] == pytest.approx(np.mean([(oracle - result.accuracy)[k, k] for k in (1, 2)]))
        errors, separations = zip(*(calibration_of(stage.confidences) for stage in later), strict=True)
        assert row["ece"] == pytest.approx(np.mean(errors))
        assert row["auroc"] == pytest.approx(separations[0])
        assert np.isnan(separations[1])  # after the last stage there is no unseen class
        if row["method"] == "dr":
            errors, separations = zip(*(calibration_of(stage.teacher_confidences) for stage in later), strict=True)
            assert row["teacher_ece"] == pytest.approx(np.mean(errors))
            assert row["teacher_auroc"] == pytest.approx(np.mean(separations))
        kept = 7 * 8 if row["method"] == "oracle" else 7
        assert row["memory"] == pytest.approx(kept + 4 * later[-1].recorded["parameters"] / 3072)
    assert frame["teacher_ece"].notna().tolist() == (frame["method"] == "dr").tolist()
    assert frame["head_hits"].notna().tolist() == (frame["method"] == "icarl").tolist()
    assert np.isnan(frame.loc[trials[3].spec.trial_id, "intransigence"])  # no Oracle with this coreset


def test_the_report_shows_them(trials, folder):
    results = analysis.load(folder)
    found = settings(results)
    parts = convention_parts(results, found)
    assert [part["heading"] for part in parts] == [
        *("Other conventions, setting 1", "Recorded by the methods, setting 1"),
        *("Other conventions, setting 2", "Recorded by the methods, setting 2", "Accuracy against memory"),
    ]
    (grid,) = parts[0]["grids"]
    assert grid.title == "Other conventions (Glyphs, task size 2 after a first of 3)"
    assert grid.header == ("method", *TITLES.values())
    assert [row[0].text for row in grid.rows] == ["Oracle", "Baseline", "DR", "iCaRL"]
    (recorded,) = parts[1]["grids"]
    assert recorded.header == ("method", "value", "stage 1", "stage 2", "stage 3")
    norms = [stage.recorded["head norm new"] for stage in trials[1].stages]
    assert ["Baseline", "head norm new", *(f"{norm:.2f}" for norm in norms)] in [
        [c.text for c in r] for r in recorded.rows
    ]
    (memory,) = parts[-1]["grids"]
    room = round(4 * trials[0].stages[-1].recorded["parameters"] / 3072)
    assert memory.header == ("method", f"7 + {room}", f"14 + {room}")
    assert [cell.text for cell in memory.rows[1]] == ["Baseline", *(f"{100 * trials[k].acc:.1f}" for k in (1, 3))]
    (against_memory,) = by_memory(results, found)
    (line, _) = against_memory.figure.axes[0].lines[:2]  # the others have one size only
    np.testing.assert_allclose(line.get_xdata().astype(float), [7 + room, 14 + room])
    assert list(line.get_ydata()) == pytest.approx([100 * trials[k].acc for k in (1, 3)])
    assert against_memory.name == "settings1-2-memory-glyphs"
    assert "Memory is the images kept and the model's room" in against_memory.caption
    figures = calibration_figures(results, found[0].trials, "glyphs")
    assert [figure.name for figure in figures] == ["reliability-glyphs", "confidence-glyphs"]
    panels = [axes for axes in figures[1].figure.axes if axes.get_visible()]
    assert [axes.get_title() for axes in panels] == ["Oracle", "Baseline", "DR", "iCaRL"]
    seen, unseen = panels[1].lines
    rows = [stage.confidences for stage in trials[1].stages]
    means = [100 * r[r[:, 0] < 2, 3].sum() / r[r[:, 0] < 2, 2].sum() for r in rows]
    assert list(seen.get_ydata()) == pytest.approx(means)
    assert list(unseen.get_xdata()) == [1, 2]  # after the last stage none are left
    text = report.write_report(folder)[0].read_text()
    assert "Other conventions, setting 2" in text
    assert 'id="settings1-2-memory-glyphs"' in text
    assert "Confidence on classes seen and on classes still to be learned" in text


def test_what_methods_record_is_averaged_over_seeds_and_left_empty_where_it_is_not_recorded(tmp_path):
    for method, seed in product(("baseline", "wa", "bic"), range(2)):
        spec = made_spec(method, seed)
        own = {"wa": {"gamma": 0.5 + seed / 10}, "bic": {"bias scale": 0.75, "bias offset": -0.001}}.get(method, {})
        stages = [replace(made_stage(spec, s, lambda *_: 60), recorded=own if s > 1 else {}) for s in (1, 2)]
        write_stages(str(tmp_path), spec, stages)
        write_trial(str(tmp_path), TrialResult(spec, tuple(stages), Fingerprints()), device="cpu", threads=1)
    results = analysis.load(str(tmp_path))
    (grid,) = recorded_grids(results, settings(results)[0])
    assert grid.header == ("method", "value", "stage 2")
    assert [[cell.text for cell in row] for row in grid.rows] == [
        ["BiC", "bias offset", "0.00 ± 0.00"],
        ["BiC", "bias scale", "0.75 ± 0.00"],
        ["WA", "gamma", "0.55 ± 0.07"],
    ]
    assert by_memory(results, settings(results)) == []


def test_results_without_these_counts_still_load():
    results = analysis.load(str(Path(analysis.__file__).parent / "evidence"))
    for setting in settings(results):
        shown = trial_measures(results, setting.trials)
        assert shown[["with_first", "forgetting", "backward"]].notna().all(axis=None)
        assert shown[["ece", "auroc", "nll", "top5_hits", "memory"]].isna().all(axis=None)
        assert calibration_figures(results, setting.trials, "cifar100") == []
        assert recorded_grids(results, setting) == []
