import errno
import os
import pickle

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gd_ray.errors import UserError
from gd_ray.ray_utils import map_in_process
from gd_ray.sources.base import open_source
from gd_ray.wild import shuffle
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.stream import WildStream
from gd_ray.wordnet.exclusions import Exclusions, read_exclusions
from gd_ray.wordnet.ilsvrc2012 import BATCH_LABELS
from tests.helpers.pictures import boxed, picture, png, tar_bytes, write_parquet


def contents(stream: WildStream):
    """The images and classes of a stream, whatever their order."""
    positions = np.arange(len(stream))
    images = [image.tobytes() for image in stream.read(positions)]
    return sorted(zip(images, (str(name) for name in stream.class_names(positions)), strict=True))


def excluded(*names):
    return Exclusions(frozenset(names))


def make(source, out, **options):
    return prepare_stream(str(source), str(out), mapper=map_in_process, **options)


@pytest.fixture
def folder(tmp_path):
    """Two classes of five pictures."""
    for k in range(10):
        path = tmp_path / "pictures" / ("cat" if k % 2 else "dog") / f"{k}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(k).save(path)
    return tmp_path / "pictures"


def expected(number=10):
    return sorted((boxed(picture(k)), "cat" if k % 2 else "dog") for k in range(number))


def test_a_folder_with_a_class_per_folder(folder, tmp_path):
    found = make(folder, tmp_path / "out").stream
    assert contents(found) == expected()
    assert found.manifest.classes == 2
    assert found.manifest.source == str(folder)


