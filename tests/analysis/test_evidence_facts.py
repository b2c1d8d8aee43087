"""Numbers of the findings, by hand; and sentences that the trials do not bear out."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.evidence import build, reduced
from analysis.evidence.claims import METRICS
from analysis.evidence.facts import facts_of
from gd_ray.errors import UserError
from tests.helpers.made import write_made
from trials.experiments import reduced_spec

FORGOTTEN = {"gd+ext": (2, 2, 2), "gd": (6, 6, 6), "baseline": (6, 7, 3), "e2e": (4, 4, 4)}
"""Images of 100 that each seed forgets of a task at each later stage; ACC is 90 + seed less as many, FGT as many."""


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    folder = str(tmp_path_factory.mktemp("evidence"))
    for method, forgotten in FORGOTTEN.items():
        for seed, lost in enumerate(forgotten):
            hits = lambda stage, task, seed=seed, lost=lost: 90 + seed - lost * (stage - task)  # noqa: E731
            write_made(folder, "reduced", reduced_spec(method, seed), hits)
    results = analysis.load(folder)
    return facts_of([results], results.trials, reduced.SECTIONS, METRICS)


def test_differences_are_paired_and_gains_are_in_the_direction_of_the_metric(facts):
    assert facts.gain("GD+ext", "GD") == facts.gain("GD+ext", "GD", "FGT", sure=True, every_seed=True) == "4.0"
    assert facts.difference("GD+ext", "GD", "FGT") == "−4.0"
    # E2E against Baseline: 2, 3 and -1. Mean 4/3, error sqrt(13/3)/sqrt(3), t(2) = 4.3027.
    assert facts.gain("E2E", "Baseline", sure=False) == "1.3"
    assert facts.interval("E2E", "Baseline") == "−3.8 to +6.5"
    assert facts.wins("E2E", "Baseline") == "2 of 3 seeds"


def test_means_of_rows_and_the_best_of_them(facts):
    assert facts.mean("Baseline") == f"{np.mean([84, 84, 89]):.1f}"
    assert facts.mean("Baseline", "FGT", seeds=[0, 1]) == "6.5"
    titles = {"first": "GD", "second": "GD+ext", "third": "E2E"}
    assert (facts.best(titles), facts.best(titles, "FGT")) == ("second", "second")
    assert facts.spread(titles.values()) == "4.0"


def test_images_that_a_stage_sampled(facts):
    ids = facts.rows["GD+ext"].of(facts.trials)["trial_id"].astype(str).tolist()
    samples = facts.results[0].rows("samples", ids)
    samples = samples[samples["stage"] == 4]
    numbers = [sum(samples["trial_id"] == trial) for trial in ids]
    scores = [100 * samples.loc[samples["trial_id"] == trial, "score"].min() for trial in ids]
    assert facts.sampled("GD+ext", 4) == {
        "images": f"{min(numbers)} to {max(numbers)}",
        "lowest": f"{min(scores):.0f} to {max(scores):.0f}%",
    }


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda facts: facts.gain("GD", "GD+ext"), "ACC: GD against GD\\+ext is no gain: -4.0 points"),
        (lambda facts: facts.gain("GD+ext", "GD", sure=False), "is beyond chance"),
        (lambda facts: facts.gain("E2E", "Baseline", sure=True), "is not beyond chance"),
        (lambda facts: facts.difference("GD", "GD+ext", sure=False), "is beyond chance"),
        (lambda facts: facts.difference("E2E", "Baseline", sure=True), "is not beyond chance"),
        (lambda facts: facts.gain("E2E", "Baseline", every_seed=True), "wins on 2 of 3 seeds"),
        (lambda facts: facts.mean("GD", seeds=range(5)), "'GD' lacks seeds"),
        (lambda facts: facts.mean("GE"), "row of the evidence 'GE' does not exist"),
        (lambda facts: facts.mean("GD", "ACCU"), "metric of the evidence 'ACCU' does not exist"),
        (lambda facts: facts.gain("Oracle", "GD"), "has no pair of trials"),
    ],
)
def test_a_sentence_that_does_not_hold_is_refused(facts, call, said):
    with pytest.raises(UserError, match=said):
        call(facts)


def test_the_same_trials_of_two_experiments_are_compared_seed_by_seed(facts, tmp_path):
    """The other GD forgets 5, 7 and 6 images at each stage, so its ACC is 1 higher, 1 lower and the same."""
    for seed, lost in enumerate((5, 7, 6)):
        hits = lambda stage, task, seed=seed, lost=lost: 90 + seed - lost * (stage - task)  # noqa: E731
        write_made(str(tmp_path), "more", reduced_spec("gd", seed), hits)
    results = analysis.load(str(tmp_path))
    others = facts_of([results], results.trials, reduced.SECTIONS, METRICS)
    assert facts.apart(others, "GD") == {"most": "1.0", "mean": "0.7", "n": "3"}
    assert others.apart(replace(facts, trials=pd.concat([facts.trials, others.trials])), "GD")["mean"] == "0.7"
    assert facts.apart(others, "GD+ext")["n"] == "0"


def test_findings_without_their_trials_are_refused(facts, tmp_path):
    for evidence in build.PUBLISHED:
        (tmp_path / evidence.folder).parent.mkdir(parents=True, exist_ok=True)
        shutil.copytree(facts.results[0].address, tmp_path / evidence.folder)
    with pytest.raises(UserError, match="OOD ratio 0.0' has no trials"):
        build.findings(tmp_path)
