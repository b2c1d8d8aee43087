import numpy as np
import pytest

from gd_ray.errors import UserError
from gd_ray.ray_utils import map_in_process
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.splits import class_counts, is_written, plan_splits, write_split
from gd_ray.wild.stream import WildStream
from gd_ray.wordnet.hierarchy import read_wordnet
from tests.helpers.nouns import wnid, write_wordnet
from tests.helpers.pictures import boxed, picture

COUNTS = {"collie": 4, "tabby": 3, "cat": 2, "poodle": 1, "Lassie": 2}
"""Distances from the poodle: 2, 4, 3, 0, 3."""


@pytest.fixture
def nouns(tmp_path):
    return read_wordnet(write_wordnet(tmp_path / "wordnet"))


def counts(**changes):
    return {wnid(word): images for word, images in {**COUNTS, **changes}.items()}


def cut(nouns, least, most_splits=5, **changes):
    plan = plan_splits(counts(**changes), nouns, [wnid("poodle")], least=least, most_splits=most_splits)
    return [(split.name, split.about, split.images) for split in plan.splits]


def test_a_split_for_each_distance_that_has_enough(nouns):
    assert cut(nouns, 3) == [
        ("distance-1", "distance 2", 4),
        ("distance-2", "distance 3", 4),
        ("distance-3", "distance 4", 3),
    ]


def test_distances_are_joined_until_there_are_enough(nouns):
    assert cut(nouns, 5) == [("distance-1", "distances 2 to 4", 11)]  # the last 3 would be too few alone
    assert cut(nouns, 5, tabby=6) == [("distance-1", "distances 2 to 3", 8), ("distance-2", "distance 4", 6)]
    assert cut(nouns, 3, most_splits=2) == [("distance-1", "distance 2", 4), ("distance-2", "distances 3 to 4", 7)]


def test_training_classes_are_left_out_and_unknown_ones_kept_apart(nouns):
    plan = plan_splits({**counts(), "n99999999": 7, "n88888888": 1}, nouns, [wnid("poodle")], least=3)
    assert plan.training == {wnid("poodle"): 1}
    assert plan.unknown == {"n88888888": 1, "n99999999": 7}
    assert plan.splits[-1].name == "unknown"
    assert plan.splits[-1].classes == {"n88888888", "n99999999"}
    assert all("n99999999" not in split.classes for split in plan.splits[:-1])


@pytest.mark.parametrize(
    ("classes", "goals", "options", "says"),
    [
        ({"dog": 1}, ["n00000400"], {}, "no class that is in WordNet.*'dog'"),
        ({"n00000300": 1}, ["n12345678"], {}, "has 'n12345678', which is not in WordNet"),
        ({"n00000300": 1}, [], {}, "is empty"),
        ({"n00000300": 1}, ["n00000400"], {"least": 0}, "least 0 and splits 5 must be at least 1"),
    ],
)
def test_what_cannot_be_cut(nouns, classes, goals, options, says):
    with pytest.raises(UserError, match=says) as error:
        plan_splits(classes, nouns, goals, **options)
    assert "\n" not in str(error.value)


def test_a_stream_is_cut_in_its_order(nouns, tmp_path):
    names = [wnid(word) for word, images in COUNTS.items() for _ in range(images)] + ["n99999999"]
    for k, name in enumerate(names):
        (tmp_path / "pictures" / name).mkdir(parents=True, exist_ok=True)
        picture(k).save(tmp_path / "pictures" / name / f"{k}.png")
    whole = prepare_stream(str(tmp_path / "pictures"), str(tmp_path / "s"), mapper=map_in_process, shard_rows=5).stream
    assert class_counts(whole) == {**counts(), "n99999999": 1}
    plan = plan_splits(class_counts(whole), nouns, [wnid("poodle")], least=3)
    positions = np.arange(len(whole))
    order = list(zip(whole.class_names(positions), whole.read(positions), strict=True))
    for split in plan.splits:
        address = str(tmp_path / f"s-{split.name}")
        assert not is_written(whole, split, address)
        write_split(whole, split, address, mapper=map_in_process, shard_rows=2, group_rows=2)
        stream = WildStream.open(address)
        assert is_written(whole, split, address)  # a run that was stopped later on need not make it again
        assert stream.manifest.split == split.about
        expected = [(name, image.tobytes()) for name, image in order if name in split.classes]
        read = stream.read(np.arange(len(stream)))
        classes = stream.class_names(np.arange(len(stream)))
        assert [(name, image.tobytes()) for name, image in zip(classes, read, strict=True)] == expected
        pixels = read.reshape(-1, 3) / 255
        np.testing.assert_allclose(stream.manifest.statistics.mean, pixels.mean(axis=0), rtol=1e-12)
    first, second = plan.splits[:2]
    with pytest.raises(UserError, match="holds a stream already"):
        is_written(whole, first, str(tmp_path / f"s-{second.name}"))
    assert boxed(picture(0)) in {image.tobytes() for _, image in order}
