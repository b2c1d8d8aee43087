"""Streams from batches of downsampled ImageNet."""

import pickle

import numpy as np
import pytest

from gd_ray.errors import UserError
from gd_ray.wordnet.ilsvrc2012 import BATCH_LABELS
from tests.helpers.streams import contents, make


def test_a_damaged_batch_is_counted(tmp_path):
    (tmp_path / "train_data_batch_1.npz").write_bytes(b"PK\x03\x04 and no more")
    labels = [1, 2]
    np.savez(tmp_path / "train_data_batch_2.npz", data=np.zeros((2, 3072), np.uint8), labels=labels)
    found = make(tmp_path, tmp_path / "out").stream
    assert (len(found), found.manifest.unreadable) == (2, 1)


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
