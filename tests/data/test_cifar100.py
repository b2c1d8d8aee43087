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

from gd_ray.data.cifar100 import STATISTICS, load_cifar100
from gd_ray.data.image_set import pixel_statistics
from gd_ray.errors import UserError

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


def write_pickles(folder, train, test, monkeypatch):
    """torchvision's own layout; its checksums are replaced by those of our small files."""
    base = folder / "cifar-100-python"
    base.mkdir()
    sums = {}
    for name, (images, labels) in {"train": train, "test": test}.items():
        rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
        content = pickle.dumps({"data": rows, "fine_labels": labels.tolist()})
        (base / name).write_bytes(content)
        sums[name] = hashlib.md5(content).hexdigest()
    content = pickle.dumps({"fine_label_names": NAMES})
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


def test_parquet_without_the_columns(tmp_path):
    for split in ("train", "test"):
        pq.write_table(pa.table({"picture": [1]}), tmp_path / f"{split}.parquet")
    with pytest.raises(UserError, match="has no column 'img'"):
        load_cifar100(tmp_path)


@pytest.mark.skipif("GD_RAY_CIFAR100" not in os.environ, reason="GD_RAY_CIFAR100 names no folder with CIFAR-100")
def test_the_real_data():
    data = load_cifar100(Path(os.environ["GD_RAY_CIFAR100"]))
    assert (len(data.train), len(data.test), data.num_classes) == (50_000, 10_000, 100)
    assert np.bincount(data.train.labels).tolist() == [500] * 100
    found = pixel_statistics(data.train.images)
    np.testing.assert_allclose(found.mean, STATISTICS.mean, atol=1e-6)
    np.testing.assert_allclose(found.std, STATISTICS.std, atol=1e-6)