def test_what_is_passed_over_is_counted_and_named(folder, tmp_path, monkeypatch):
    for name in ("cat/a.heic", "dog/b.HEIC", "dog/c.heic", "dog/d.heic", "cat/picture", "notes.txt", "locked/e.png"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(png(picture(1)))
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    out = tmp_path / "out"
    assert contents(make(folder, out).stream) == expected()
    passed_over = WildStream.open(str(out)).manifest.passed_over
    locked = "folder that cannot be read (Permission denied)"
    assert passed_over.counts == {
        **{locked: 1, "unknown format .heic": 4},
        **{"unknown format .txt": 1, "name without an ending": 1},
    }
    assert passed_over.examples["unknown format .heic"] == [
        *(f"{folder}/cat/a.heic", f"{folder}/dog/b.HEIC", f"{folder}/dog/c.heic")
    ]
    assert passed_over.examples[locked] == [f"{folder}/locked"]
    with pytest.raises(
        UserError, match=r"holds no images \(folder that cannot be read \(Permission denied\): .*locked"
    ):
        make(folder / "locked", tmp_path / "again")


@pytest.mark.parametrize("rows", [1, 4096])
def test_members_of_tars_that_are_passed_over(tmp_path, monkeypatch, rows):
    monkeypatch.setattr("gd_ray.sources.tars.PART_ROWS", rows)
    inner = tar_bytes([("0.png", png(picture(0))), ("1.png", png(picture(1))), ("0.txt", b"a"), ("2.heic", b"b")])
    (tmp_path / "whole.tar").write_bytes(tar_bytes([("n00000001.tar", inner), ("about", b"c")]))
    passed_over = make(tmp_path / "whole.tar", tmp_path / "out").stream.manifest.passed_over
    assert passed_over.examples == {
        "name without an ending": [f"{tmp_path}/whole.tar/about"],
        "unknown format .txt": [f"{tmp_path}/whole.tar/n00000001.tar/0.txt"],
        "unknown format .heic": [f"{tmp_path}/whole.tar/n00000001.tar/2.heic"],
    }


def test_the_path_of_every_image(folder, tmp_path):
    def paths(source):
        stream = make(source, tmp_path / f"out{len(list(tmp_path.iterdir()))}").stream
        return dict(zip(stream.paths(np.arange(len(stream))), stream.read(np.arange(len(stream))), strict=True))

    for path, image in paths(folder).items():
        assert boxed(Image.open(path)) == image.tobytes()
    write_parquet(tmp_path / "part.parquet", [png(picture(k)) for k in range(4)], [0] * 4, ["dog"])
    last = paths(tmp_path / "part.parquet")[f"{tmp_path}/part.parquet, row group 1, row 0"]
    assert last.tobytes() == boxed(picture(3))
    (tmp_path / "one.tar").write_bytes(tar_bytes([("d/0.png", png(picture(7)))]))
    assert paths(tmp_path / "one.tar")[f"{tmp_path}/one.tar/d/0.png"].tobytes() == boxed(picture(7))
    rows = np.arange(2 * 3072).astype(np.uint8).reshape(2, 3072)
    np.savez(tmp_path / "train_data_batch_1.npz", data=rows, labels=[1, 2])
    file = tmp_path / "train_data_batch_1.npz"
    assert set(paths(file)) == {f"{file}, row 0", f"{file}, row 1"}
    (tmp_path / "tiny_images.bin").write_bytes(rows.tobytes())
    file = tmp_path / "tiny_images.bin"
    record = paths(file)[f"{file}, record 1"]
    assert record.tobytes(order="F") == rows[1].tobytes()
    from gd_ray.data.glyphs import wild_glyphs

    assert (paths("glyphs:5")["glyphs, image 3"] == wild_glyphs(5)[3]).all()


def test_no_stream_is_written_into_the_folder_of_its_images(folder, tmp_path):
    before = sorted(folder.rglob("*"))
    (tmp_path / "link").symlink_to(folder)
    cats = folder / "cat"
    for source, out in ((folder, folder), (folder, tmp_path / "link"), (cats / "*.png", cats), (cats / "1.png", cats)):
        with pytest.raises(UserError, match=f"out '{out}' is the folder of the source's own files; choose another"):
            make(source, out)
    assert sorted(folder.rglob("*")) == before


def test_a_training_and_a_test_part_are_not_pooled_silently(folder, tmp_path):
    (folder / "cat").rename(folder / "train")
    assert not make(folder, tmp_path / "train").warnings
    (folder / "dog").rename(folder / "test")
    (warning,) = make(folder, tmp_path / "both").warnings
    assert f"the stream has the images of {folder}/train and of {folder}/test; for one of them" in warning


def test_a_flat_folder_has_no_classes(tmp_path):
    (tmp_path / "flat").mkdir()
    picture(1).save(tmp_path / "flat" / "a.png")
    found = make(tmp_path / "flat", tmp_path / "out").stream
    assert contents(found) == [(boxed(picture(1)), "None")]
    assert found.manifest.classes == 0


def test_hugging_face_parquet(tmp_path):
    contained = [png(picture(k)) for k in range(10)]
    write_parquet(tmp_path / "part.parquet", contained, [k % 2 for k in range(10)], ["dog", "cat"])
    assert contents(make(tmp_path / "part.parquet", tmp_path / "out").stream) == expected()


@pytest.mark.parametrize("rows", [3, 4, 10, 4096])
def test_parts_of_one_large_row_group(tmp_path, monkeypatch, rows):
    """Whatever pieces it is read in: rows before a part are passed over, and those behind it are not read."""
    from gd_ray.sources import parquet

    monkeypatch.setattr(parquet, "PART_ROWS", rows)
    file = tmp_path / "part.parquet"
    pictures = pa.array([{"bytes": png(picture(k)), "path": None} for k in range(10)])
    pq.write_table(pa.table({"image": pictures, "label": [f"class {k}" for k in range(10)]}), file, row_group_size=10)
    for start, number in ((0, 10), (0, 4), (4, 4), (8, 2), (3, 5)):
        part = parquet.ParquetPart(file, 0, start, number, 32)
        assert part.index().classes == [f"class {k}" for k in range(start, start + number)]
        chunk = part.load(np.array([number - 1, 0]))
        assert [image.tobytes() for image in chunk.images] == [
            boxed(picture(start + number - 1)),
            boxed(picture(start)),
        ]


def test_a_parquet_label_outside_its_names(tmp_path):
    file = tmp_path / "part.parquet"
    write_parquet(file, [png(picture(k)) for k in range(5)], [0, 1, -1, 1, 2], ["dog", "cat"])
    with pytest.raises(UserError, match="has label 2 in row group 1, row 1, outside 0 to 1"):
        make(file, tmp_path / "out")
    write_parquet(file, [png(picture(k)) for k in range(3)], [0, 1, -1], ["dog", "cat"])
    found = make(file, tmp_path / "out").stream
    assert contents(found) == sorted(zip(map(boxed, map(picture, range(3))), ["dog", "cat", "None"], strict=True))


def test_webdataset_tars(tmp_path):
    for part in range(2):
        files = []
        for k in range(5 * part, 5 * part + 5):
            files += [(f"{k}.png", png(picture(k))), (f"{k}.cls", b"cat" if k % 2 else b"dog")]
        (tmp_path / f"{part}.tar").write_bytes(tar_bytes(files))
    assert contents(make(tmp_path, tmp_path / "out").stream) == expected()


def class_tar(start=0):
    return tar_bytes((f"{k}.png", png(picture(k))) for k in range(start, start + 4))


def test_a_tar_named_after_a_wordnet_id_and_a_truncated_one(tmp_path):
    (tmp_path / "n00000001.tar").write_bytes(class_tar())
    (tmp_path / "n00000002.tar").write_bytes(class_tar()[:9000])
    found = make(tmp_path, tmp_path / "out").stream
    names = [name for _, name in contents(found)]
    assert names.count("n00000001") == 4
    assert 0 < names.count("n00000002") < 4
    assert found.manifest.unreadable == 1
    assert "the rest of the archive is lost" in found.manifest.unreadable_examples[0]


def test_a_label_that_cannot_be_read_costs_only_itself(tmp_path):
    files = [item for k in range(6) for item in ((f"{k}.png", png(picture(k))), (f"{k}.cls", b"cat"))]
    files[3] = ("1.cls", b"\xff\xfe")
    files[5] = ("2.json", b"{no")
    (tmp_path / "0.tar").write_bytes(tar_bytes(files))
    found = make(tmp_path, tmp_path / "out").stream
    assert [name for _, name in contents(found)].count("cat") == 4
    assert len(found) == 6
    assert found.manifest.unreadable == 2


def test_wordnet_ids_of_folders_further_up(tmp_path):
    """As in Tiny-ImageNet's own layout, and in a tar of ILSVRC's folders."""
    names = [f"train/n0000000{1 + k // 4}/images/{k}.png" for k in range(8)]
    for k, name in enumerate(names):
        (tmp_path / "files" / name).parent.mkdir(parents=True, exist_ok=True)
        picture(k).save(tmp_path / "files" / name)
    (tmp_path / "one.tar").write_bytes(tar_bytes((name, png(picture(k))) for k, name in enumerate(names)))
    for source in ("files", "one.tar"):
        found = make(tmp_path / source, tmp_path / f"out-{source}", exclude=excluded("n00000001")).stream
        assert contents(found) == sorted((boxed(picture(k)), "n00000002") for k in range(4, 8))


def test_a_large_tar_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("gd_ray.sources.tars.PART_ROWS", 3)
    files = [
        item for k in range(10) for item in ((f"{k}.png", png(picture(k))), (f"{k}.cls", b"cat" if k % 2 else b"dog"))
    ]
    (tmp_path / "one.tar").write_bytes(tar_bytes(files))
    parts = open_source(str(tmp_path / "one.tar")).parts
    assert [part.expected for part in parts] == [3, 3, 3, 1]
    assert contents(make(tmp_path / "one.tar", tmp_path / "out").stream) == expected()


def test_a_tar_of_tars_and_other_things(tmp_path):
    whole = tar_bytes(
        [("readme.txt", b"hello"), ("all/n00000001.tar", class_tar()), ("all/n00000002.tar", class_tar(4))]
    )
    (tmp_path / "whole.tar").write_bytes(whole)
    (tmp_path / "without.tar").write_bytes(tar_bytes([("readme.txt", b"hello")]))
    found = make(tmp_path, tmp_path / "out").stream
    assert contents(found) == sorted((boxed(picture(k)), f"n0000000{1 + k // 4}") for k in range(8))
    assert "without.tar: it holds no image" in found.manifest.unreadable_examples[0]


def test_sources_of_two_kinds_are_refused_and_tables_beside_images_are_not(folder, tmp_path):
    pq.write_table(pa.table({"url": ["x"]}), folder / "metadata.parquet")
    assert contents(make(folder, tmp_path / "out").stream) == expected()
    (folder / "backup.tar").write_bytes(class_tar())
    with pytest.raises(UserError, match=r"holds tar files \(backup.tar\) and image files \(1.png\); put one kind"):
        make(folder, tmp_path / "again")
    with pytest.raises(UserError, match="has no image column"):
        make(folder / "metadata.parquet", tmp_path / "again")


def test_odd_names_and_links_in_a_circle(folder, tmp_path):
    (folder / "cat" / "back").symlink_to(folder)
    (folder / "cat").rename(os.fsdecode(os.fsencode(folder) + b"/c\xe9t"))
    found = make(folder, tmp_path / "out").stream
    assert len(found) == 10
    assert set(found.class_names(np.arange(10))) == {"c\\udce9t", "dog"}


def test_a_damaged_batch_is_counted(tmp_path):
    (tmp_path / "train_data_batch_1.npz").write_bytes(b"PK\x03\x04 and no more")
    labels = [1, 2]
    np.savez(tmp_path / "train_data_batch_2.npz", data=np.zeros((2, 3072), np.uint8), labels=labels)
    found = make(tmp_path, tmp_path / "out").stream
    assert (len(found), found.manifest.unreadable) == (2, 1)


def test_a_tar_of_tars(tmp_path):
    whole = tar_bytes([("n00000001.tar", class_tar()), ("n00000002.tar", class_tar(4))])
    (tmp_path / "whole.tar").write_bytes(whole)
    found = make(tmp_path / "whole.tar", tmp_path / "out", exclude=excluded("n00000003")).stream
    assert contents(found) == sorted((boxed(picture(k)), f"n0000000{1 + k // 4}") for k in range(8))
    part = make(tmp_path / "whole.tar", tmp_path / "part", exclude=excluded("n00000001")).stream
    assert contents(part) == sorted((boxed(picture(k)), "n00000002") for k in range(4, 8))
    assert part.manifest.excluded == {"n00000001": 4}
    (tmp_path / "whole.tar").write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(UserError, match="is a truncated tar: after 2 tars inside it, unexpected end of data"):
        make(tmp_path / "whole.tar", tmp_path / "again")


@pytest.mark.parametrize("form", ["pickle", "npz"])
def test_downsampled_imagenet_batches(tmp_path, form):
    images = np.random.default_rng(0).integers(0, 256, (10, 32, 32, 3), dtype=np.uint8)
    content = {"data": images.transpose(0, 3, 1, 2).reshape(10, -1), "labels": [k + 1 for k in range(10)]}
    if form == "pickle":
        (tmp_path / "train_data_batch_1").write_bytes(pickle.dumps(content))
    else:
        np.savez(tmp_path / "train_data_batch_1.npz", **content)
    found = make(tmp_path, tmp_path / "out").stream
    assert contents(found) == sorted((images[k].tobytes(), BATCH_LABELS[k]) for k in range(10))


def test_downsampled_imagenet_batches_of_another_side(tmp_path):
    images = np.random.default_rng(0).integers(0, 256, (10, 64, 64, 3), dtype=np.uint8)
    rows = images.transpose(0, 3, 1, 2).reshape(10, -1)
    np.savez(tmp_path / "train_data_batch_1.npz", data=rows, labels=np.arange(1, 11))
    found = make(tmp_path, tmp_path / "out", side=64).stream
    assert contents(found) == sorted((images[k].tobytes(), BATCH_LABELS[k]) for k in range(10))


def test_a_pattern_of_files(tmp_path):
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", [png(picture(len(split)))], [0], ["cat"])
    found = make(tmp_path / "train-*.parquet", tmp_path / "out").stream
    assert contents(found) == [(boxed(picture(5)), "cat")]
    with pytest.raises(UserError, match="does not exist"):
        make(tmp_path / "val-*.parquet", tmp_path / "again")


@pytest.mark.parametrize(
    ("width", "labels", "says"),
    [
        (3072, [1, 1001], r"has label 1001 in row 1, outside 1 to 1000"),
        (3072, [0, 1], r"has label 0 in row 0"),
        (3072, [1], r"has 2 rows, but labels of shape \(1,\) and type int64"),
        (3072, ["a", "b"], r"has 2 rows, but labels of shape \(2,\) and type <U1; it needs a whole number for each"),
        (3072, None, r"has 2 rows, but labels of shape \(\) and type object"),
        (64 * 64 * 3, [1, 2], r"has images of 64x64, which cannot become 32x32; use --side 64"),
        (3000, [1, 2], r"rows of shape \(2, 3000\); they must hold square RGB images"),
    ],
)
def test_batches_of_other_labels_and_sizes(tmp_path, width, labels, says):
    good = {"data": np.zeros((1, 3072), np.uint8), "labels": [1]}
    (tmp_path / "train_data_batch_1").write_bytes(pickle.dumps(good))
    (tmp_path / "train_data_batch_2").write_bytes(
        pickle.dumps({"data": np.zeros((2, width), np.uint8), "labels": labels})
    )
    with pytest.raises(UserError, match=says):
        make(tmp_path, tmp_path / "out")


def test_batches_of_other_pixels_and_of_no_arrays(tmp_path):
    file = tmp_path / "train_data_batch_1"
    file.write_bytes(pickle.dumps({"data": np.full((1, 3072), 300.0), "labels": [1]}))
    with pytest.raises(UserError, match="has pixels of type float64; they must be uint8"):
        make(tmp_path, tmp_path / "out")
    file.write_bytes(pickle.dumps([1, 2]))
    with pytest.raises(UserError, match="no readable image.*TypeError"):
        make(tmp_path, tmp_path / "out")


def test_a_pickle_runs_no_code(tmp_path):
    class Evil:
        def __reduce__(self):
            return (print, ("owned",))

    (tmp_path / "train_data_batch_1").write_bytes(pickle.dumps({"data": Evil(), "labels": []}))
    with pytest.raises(UserError, match="no readable image.*which is not an array"):
        make(tmp_path, tmp_path / "out")


def test_greyscale_palette_and_transparent_pictures(tmp_path):
    (tmp_path / "s").mkdir()
    grey = picture(1).convert("L")
    grey.save(tmp_path / "s" / "grey.png")
    clear = Image.new("RGBA", (40, 40), (255, 0, 0, 0))  # red that cannot be seen
    clear.save(tmp_path / "s" / "clear.png")
    picture(2).quantize(16).save(tmp_path / "s" / "palette.gif")
    found = make(tmp_path / "s", tmp_path / "out").stream
    images = {image for image, _ in contents(found)}
    assert boxed(grey) in images
    assert bytes([255]) * 3072 in images
    assert len(images) == 3


def test_corrupt_images_are_counted_and_listed(folder, tmp_path):
    (folder / "dog" / "torn.png").write_bytes(png(picture(3))[:200])
    (folder / "dog" / "text.jpg").write_text("no picture")
    (folder / "dog" / "void.jpg").touch()
    stream = make(folder, tmp_path / "out").stream
    assert contents(stream) == expected()
    assert stream.manifest.unreadable == 3
    assert list(stream.manifest.unreadable_examples) == [
        f"{folder}/dog/text.jpg: no image in a format that Pillow knows",
        f"{folder}/dog/torn.png: OSError: image file is truncated",
        f"{folder}/dog/void.jpg: ValueError: it is empty",
    ]


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


def test_exclusions_by_name_and_file(folder, tmp_path):
    (tmp_path / "list.txt").write_text("# comment\ndog  # a class\n\n")
    assert read_exclusions([str(tmp_path / "list.txt"), "bird"]) == excluded("dog", "bird")
    found = make(folder, tmp_path / "out", exclude=read_exclusions([str(tmp_path / "list.txt"), "bird"]))
    assert contents(found.stream) == [entry for entry in expected() if entry[1] == "cat"]
    assert found.stream.manifest.excluded == {"dog": 5}
    assert found.warnings == ("exclude: no image of class 'bird' was found.",)


def test_a_list_that_matches_nothing_is_told(folder, tmp_path):
    made = make(folder, tmp_path / "out", exclude=Exclusions(listed=frozenset({"n00000001", "n00000002"})))
    (told,) = made.warnings
    assert "no image of any class of the list was found; the classes of the source are such as 'cat', 'dog'" in told
    assert not make(folder, tmp_path / "some", exclude=Exclusions(listed=frozenset({"cat", "bird"}))).warnings
    for file in (folder / "cat").iterdir():
        file.rename(tmp_path / file.name)
    with pytest.raises(UserError, match="exclude has no effect: the images of source .* have no classes"):
        make(tmp_path / "1.png", tmp_path / "flat", exclude=excluded("cat"))


def test_an_exclusion_does_not_change_the_order_of_the_rest(folder, tmp_path):
    whole, part = make(folder, tmp_path / "a").stream, make(folder, tmp_path / "b", exclude=excluded("dog")).stream
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


@pytest.mark.parametrize(
    ("source", "says"),
    [
        ("nowhere", "does not exist"),
        ("empty", "holds no images"),
        ("glyphs:many", "needs a number of images"),
        ("glyphs:0", "needs a number of images"),
    ],
)
def test_a_source_that_is_none(tmp_path, source, says):
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=says) as error:
        make(source if ":" in source else tmp_path / source, tmp_path / "out")
    assert "\n" not in str(error.value)


