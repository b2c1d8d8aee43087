"""The evidence of README.md and REPRODUCTION.md: from Parquet alone, every trial in it, and up to date."""

from dataclasses import replace
from pathlib import Path

import pytest

import analysis
from analysis.evidence import build, reduced, reduced_more, result_folders
from analysis.evidence.claims import MAIN, claims_grid, cpu_note, results_grid
from analysis.evidence.publish import folder_of
from gd_ray.errors import UserError
from tests.helpers.evidence import levels
from tests.helpers.made import write_made
from trials.experiments import EXPERIMENTS, reduced_spec

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """GD+ext forgets 2 images a stage, GD 6; Baseline 6, 7 and 3 on its seeds, beside GD's 6 on all of them."""
    folder = tmp_path_factory.mktemp("evidence")
    for seed in range(3):
        for method, forgotten in {"gd+ext": 2, "gd": 6, "baseline": (6, 7, 3)[seed], "e2e": 4}.items():
            write_made(str(folder), "reduced", reduced_spec(method, seed), levels(forgotten, seed))
        if seed < 2:
            write_made(str(folder), "reduced", reduced_spec("gd", seed, convention="released"), levels(8, seed))
            other = reduced_spec("gd+ext", seed, ood_ratio=0.3)
            write_made(str(folder), "reduced", other, levels(4, seed))
    return analysis.load(str(folder))


@pytest.mark.parametrize(
    ("experiments", "sections"),
    [(["reduced"], reduced.SECTIONS), (["reduced-more", "reduced-controls"], reduced_more.SECTIONS)],
)
def test_every_trial_of_the_experiments_has_its_row(experiments, sections):
    specs = [spec for name in experiments for spec in EXPERIMENTS[name].specs()]
    shown = [
        {**MAIN, **row.changes, "method": row.method, "seed": seed}
        for _, rows in sections
        for row in rows
        for seed in row.seeds
    ]
    for spec in specs:
        assert sum(all(spec.flat()[name] == value for name, value in fields.items()) for fields in shown) == 1
    assert len(shown) == len(specs)


def test_the_table_shows_means_spreads_and_every_seed(made):
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in results_grid(reduced.SECTIONS, made.trials).rows}
    # With 4 tasks the mean accuracy after stages 2, 3, 4 is 90 + seed less 0.5, 1 and 1.5 times what is forgotten.
    assert rows["GD+ext"] == ["89.0 ± 1.0", "88.0, 89.0, 90.0, –, –", "2.0 ± 0.0", "2.0, 2.0, 2.0, –, –"]
    assert rows["GD+ext, OOD ratio 0.3"] == ["86.5 ± 0.7", "86.0, 87.0, –", "4.0 ± 0.0", "4.0, 4.0, –"]
    assert rows["As the released program does it"] == []


def test_claims_are_paired_and_told_in_the_papers_direction(made):
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in claims_grid(reduced.CLAIMS, made.trials).rows}
    assert rows["ACC: GD+ext against GD"] == ["+4.0", "+4.0 to +4.0", "3 of 3", "agrees"]
    assert rows["ACC: GD against E2E"] == ["−2.0", "−2.0 to −2.0", "0 of 3", "contradicts"]
    # FGT of GD+ext less Baseline's: −4, −5, −1. Mean −10/3, error sqrt(13/3)/sqrt(3), t(2) = 4.3027.
    assert rows["FGT: GD+ext against Baseline"] == ["−3.3", "−8.5 to +1.8", "3 of 3", "undecided"]
    assert rows["FGT: GD+ext against GD"] == ["−4.0", "−4.0 to −4.0", "3 of 3", "agrees"]
    assert "ACC: Oracle against GD+ext" not in rows


def test_the_headline_has_six_rows_each_compared_with_the_next(made):
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in reduced.headline_grid(made.trials).rows}
    assert rows["GD+ext"] == ["89.0 ± 1.0", "2.0 ± 0.0", "3", "+4.0 (+4.0 to +4.0)"]
    assert rows["Baseline"][-1] == ""
    published = reduced.headline_grid(analysis.load(str(ROOT / build.REDUCED.folder)).trials)
    assert [row[0].text for row in published.rows] == ["Oracle", "GD+ext", "GD", "E2E", "DR", "Baseline"]


def test_generated_parts_replace_those_before(made, tmp_path):
    for file in ("README.md", "REPRODUCTION.md"):
        (tmp_path / file).write_text(f"before\n{build.REDUCED.begin}\nold\n{build.END}\nafter\n")
    (tmp_path / "evidence").symlink_to(made.address)
    build.write(tmp_path, replace(build.REDUCED, folder="evidence"))
    text, readme = ((tmp_path / file).read_text() for file in ("REPRODUCTION.md", "README.md"))
    assert text.startswith(f"before\n{build.REDUCED.begin}\n\n16 of 83 trials; ")
    for part in (text, readme):
        assert part.endswith(f"{build.END}\nafter\n")
        assert "old" not in part
        assert "(evidence/incremental-cifar100-5.svg)" in part
    assert "(evidence/ood-ratio-cifar100.svg)" in text
    for name in ("incremental-cifar100-5", "ood-ratio-cifar100"):
        assert (tmp_path / f"evidence/{name}.svg").read_text().startswith("<?xml")
    build.write(tmp_path, replace(build.REDUCED, folder="evidence"))
    assert (tmp_path / "REPRODUCTION.md").read_text() == text


def test_a_file_without_a_place_for_it_is_one_sentence():
    with pytest.raises(UserError, match="README.md has no place for the evidence"):
        build.replace_part("README.md", "text", build.REDUCED.begin, "part")


@pytest.fixture(scope="module")
def published():
    return analysis.load(str(ROOT / build.REDUCED.folder))


def test_the_published_ids_are_still_those_of_their_specs(published):
    assert {*published.trials["trial_id"].astype(str)} == {spec.trial_id for spec in EXPERIMENTS["reduced"].specs()}


@pytest.mark.parametrize("folder", result_folders(ROOT / build.MORE.folder), ids=lambda folder: folder.name)
def test_each_folder_has_trials_of_the_experiments_on_one_kind_of_cpu(folder):
    trials = analysis.load(str(folder)).trials
    ids = {spec.trial_id for name in ("reduced-more", "reduced-controls") for spec in EXPERIMENTS[name].specs()}
    assert {*trials["trial_id"].astype(str)} <= ids
    assert {folder_of(cpu) for cpu in trials["cpu_model"]} == {folder.name}


@pytest.mark.parametrize("evidence", build.PUBLISHED, ids=lambda evidence: evidence.folder)
def test_the_files_have_what_the_published_parquet_holds(evidence):
    folder = ROOT / evidence.folder
    results = build.load_kinds(folder)
    for file, part in build.generated_parts(evidence, results, folder, evidence.figures(results)).items():
        assert part in (ROOT / file).read_text()


def test_the_findings_are_those_of_the_published_parquet():
    assert build.findings(ROOT) in (ROOT / "REPRODUCTION.md").read_text()


def test_no_claim_has_pairs_of_two_kinds_of_cpu(published):
    assert set(published.trials["cpu_model"]) == {"unnamed CPU A", "unnamed CPU B"}
    assert cpu_note(reduced.CLAIMS, published.trials) == ""
