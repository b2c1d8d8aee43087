import json
import os
import re
from itertools import product
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from gd_ray.errors import UserError
from gd_ray.wordnet.cifar100_synsets import SYNSETS, matching_classes
from gd_ray.wordnet.exclusions import Exclusions, read_exclusions
from gd_ray.wordnet.hierarchy import WordNet, read_wordnet
from gd_ray.wordnet.ilsvrc2012 import BATCH_LABELS, WORDNET_IDS
from tests.helpers.nouns import HEADER, NOUNS, noun_line, wnid, write_wordnet

needs_wordnet = pytest.mark.skipif("GD_RAY_WORDNET" not in os.environ, reason="GD_RAY_WORDNET names no folder")
needs_tiny_imagenet = pytest.mark.skipif("GD_RAY_TINY_IMAGENET" not in os.environ, reason="no Tiny-ImageNet named")


@pytest.fixture
def nouns(tmp_path):
    return read_wordnet(write_wordnet(tmp_path / "wordnet"))


def test_words_and_hypernyms(nouns):
    assert len(nouns.words) == len(NOUNS)
    assert nouns.words[wnid("dog")] == ("dog", "dog_kind")
    assert nouns.hypernyms[wnid("lapdog")] == (wnid("dog"), wnid("pet"))
    assert nouns.hypernyms[wnid("Lassie")] == (wnid("collie"),)


def test_distances_worked_out_by_hand(nouns):
    found = nouns.distances([wnid("poodle"), wnid("table")])
    assert {word: found[wnid(word)] for word in NOUNS} == {
        "poodle": 0,
        "table": 0,
        "dog": 1,
        "furniture": 1,
        "collie": 2,  # poodle, dog, collie
        "lapdog": 2,
        "animal": 2,
        "entity": 2,  # table, furniture, entity
        "Lassie": 3,
        "pet": 3,  # by lapdog or by animal
        "cat": 3,
        "tabby": 4,
    }


