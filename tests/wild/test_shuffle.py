import errno

import numpy as np
import pytest

from gd_ray.errors import UserError
from gd_ray.ray_utils import map_in_process
from gd_ray.wild import shuffle
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.stream import WildStream
from gd_ray.wordnet.exclusions import Exclusions, read_exclusions
from tests.helpers.streams import contents, excluded, expected, make


def test_no_stream_is_written_into_the_folder_of_its_images(pictures, tmp_path):
    before = sorted(pictures.rglob("*"))
    (tmp_path / "link").symlink_to(pictures)
    cats = pictures / "cat"
    for source, out in (
        (pictures, pictures),
        (pictures, tmp_path / "link"),
        (cats / "*.png", cats),
        (cats / "1.png", cats),
    ):
        with pytest.raises(UserError, match=f"out '{out}' is the folder of the source's own files; choose another"):
            make(source, out)
    assert sorted(pictures.rglob("*")) == before


def test_statistics_are_exact(tmp_path):
    found = make("glyphs:500", tmp_path / "out", shard_rows=200).stream
    pixels = found.read(np.arange(500)).reshape(-1, 3).astype(float) / 255
    np.testing.assert_allclose(found.manifest.statistics.mean, pixels.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(found.manifest.statistics.std, pixels.std(axis=0), rtol=1e-12)


def test_the_shuffle_is_fixed_by_the_seed_and_uniform(tmp_path):
    def order(name, **options):
        return [
            i.tobytes()
            for i in make("glyphs:900", tmp_path / name, shard_rows=300, **options).stream.read(np.arange(900))
        ]

    first = order("a")
    assert first == order("b")
    other = order("c", seed=1)
    assert first != other
    assert sorted(first) == sorted(other)
    # Images of the source's first third are spread over the whole stream.
    from gd_ray.data.glyphs import wild_glyphs

    early = {image.tobytes() for image in wild_glyphs(300)}
    thirds = [sum(image in early for image in first[k : k + 300]) for k in (0, 300, 600)]
    assert all(70 < count < 130 for count in thirds)


def test_exclusions_by_name_and_file(pictures, tmp_path):
    (tmp_path / "list.txt").write_text("# comment\ndog  # a class\n\n")
    assert read_exclusions([str(tmp_path / "list.txt"), "bird"]) == excluded("dog", "bird")
    found = make(pictures, tmp_path / "out", exclude=read_exclusions([str(tmp_path / "list.txt"), "bird"]))
    assert contents(found.stream) == [entry for entry in expected() if entry[1] == "cat"]
    assert found.stream.manifest.excluded == {"dog": 5}
    assert found.warnings == ("exclude: no image of class 'bird' was found.",)


def test_a_list_that_matches_nothing_is_told(pictures, tmp_path):
    made = make(pictures, tmp_path / "out", exclude=Exclusions(listed=frozenset({"n00000001", "n00000002"})))
    (told,) = made.warnings
    assert "no image of any class of the list was found; the classes of the source are such as 'cat', 'dog'" in told
    assert not make(pictures, tmp_path / "some", exclude=Exclusions(listed=frozenset({"cat", "bird"}))).warnings
    for file in (pictures / "cat").iterdir():
        file.rename(tmp_path / file.name)
    with pytest.raises(UserError, match="exclude has no effect: the images of source .* have no classes"):
        make(tmp_path / "1.png", tmp_path / "flat", exclude=excluded("cat"))


def test_an_exclusion_does_not_change_the_order_of_the_rest(pictures, tmp_path):
    whole, part = make(pictures, tmp_path / "a").stream, make(pictures, tmp_path / "b", exclude=excluded("dog")).stream
    names = whole.class_names(np.arange(10))
    images = whole.read(np.arange(10))
    assert [i.tobytes() for i in part.read(np.arange(5))] == [
        i.tobytes() for i, name in zip(images, names, strict=True) if name == "cat"
    ]


def leaves_nothing(out):
    assert not list(out.rglob("*.parquet"))
    assert not list(out.rglob("*.arrow"))
    with pytest.raises(UserError, match=r"has no manifest\.json"):
        WildStream.open(str(out))


def test_nothing_left_or_nothing_readable(pictures, tmp_path):
    with pytest.raises(UserError, match="exclude leaves nothing of source"):
        make(pictures, tmp_path / "out", exclude=excluded("cat", "dog"))
    leaves_nothing(tmp_path / "out")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_text("no picture")
    with pytest.raises(UserError, match="has no readable image; the first of 1 failures"):
        make(tmp_path / "bad", tmp_path / "out")
    leaves_nothing(tmp_path / "out")


def test_a_stream_is_never_overwritten(pictures, tmp_path):
    make(pictures, tmp_path / "out")
    with pytest.raises(UserError, match="holds a stream already"):
        make("glyphs:10", tmp_path / "out")
    assert contents(WildStream.open(str(tmp_path / "out"))) == expected()


def test_an_interrupted_run_leaves_no_half_stream_and_can_be_repeated(pictures, tmp_path):
    def interrupted(function, items):
        for k, result in enumerate(map_in_process(function, items)):
            if isinstance(function, shuffle.ShuffleReduce) and k == 1:
                raise KeyboardInterrupt
            yield result

    with pytest.raises(KeyboardInterrupt):
        prepare_stream("glyphs:900", str(tmp_path / "out"), shard_rows=300, mapper=interrupted)
    leaves_nothing(tmp_path / "out")
    (tmp_path / "out" / "shard-00007.parquet").write_text("left by a process that was killed")
    (tmp_path / "out" / ".unfinished").touch()
    assert contents(make(pictures, tmp_path / "out").stream) == expected()
    assert not (tmp_path / "out" / "shard-00007.parquet").exists()


def test_files_of_others_are_never_removed(pictures, tmp_path):
    foreign = tmp_path / "out" / "shard-00000.parquet"
    foreign.parent.mkdir()
    foreign.write_text("somebody's")
    with pytest.raises(UserError, match="holds a shard-00000.parquet of something else; choose another folder"):
        make(pictures, tmp_path / "out")
    assert foreign.read_text() == "somebody's"
    foreign.rename(tmp_path / "out" / "notes")
    made = make(pictures, tmp_path / "out").stream
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"notes", "manifest.json", *(shard.file for shard in made.manifest.shards)}


@pytest.mark.parametrize("step", ["ShuffleMap", "ShuffleReduce"])
def test_no_space_left(tmp_path, monkeypatch, step):
    def full(self, item):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(getattr(shuffle, step), "__call__", full)
    with pytest.raises(UserError, match="has no space left; free some or choose another folder") as error:
        make("glyphs:900", tmp_path / "out")
    assert "\n" not in str(error.value)
    leaves_nothing(tmp_path / "out")
