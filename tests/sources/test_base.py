"""What every kind of source has in common: how it is found, refused and named, and the paths of its images."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from gd_ray.errors import UserError
from tests.helpers.pictures import boxed, class_tar, picture, png, tar_bytes, write_parquet
from tests.helpers.streams import contents, excluded, expected, make


def test_the_path_of_every_image(pictures, tmp_path):
    def paths(source):
        stream = make(source, tmp_path / f"out{len(list(tmp_path.iterdir()))}").stream
        return dict(zip(stream.paths(np.arange(len(stream))), stream.read(np.arange(len(stream))), strict=True))

    for path, image in paths(pictures).items():
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


def test_a_training_and_a_test_part_are_not_pooled_silently(pictures, tmp_path):
    (pictures / "cat").rename(pictures / "train")
    assert not make(pictures, tmp_path / "train").warnings
    (pictures / "dog").rename(pictures / "test")
    (warning,) = make(pictures, tmp_path / "both").warnings
    assert f"the stream has the images of {pictures}/train and of {pictures}/test; for one of them" in warning


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


def test_sources_of_two_kinds_are_refused_and_tables_beside_images_are_not(pictures, tmp_path):
    pq.write_table(pa.table({"url": ["x"]}), pictures / "metadata.parquet")
    assert contents(make(pictures, tmp_path / "out").stream) == expected()
    (pictures / "backup.tar").write_bytes(class_tar())
    with pytest.raises(UserError, match=r"holds tar files \(backup.tar\) and image files \(1.png\); put one kind"):
        make(pictures, tmp_path / "again")
    with pytest.raises(UserError, match="has no image column"):
        make(pictures / "metadata.parquet", tmp_path / "again")


def test_a_pattern_of_files(tmp_path):
    for split in ("train", "test"):
        write_parquet(tmp_path / f"{split}-0.parquet", [png(picture(len(split)))], [0], ["cat"])
    found = make(tmp_path / "train-*.parquet", tmp_path / "out").stream
    assert contents(found) == [(boxed(picture(5)), "cat")]
    with pytest.raises(UserError, match="does not exist"):
        make(tmp_path / "val-*.parquet", tmp_path / "again")


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