def test_distances_against_all_shortest_paths():
    """On random graphs, against Floyd and Warshall."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        size = int(rng.integers(2, 15))
        ids = [f"n{k:08d}" for k in range(size)]
        above = {k: sorted({int(rng.integers(k)) for _ in range(rng.integers(0, 3))}) if k else [] for k in range(size)}
        length = np.full((size, size), np.inf)
        np.fill_diagonal(length, 0)
        for k, hypernyms in above.items():
            for h in hypernyms:
                length[k, h] = length[h, k] = 1
        for middle, a, b in product(range(size), repeat=3):
            length[a, b] = min(length[a, b], length[a, middle] + length[middle, b])
        graph = WordNet(dict.fromkeys(ids, ("word",)), {ids[k]: tuple(ids[h] for h in above[k]) for k in above})
        goals = rng.choice(size, 2)
        expected = {ids[k]: length[k, goals].min() for k in range(size) if np.isfinite(length[k, goals].min())}
        assert graph.distances(ids[g] for g in goals) == expected


def test_what_lies_below(nouns):
    assert nouns.below([wnid("dog")]) == {wnid(w) for w in ("dog", "poodle", "collie", "lapdog", "Lassie")}
    assert nouns.below(iter([wnid("tabby"), wnid("table")])) == {wnid("tabby"), wnid("table")}


def test_a_database_that_is_none(tmp_path):
    with pytest.raises(UserError, match=r"has no readable data.noun; install Debian's package wordnet-base"):
        read_wordnet(str(tmp_path))
    folder = write_wordnet(tmp_path / "other", HEADER.replace("3.0", "3.1"))
    with pytest.raises(UserError, match=r"is not WordNet 3\.0"):
        read_wordnet(folder)
    file = Path(write_wordnet(tmp_path / "torn"), "data.noun")
    whole = file.read_text()
    file.write_text(whole[:-90])
    with pytest.raises(UserError, match=rf"damaged in line {len(whole.splitlines())}"):
        read_wordnet(str(file.parent))
    file.write_text(HEADER + noun_line("00000300", ["dog"], ["00000200"]))
    with pytest.raises(UserError, match="lacks n00000200, the hypernym of n00000300"):
        read_wordnet(str(file.parent))


def test_the_checked_in_lists():
    assert len(SYNSETS) == 100
    assert all(re.fullmatch(r"n\d{8}", synset) for synsets in SYNSETS.values() for synset in synsets)
    assert len(set(WORDNET_IDS)) == 1000
    assert BATCH_LABELS[0] == "n02119789"  # the kit fox is label 1 of the batches
    assert WORDNET_IDS[0] == "n01440764"  # the tench is the first when sorted


def test_matches_by_synset_by_what_is_below_and_by_word(tmp_path, monkeypatch):
    """CIFAR-100's table and lion, in a small hierarchy of which one node is a lion's synset."""
    folder = tmp_path / "wordnet"
    folder.mkdir()
    lines = [
        noun_line("02129165", ["king_of_beasts"], []),  # the lion that is meant
        noun_line("02129463", ["lioness"], ["02129165"]),
        noun_line("08266235", ["Table", "tabular_array"], []),  # another sense of a CIFAR-100 word
        noun_line("08266300", ["spreadsheet"], ["08266235"]),
    ]
    (folder / "data.noun").write_text("".join(lines))
    monkeypatch.setattr("gd_ray.wordnet.cifar100_synsets.SYNSETS", {"lion": ("n02129165",), "table": ()})
    found = read_exclusions(["cifar100"], str(folder))
    assert all(name in found for name in ("n02129165", "n02129463", "n08266235", "lion", "Lion", "lioness", "table"))
    assert not any(name in found for name in ("n08266300", "spreadsheet", "tiger", None))


def test_lists_files_and_names(tmp_path):
    (tmp_path / "list.txt").write_text("# comment\nAquarium_Fish  # a class\n\n")
    found = read_exclusions(["ilsvrc2012", str(tmp_path / "list.txt"), "bird"])
    assert found.named == {"Aquarium_Fish", "bird"}
    assert found.listed == set(WORDNET_IDS)
    assert "aquarium fish" in found
    assert found.unmatched(["AQUARIUM FISH"]) == ["bird"]
    assert "anything" not in Exclusions()


@needs_wordnet
def test_the_mapping_in_the_real_database():
    real = read_wordnet(os.environ["GD_RAY_WORDNET"])
    assert set(WORDNET_IDS) <= set(real.words)
    under_another_word = {
        synset
        for name, synsets in SYNSETS.items()
        for synset in synsets
        if name not in [word.lower() for word in real.words[synset]]
    }
    named = {real.words[synset][0] for synset in under_another_word}
    fish = {"goldfish", "swordtail", "guppy", "mollie", "butterfly_fish", "angelfish", "damselfish"}
    assert named == fish | {"computer_keyboard", "ocean", "brush-tailed_phalanger"}


@needs_wordnet
@needs_tiny_imagenet
def test_tiny_imagenet_against_cifar100():
    real = read_wordnet(os.environ["GD_RAY_WORDNET"])
    file = sorted(Path(os.environ["GD_RAY_TINY_IMAGENET"]).glob("*.parquet"))[0]
    names = json.loads(pq.read_schema(file).metadata[b"huggingface"])["info"]["features"]["label"]["names"]
    matching = matching_classes(real)
    excluded = {real.words[name][0] for name in names if name in matching}
    assert len(excluded) == 41
    assert {"goldfish", "boa_constrictor", "tarantula", "trolleybus", "plate", "alp", "desk", "ox"} <= excluded
    assert not {"koala", "American_alligator", "tabby", "acorn", "teddy", "seashore"} & excluded
    distances = real.distances(synset for synsets in SYNSETS.values() for synset in synsets)
    # By hand, from pointer to pointer of data.noun, as the comments have it.
    assert distances["n01443537"] == 0  # goldfish
    assert distances["n02132136"] == 1  # brown bear, bear
    assert distances["n01770393"] == 2  # scorpion, arachnid, spider
    assert distances["n04285008"] == 3  # sports car, car, motor vehicle, motorcycle
    assert distances["n09428293"] == 4  # seashore, shore, geological formation, natural elevation, mountain
    assert distances["n02123045"] == 5  # tabby, domestic cat, cat, feline, carnivore, bear
    assert max(distances[name] for name in names) == 10
