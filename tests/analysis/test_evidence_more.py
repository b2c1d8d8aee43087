"""The part of REPRODUCTION.md on `reduced-more`: tables, calibration and sampling by hand."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import analysis
from analysis.evidence import build, reduced_more, wordnet_labels
from analysis.evidence.claims import Row, claims_grid, count_verdicts
from analysis.evidence.reduced_more import CALIBRATION_CLAIMS, CLAIMS, SAMPLING_CLAIMS, TABLE_CLAIMS
from gd_ray.ray_utils import map_in_process
from gd_ray.store import pack
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wordnet.hierarchy import read_wordnet
from tests.helpers.evidence import DISTANCES, FORGOTTEN, STREAM, levels, texts, write_trials
from tests.helpers.made import write_made
from tests.helpers.nouns import wnid, write_wordnet
from tests.helpers.pictures import picture
from trials.experiments import EXPERIMENTS, reduced_spec

PUBLISHED = Path(analysis.__file__).parent / "evidence/more"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """All trials but those of Q on seed 2, packed; the images forgotten a stage are in FORGOTTEN, else 5."""
    specs = [*EXPERIMENTS["reduced-more"].specs(), *EXPERIMENTS["reduced-controls"].specs()]
    specs = [spec for spec in specs if (spec.method.name, spec.seed) != ("ref-q", 2)]
    folder = tmp_path_factory.mktemp("more")
    write_trials(folder, specs, FORGOTTEN)
    pack(str(folder))
    return analysis.load(str(folder))


@pytest.fixture(scope="module")
def trials(made):
    return reduced_more.with_measures([made], Path(made.address))


def test_claims_of_the_tables_have_the_sign_that_is_printed():
    assert len(TABLE_CLAIMS) == 2 * (3 + 4 + 3 + 4)
    printed = {claim.title: reduced_more.printed(claim) for claim in TABLE_CLAIMS}
    assert printed["ACC: GD+ext against P"] == (68.1, 62.9)
    assert printed["FGT: P+C against P+cls"] == (10.7, 14.5)
    assert [c.title for c in TABLE_CLAIMS if c.source != "paper"] == ["FGT: GD+ext against Prev by prediction"]
    for claim in TABLE_CLAIMS:
        better, worse = printed[claim.title]
        assert better < worse if claim.metric.lower_is_better else better > worse
    turned = replace(TABLE_CLAIMS[0], better=TABLE_CLAIMS[0].worse, worse=TABLE_CLAIMS[0].better)
    assert reduced_more._as_printed(turned) == TABLE_CLAIMS[0]  # as the paper has it, whichever way it is asked


def test_tables_show_printed_and_own_differences(made):
    rows = texts(claims_grid(TABLE_CLAIMS, made.trials, "", reduced_more.IN_TABLES))
    # With 4 tasks the mean accuracy after stages 2, 3, 4 is 90 + seed less 0.5, 1 and 1.5 times what is forgotten.
    assert rows["ACC: GD+ext against P"] == [
        *("68.1 / 62.9", "+5.2", "89.0 / 87.0", "+2.0", "+2.0 to +2.0", "3 of 3", "agrees")
    ]
    assert rows["FGT: GD+ext against P"][:4] == ["7.7 / 14.7", "−7.0", "2.0 / 4.0", "−2.0"]
    assert rows["ACC: GD+ext against Prev by prediction"][3:] == ["−1.0", "−1.0 to −1.0", "0 of 3", "contradicts"]
    assert rows["FGT: GD+ext against Prev by prediction"] == [
        *("7.7 / 7.8", "−0.1", "2.0 / 1.0", "+1.0", "+1.0 to +1.0", "", "no sign printed")
    ]
    assert rows["ACC: P+C against P+dst"][3:] == ["+0.0", "+0.0 to +0.0", "0 of 3", "undecided"]
    assert rows["ACC: GD+ext against Q"][2:4] == ["88.5 / 85.5", "+3.0"]  # on the two seeds that both have
    assert rows["ACC: GD+ext against Q"][5] == "2 of 2"


def test_verdicts_are_counted_as_the_table_has_them(made):
    texts_of_verdicts = [row[-1] for row in texts(claims_grid(TABLE_CLAIMS, made.trials)).values()]
    counts = count_verdicts(TABLE_CLAIMS, made.trials)
    assert counts == {text: texts_of_verdicts.count(text) for text in {*texts_of_verdicts}}
    assert {*counts} == {"agrees", "contradicts", "undecided", "no sign printed"}
    assert count_verdicts(TABLE_CLAIMS, made.trials[:0]) == {}


def test_claims_without_the_papers_word_are_better_or_worse(made):
    rows = texts(claims_grid(CLAIMS, made.trials))
    assert rows["ACC: WA against Baseline"][-1] == "undecided"
    assert rows["ACC: WA+ext against WA"][-1] == "undecided"
    assert rows["ACC: Prev by nearest mean against GD+ext"] == ["−3.0", "−3.0 to −3.0", "0 of 3", "worse"]
    assert rows["FGT: GD+ext, nearest part against GD+ext, random part"][0] == "+0.0"
    assert rows["ACC: GD+ext, nearest part against GD+ext, farthest part"][-1] == "undecided"
    longer = [text for text in rows if "twice the epochs" in text]
    assert longer == [
        f"{metric}: GD, twice the epochs, 4 times the fine-tuning against "
        "E2E, twice the epochs, 6.5 times the fine-tuning"
        for metric in ("ACC", "FGT")
    ]
    assert rows[longer[0]][-1] == "contradicts"
    assert len(rows) == len(CLAIMS) == 2 * (10 + 3 + 2 + 3 + 1 + 1 + 2 + 1)


def test_both_classifiers_of_icarl_by_hand(trials):
    # 5 of 100 images are forgotten a stage: 91 less 0.5, 1 and 1.5 times 5 is 86. The head is right on 20 fewer.
    row = ["3", "86.0 ± 1.0", "66.0 ± 1.0", "+20.0 (+20.0 to +20.0)"]
    assert texts(reduced_more.classifiers_grid(map(Row, reduced_more._BEYOND), trials)) == {
        "iCaRL": row,
        "iCaRL+ext": row,
    }


def test_calibration_by_hand(trials):
    assert reduced_more.CONFIDENCE_PAIRS == (("teacher-cls-cnf", "teacher-cls"), ("ref-pc", "teacher-dst"))
    rows = texts(claims_grid(CALIBRATION_CLAIMS, trials, "", {"means": reduced_more._means}))
    # ECE without: 0.95 - 0.75 on two seeds, 0.90 - 0.75 on the third. Differences −20, −20, −15: mean −18.3, error
    # sqrt(25/3)/sqrt(3) = 1.667, t(2) = 4.3027.
    assert rows["ECE of C: P+C against P+dst"] == ["0.0 / 18.3", "−18.3", "−25.5 to −11.2", "3 of 3", "better"]
    # AUROC of C: unseen are one below and one tied, so 3/4; two tied after stage 4, so 1/2; with the loss the same.
    assert rows["AUROC of C: P+C against P+dst"][:2] == ["66.7 / 66.7", "+0.0"]
    # M has unseen classes after stages 2 and 3: with 0.5 and 0.75 beside 0.75, without 0.5 and 0.9 beside 0.95 or 0.90.
    assert rows["AUROC of M: P+C against P+dst"][0] == "75.0 / 91.7"
    assert rows["AUROC of M: P+cls+cnf against P+cls"][:2] == ["75.0 / 91.7", "−16.7"]
    assert rows["ECE of M₁: P+C against P+dst"][:2] == ["10.0 / 10.0", "+0.0"]
    assert not any("of C: P+cls" in text for text in rows)  # which has no teacher


def test_what_is_sampled_by_hand(trials):
    rows = texts(wordnet_labels.sampling_grid(reduced_more.SAMPLED_ROWS, trials))
    # Of each stage's four images two are for apple, n1 and n2, and two for aquarium fish, both n2: 3, 9, 5, 5 steps.
    # A random image is n1 with 1/5: near for apple with 1/5 and for aquarium fish with 4/5, 7.8 and 5.6 steps away.
    assert rows["P+cls"] == ["3", "36", "75.0 ± 0.0", "50.0", "+25.0 (+25.0 to +25.0)", "5.5", "6.7"]
    assert rows["P+dst"] == ["3", "36", "50.0 ± 0.0", "50.0", "+0.0 (+0.0 to +0.0)", "7.0", "6.7"]
    claims = texts(claims_grid(SAMPLING_CLAIMS, trials))
    # 25, 25 and 0 points: mean 16.7, error sqrt(625/3)/sqrt(3) = 8.33.
    assert claims["within 5 steps: P+C against P+dst"] == ["+16.7", "−19.2 to +52.5", "2 of 3", "undecided"]
    assert claims["within 5 steps: Prev by nearest mean against GD+ext"][0] == "+0.0"


def test_what_is_sampled_against_a_plain_loop(made, trials):
    samples, names = made.samples, ["apple", "aquarium_fish"]
    for trial in trials[trials["method"].isin(["ref-pc", "teacher-dst", "wa+ext"])].itertuples():
        near, steps, chance, images = 0, 0, 0.0, 0
        for row in samples[samples["trial_id"] == trial.trial_id].to_dict("records"):
            if row["class"] >= 0:
                own = [DISTANCES[names[row["class"]], name] for name in STREAM]
                near += own[row["position"]] <= 5
                steps += own[row["position"]]
                chance += sum(distance <= 5 for distance in own) / len(own)
                images += 1
        assert trial.sampled == images == 12
        assert (trial.near, trial.distance, trial.near_by_chance) == pytest.approx((near / 12, steps / 12, chance / 12))
    without = trials[trials["method"].isin(["gd", "sample-ood", "dmc"])]
    assert without.loc[without["method"] == "gd", "near"].isna().all()


def test_labels_are_those_of_the_stream_and_of_wordnet(tmp_path, monkeypatch):
    names = [wnid(word) for word in ("collie", "tabby", "table", "collie", "Lassie")]
    for k, name in enumerate(names):
        (tmp_path / "pictures" / name).mkdir(parents=True, exist_ok=True)
        picture(k).save(tmp_path / "pictures" / name / f"{k}.png")
    stream = prepare_stream(str(tmp_path / "pictures"), str(tmp_path / "s"), mapper=map_in_process, shard_rows=2).stream
    monkeypatch.setattr(wordnet_labels, "SYNSETS", {"dog": (wnid("dog"),), "pet": (wnid("lapdog"), wnid("pet"))})
    wordnet_labels.write_labels(tmp_path, [stream.address], read_wordnet(write_wordnet(tmp_path / "wordnet")))
    images = pd.read_parquet(tmp_path / wordnet_labels.IMAGES)
    assert set(images["stream_digest"]) == {stream.digest}
    assert images["position"].tolist() == [0, 1, 2, 3, 4]
    assert images["wordnet_id"].tolist() == stream.class_names(np.arange(5))
    steps = pd.read_parquet(tmp_path / wordnet_labels.DISTANCES).set_index(["class", "wordnet_id"])["distance"]
    of_dog = {word: steps["dog", wnid(word)] for word in ("collie", "tabby", "table", "Lassie")}
    assert of_dog == {"collie": 1, "tabby": 3, "table": 4, "Lassie": 2}
    assert steps["pet", wnid("collie")] == 2  # from the lapdog by way of the dog


def test_the_published_labels_and_the_cut_that_follows_from_them():
    files = [PUBLISHED / name for name in (wordnet_labels.IMAGES, wordnet_labels.DISTANCES)]
    assert sum(file.stat().st_size for file in files) < 300_000
    images, distances = map(pd.read_parquet, files)
    whole = images[images["stream_digest"] == "75bb3648ed30ecdb"]  # which REPRODUCTION.md names
    assert whole["position"].tolist() == list(range(47_700))
    assert (whole["wordnet_id"].value_counts() == 300).all()
    steps = distances["distance"].to_numpy()  # every class has as many images
    assert len(steps) == 100 * whole["wordnet_id"].nunique()
    assert (steps <= wordnet_labels.NEAR).mean() < 0.05 < (steps <= wordnet_labels.NEAR + 1).mean()
    parts = images[images["stream_digest"] != "75bb3648ed30ecdb"].groupby("stream_digest")
    nearest = distances.groupby("wordnet_id")["distance"].min()
    ranges = sorted((nearest[part["wordnet_id"]].min(), nearest[part["wordnet_id"]].max()) for _, part in parts)
    assert ranges == [(2, 3), (4, 5), (6, 9)]  # as the manifests of the three parts have it


@pytest.mark.skipif("GD_RAY_WORDNET" not in os.environ, reason="needs WordNet 3.0: set GD_RAY_WORDNET")
def test_the_published_distances_are_wordnets():
    distances = pd.read_parquet(PUBLISHED / wordnet_labels.DISTANCES)
    wordnet = read_wordnet(os.environ["GD_RAY_WORDNET"])
    for name, rows in list(distances.groupby("class"))[::25]:
        lengths = wordnet.distances(wordnet_labels.SYNSETS[name])
        assert rows["distance"].tolist() == [lengths[wordnet_id] for wordnet_id in rows["wordnet_id"]]


def with_marks(folder, *evidence):
    file = folder / "REPRODUCTION.md"
    file.write_text("".join(f"before\n{own.begin}\nold\n{build.END}\n" for own in evidence))
    return file


def test_the_part_replaces_the_one_before_and_leaves_the_other(made, tmp_path):
    file = with_marks(tmp_path, build.REDUCED, build.MORE)
    (tmp_path / "more").symlink_to(made.address)
    more = replace(build.MORE, folder="more")
    build.write(tmp_path, more)
    text = file.read_text()
    assert text.startswith(f"before\n{build.REDUCED.begin}\nold\n{build.END}\nbefore\n{build.MORE.begin}\n\n## ")
    assert text.count("old") == 1
    assert "104 of 105 trials; " in text
    assert "on one core of a CPU each" in text
    assert "(more/distance-cifar100.svg)" in text
    assert "Not compared" not in text
    for title in ("ACC and FGT in %", "Tables 2 to 5.", "Calibration in %.", "Images sampled", "Near images in %."):
        assert text.count(f"**{title}") == 1
    build.write(tmp_path, more)
    assert file.read_text() == text


def test_an_absent_folder_and_one_of_labels_alone_write_nothing(tmp_path):
    file = with_marks(tmp_path, build.REDUCED)
    before = file.read_text()
    build.write(tmp_path, replace(build.MORE, folder="more"))
    (tmp_path / "more").mkdir()
    for name in (wordnet_labels.IMAGES, wordnet_labels.DISTANCES):
        (tmp_path / "more" / name).write_bytes((PUBLISHED / name).read_bytes())
    build.write(tmp_path, replace(build.MORE, folder="more"))
    assert file.read_text() == before


def test_an_incomplete_folder_writes_what_it_has(tmp_path):
    """One finished trial, another that is not, and no labels."""
    file = with_marks(tmp_path, build.MORE)
    write_made(str(tmp_path / "more"), "reduced-more", reduced_spec("baseline", 0), levels(5, 0), cpu="a CPU")
    write_made(str(tmp_path / "more"), "reduced-more", reduced_spec("gd+ext", 0), levels(2, 0), stages=2)
    build.write(tmp_path, replace(build.MORE, folder="more"))
    text = file.read_text()
    assert "1 of 105 trials; " in text
    assert "| Baseline | 85.0 | 85.0, –, – | 5.0 | 5.0, –, – |" in text
    assert "claim" not in text
    assert "GD+ext" not in text


def test_without_names_of_classes_nothing_is_known_of_what_is_sampled(tmp_path):
    write_trials(tmp_path / "more", [reduced_spec("gd+ext", 0)], FORGOTTEN)
    (tmp_path / "more/classes/cifar100.json").unlink()
    trials = reduced_more.with_measures([analysis.load(str(tmp_path / "more"))], tmp_path / "more")
    assert trials["near"].isna().all()
    assert wordnet_labels.sampling_grid(reduced_more.SAMPLED_ROWS, trials).rows == ()


def test_results_inside_a_folder_of_results_are_not_its_own(tmp_path):
    write_made(str(tmp_path), "reduced", reduced_spec("gd", 0), levels(6, 0))
    alone = analysis.load(str(tmp_path)).trials
    write_made(str(tmp_path / "more"), "reduced-more", reduced_spec("gd", 0), levels(2, 0))
    write_made(str(tmp_path / "more"), "reduced-more", reduced_spec("gd", 1), levels(2, 1))
    pd.testing.assert_frame_equal(analysis.load(str(tmp_path)).trials, alone)