def test_nothing_left_or_nothing_readable(folder, tmp_path):
    with pytest.raises(UserError, match="exclude leaves nothing of source"):
        make(folder, tmp_path / "out", exclude=excluded("cat", "dog"))
    leaves_nothing(tmp_path / "out")
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.png").write_text("no picture")
    with pytest.raises(UserError, match="has no readable image; the first of 1 failures"):
        make(tmp_path / "bad", tmp_path / "out")
    leaves_nothing(tmp_path / "out")


def test_a_stream_is_never_overwritten(folder, tmp_path):
    make(folder, tmp_path / "out")
    with pytest.raises(UserError, match="holds a stream already"):
        make("glyphs:10", tmp_path / "out")
    assert contents(WildStream.open(str(tmp_path / "out"))) == expected()


def test_an_interrupted_run_leaves_no_half_stream_and_can_be_repeated(folder, tmp_path):
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
    assert contents(make(folder, tmp_path / "out").stream) == expected()
    assert not (tmp_path / "out" / "shard-00007.parquet").exists()


def test_files_of_others_are_never_removed(folder, tmp_path):
    foreign = tmp_path / "out" / "shard-00000.parquet"
    foreign.parent.mkdir()
    foreign.write_text("somebody's")
    with pytest.raises(UserError, match="holds a shard-00000.parquet of something else; choose another folder"):
        make(folder, tmp_path / "out")
    assert foreign.read_text() == "somebody's"
    foreign.rename(tmp_path / "out" / "notes")
    made = make(folder, tmp_path / "out").stream
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
