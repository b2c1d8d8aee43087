import hashlib
import io
import json
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image
from torchvision.datasets import CIFAR100

from gd_ray.data.cifar100 import STATISTICS, load_cifar100, prepare_cifar100
from gd_ray.data.pixels import pixel_statistics
from gd_ray.errors import UserError

needs_cifar100 = pytest.mark.skipif(
    "GD_RAY_CIFAR100" not in os.environ, reason="GD_RAY_CIFAR100 names no folder with CIFAR-100"
)
NAMES = [f"class {k}" for k in range(100)]


def pictures(seed, number=6):
    rng = np.random.default_rng(seed)
    return rng.integers(0, 256, (number, 32, 32, 3), dtype=np.uint8), rng.integers(0, 100, number)


def write_parquet(folder, split, images, labels):
    encoded = []
    for image in images:
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        encoded.append({"bytes": buffer.getvalue(), "path": None})
    metadata = {"huggingface": json.dumps({"info": {"features": {"fine_label": {"names": NAMES}}}})}
    table = pa.table({"img": encoded, "fine_label": labels}).replace_schema_metadata(metadata)
    pq.write_table(table, folder / f"{split}-00000-of-00001.parquet")


def write_pickles(folder, train, test, monkeypatch, names=NAMES):
    """torchvision's own layout; its checksums are replaced by those of our small files."""
    base = folder / "cifar-100-python"
    base.mkdir()
    sums = {}
    for name, (images, labels) in {"train": train, "test": test}.items():
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        content = pickle.dumps({"data": rows, "fine_labels": labels.tolist()})
        (base / name).write_bytes(content)
        sums[name] = hashlib.md5(content).hexdigest()
    content = pickle.dumps({"fine_label_names": list(names)})
    (base / "meta").write_bytes(content)
    monkeypatch.setattr(CIFAR100, "train_list", [["train", sums["train"]]])
    monkeypatch.setattr(CIFAR100, "test_list", [["test", sums["test"]]])
    meta = {"filename": "meta", "key": "fine_label_names", "md5": hashlib.md5(content).hexdigest()}
    monkeypatch.setattr(CIFAR100, "meta", meta)


def test_both_forms_give_the_same_data(tmp_path, monkeypatch):
    train, test = pictures(0), pictures(1)
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    for split, (images, labels) in {"train": train, "test": test}.items():
        write_parquet(tmp_path / "a", split, images, labels)
    write_pickles(tmp_path / "b", train, test, monkeypatch)
    for data in (load_cifar100(tmp_path / "a"), load_cifar100(tmp_path / "b")):
        assert (data.train.images.numpy() == train[0]).all()
        assert (data.train.labels.numpy() == train[1]).all()
        assert (data.test.images.numpy() == test[0]).all()
        assert data.class_names == tuple(NAMES)
        assert data.statistics == STATISTICS


@pytest.mark.parametrize("form", ["parquet", "torchvision"])
def test_the_prepared_form_has_the_same_arrays_and_digest(tmp_path, monkeypatch, form):
    train, test = pictures(0), pictures(1)
    (tmp_path / "source").mkdir()
    if form == "parquet":
        for split, (images, labels) in {"train": train, "test": test}.items():
            write_parquet(tmp_path / "source", split, images, labels)
    else:
        write_pickles(tmp_path / "source", train, test, monkeypatch)
    data = load_cifar100(tmp_path / "source")
    description = prepare_cifar100(str(tmp_path / "out"), str(tmp_path / "source"))
    prepared = load_cifar100(tmp_path / "out")
    assert f"{tmp_path}/out/train.npy" in Path("/proc/self/maps").read_text()  # mapped, not read
    assert (prepared.train.images == data.train.images).all()
    assert (prepared.name, prepared.statistics, prepared.set_size) == ("cifar100", STATISTICS, None)
    assert prepared.digest == data.digest == description.digest
    prepare_cifar100(str(tmp_path / "source"))  # in its own folder
    assert load_cifar100(tmp_path / "source").digest == data.digest
    with pytest.raises(UserError, match="holds a prepared data set already"):
        prepare_cifar100(str(tmp_path / "source"))


def test_a_wrong_checksum_and_nothing_at_all(tmp_path, monkeypatch):
    write_pickles(tmp_path, pictures(0), pictures(1), monkeypatch)
    file = tmp_path / "cifar-100-python" / "test"
    file.write_bytes(file.read_bytes() + b"!")
    with pytest.raises(
        UserError, match="has a cifar-100-python with a wrong checksum: test; delete it and fetch it again"
    ):
        load_cifar100(tmp_path)
    with pytest.raises(UserError, match="holds neither cifar-100-python nor train"):
        load_cifar100(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("size", "label", "says"),
    [
        ((31, 32), 5, "has an image of 32x31 in test row 6, not 32x32"),
        ((32, 32), 100, "test labels reach 100, but there are only 100 class names"),
        ((32, 32), -1, "labels have the value -1; class numbers start at 0"),
    ],
)
def test_mixed_sizes_and_labels_outside_the_range(tmp_path, size, label, says):
    write_parquet(tmp_path, "train", *pictures(0))
    images, labels = pictures(1)
    write_parquet(tmp_path, "test", [*images, np.zeros((*size, 3), np.uint8)], [*labels, label])
    with pytest.raises(UserError, match=says):
        load_cifar100(tmp_path)


def test_parquet_without_the_columns(tmp_path):
    for split in ("train", "test"):
        pq.write_table(pa.table({"picture": [1]}), tmp_path / f"{split}.parquet")
    with pytest.raises(UserError, match="has no column 'img'"):
        load_cifar100(tmp_path)


@pytest.mark.parametrize(
    "features", [{}, {"info": {}}, {"info": {"features": {}}}, {"info": {"features": {"fine_label": {"dtype": "int"}}}}]
)
def test_parquet_whose_metadata_name_no_classes(tmp_path, features):
    for number, split in enumerate(("train", "test")):
        write_parquet(tmp_path, split, *pictures(number))
        (file,) = tmp_path.glob(f"{split}*.parquet")
        table = pq.read_table(file).replace_schema_metadata({"huggingface": json.dumps(features)})
        pq.write_table(table, file)
    assert load_cifar100(tmp_path).class_names == tuple(map(str, range(100)))


@pytest.mark.parametrize(
    ("images", "says"),
    [
        ([None, {"bytes": b"x", "path": None}], "has no image in train row 0; the column img must hold encoded images"),
        (["words", "words"], "has no image in train row 0"),
        ([b"no image", b"no image"], "cannot be read"),
        (pa.array([], pa.struct({"bytes": pa.binary()})), "has no train images; download it again"),
    ],
)
def test_parquet_without_images(tmp_path, images, says):
    write_parquet(tmp_path, "test", *pictures(1))
    labels = pa.array([0] * len(images), pa.int64())
    pq.write_table(pa.table({"img": images, "fine_label": labels}), tmp_path / "train.parquet")
    with pytest.raises(UserError, match=says):
        load_cifar100(tmp_path)


@needs_cifar100
def test_the_real_data():
    data = load_cifar100(Path(os.environ["GD_RAY_CIFAR100"]))
    assert (len(data.train), len(data.test), data.num_classes) == (50_000, 10_000, 100)
    assert np.bincount(data.train.labels).tolist() == [500] * 100
    found = pixel_statistics(data.train.images)
    np.testing.assert_allclose(found.mean, STATISTICS.mean, atol=1e-6)
    np.testing.assert_allclose(found.std, STATISTICS.std, atol=1e-6)
    assert data.digest == "93619e59ffdf4c0a"  # of the published results
