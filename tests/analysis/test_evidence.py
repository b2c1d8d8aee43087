"""The README's evidence: made from Parquet alone, every trial in it, and up to date."""

from pathlib import Path

import pytest

import analysis
from analysis.evidence import build as readme
from gd_ray.errors import UserError
from tests.helpers.made import write_made
from trials.experiments import EXPERIMENTS, reduced_spec

ROOT = Path(__file__).parents[2]


def levels(forgotten, seed):
    """100 test images a task: 90 right when it is learned, `forgotten` fewer at each later stage."""
    return lambda stage, task: 90 + seed - forgotten * (stage - task)


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


def test_every_trial_of_the_experiment_has_its_row():
    specs = EXPERIMENTS["reduced"].specs()
    shown = [
        {**readme.MAIN, **row.changes, "method": row.method, "seed": seed}
        for _, rows in readme.SECTIONS
        for row in rows
        for seed in row.seeds
    ]
    for spec in specs:
        assert sum(all(spec.flat()[name] == value for name, value in fields.items()) for fields in shown) == 1
    assert len(shown) == len(specs)


def test_the_table_shows_means_spreads_and_every_seed(made):
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in readme.results_grid(made.trials).rows}
    # With 4 tasks the mean accuracy after stages 2, 3, 4 is 90 + seed less 0.5, 1 and 1.5 times what is forgotten.
    assert rows["GD+ext"] == ["89.0 ± 1.0", "88.0, 89.0, 90.0, –, –", "2.0 ± 0.0", "2.0, 2.0, 2.0, –, –"]
    assert rows["GD+ext, OOD ratio 0.3"] == ["86.5 ± 0.7", "86.0, 87.0, –", "4.0 ± 0.0", "4.0, 4.0, –"]
    assert rows["As the released program does it"] == []


def test_claims_are_paired_and_told_in_the_papers_direction(made):
    rows = {row[0].text: [cell.text for cell in row[1:]] for row in readme.claims_grid(made.trials).rows}
    assert rows["ACC: GD+ext against GD"] == ["+4.0", "+4.0 to +4.0", "3 of 3", "agrees"]
    assert rows["ACC: GD against E2E"] == ["−2.0", "−2.0 to −2.0", "0 of 3", "contradicts"]
    # FGT of GD+ext less Baseline's: −4, −5, −1. Mean −10/3, error sqrt(13/3)/sqrt(3), t(2) = 4.3027.
    assert rows["FGT: GD+ext against Baseline"] == ["−3.3", "−8.5 to +1.8", "3 of 3", "undecided"]
    assert rows["FGT: GD+ext against GD"] == ["−4.0", "−4.0 to −4.0", "3 of 3", "agrees"]
    assert "ACC: Oracle against GD+ext" not in rows


def test_the_section_replaces_the_one_before(made, tmp_path):
    (tmp_path / "README.md").write_text(f"before\n{readme.BEGIN}\nold\n{readme.END}\nafter\n")
    (tmp_path / "evidence").symlink_to(made.address)
    readme.main(tmp_path, "evidence")
    text = (tmp_path / "README.md").read_text()
    assert text.startswith(f"before\n{readme.BEGIN}\n\n16 of 83 trials, ")
    assert text.endswith(f"{readme.END}\nafter\n")
    assert "old" not in text
    for name in ("incremental-cifar100-5", "ood-ratio-cifar100"):
        assert f"(evidence/{name}.svg)" in text
        assert (tmp_path / f"evidence/{name}.svg").read_text().startswith("<?xml")
    readme.main(tmp_path, "evidence")
    assert (tmp_path / "README.md").read_text() == text


def test_a_readme_without_a_place_for_it_is_one_sentence():
    with pytest.raises(UserError, match="README.md has no place for the evidence"):
        readme.replace_section("text", "section")


def test_the_readme_tells_what_the_published_parquet_says():
    results = analysis.load(str(ROOT / readme.EVIDENCE))
    assert readme.section(results, readme.figures(results), readme.EVIDENCE) in (ROOT / "README.md").read_text()
