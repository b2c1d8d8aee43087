"""`prepare dataset`: any source with classes becomes files that trials map into memory."""

import json
from pathlib import Path

import numpy as np
import pytest

from gd_ray.data.dataset import ImageSet, LabelledData
from gd_ray.data.drawing import DrawSize, prepare_dataset
from gd_ray.data.pixels import Statistics, pixel_statistics
from gd_ray.data.prepared import load_prepared
from gd_ray.errors import UserError
from gd_ray.ray_utils import map_in_process
from gd_ray.sources.base import find_splits
from gd_ray.trial import run_trial
from gd_ray.wordnet.exclusions import Exclusions
from tests.helpers.pictures import boxed, picture, png, write_parquet
from tests.helpers.tiny import tiny_spec

NUMBERS = {"daisy": 13, "rose": 7, "tulip": 3}


def write_folder(root, numbers=NUMBERS, first=0):
    """A folder of pictures for each class; picture k of the c-th class is number 100 c + k."""
    for c, (name, number) in enumerate(numbers.items()):
        (root / name).mkdir(parents=True)
        for k in range(first, first + number):
            (root / name / f"{k:02d}.png").write_bytes(png(picture(100 * c + k)))
    return root


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "flowers")


def make(source, out, **options):
    description = prepare_dataset(str(source), str(out), mapper=map_in_process, **options)
    data = load_prepared(out, "flowers")
    assert description.digest == data.digest
    assert sorted(path.name for path in Path(out).iterdir() if not path.name.startswith("classes-of-seed")) == [
        *("dataset.json", "test-labels.npy", "test.npy", "train-labels.npy", "train.npy")
    ]
    return data


def pixels(part, label):
    return {image.tobytes() for image in part.images.numpy()[part.labels.numpy() == label]}


def counts(part):
    return np.bincount(part.labels).tolist()


@pytest.mark.parametrize("side", [32, 64])
def test_classes_of_unequal_size_of_which_a_sixth_is_held_out(folder, tmp_path, side):
    data = make(folder, tmp_path / "out", side=side)
    assert data.class_names == tuple(NUMBERS)
    assert (data.name, data.side, data.set_size) == ("flowers", side, None)
    assert counts(data.train) == [11, 6, 2]
    assert counts(data.test) == [2, 1, 1]
    for label, number in enumerate(NUMBERS.values()):
        train, test = pixels(data.train, label), pixels(data.test, label)
        assert not train & test
        assert train | test == {boxed(picture(100 * label + k), side) for k in range(number)}
    assert data.statistics == pixel_statistics(data.train.images)
    assert f"{tmp_path}/out/train.npy" in Path("/proc/self/maps").read_text()


def test_the_draw_is_fixed_by_the_seed(folder, tmp_path):
    first, again, other = (make(folder, tmp_path / str(k), seed=seed) for k, seed in enumerate((0, 0, 1)))
    assert first.digest == again.digest != other.digest


def test_numbers_and_exclusions(folder, tmp_path):
    exclude = Exclusions(frozenset({"Tulip"}))
    data = make(folder, tmp_path / "a", size=DrawSize(train_per_class=4, test_per_class=2), exclude=exclude)
    assert data.class_names == ("daisy", "rose")
    assert (counts(data.train), counts(data.test)) == ([4, 4], [2, 2])
    data = make(folder, tmp_path / "b", size=DrawSize(test_per_class=2))
    assert (counts(data.train), counts(data.test)) == ([11, 5, 1], [2, 2, 2])
    data = make(folder, tmp_path / "c", size=DrawSize(train_per_class=2, set_size=1))
    assert (counts(data.train), counts(data.test)) == ([2, 2, 2], [2, 1, 1])
    assert (tmp_path / "c" / "classes-of-seed-2.txt").read_text().strip() in NUMBERS


def test_a_source_of_test_images(folder, tmp_path):
    others = write_folder(tmp_path / "others", {"daisy": 2, "rose": 3, "tulip": 1}, first=50)
    data = make(folder, tmp_path / "a", test=str(others))
    assert (counts(data.train), counts(data.test)) == ([13, 7, 3], [2, 3, 1])
    assert pixels(data.test, 1) == {boxed(picture(100 + k)) for k in (50, 51, 52)}
    data = make(folder, tmp_path / "b", test=str(others), size=DrawSize(train_per_class=3, test_per_class=1))
    assert (counts(data.train), counts(data.test)) == ([3, 3, 3], [1, 1, 1])
    with pytest.raises(UserError, match="class 'tulip' of source .* has 1 images, but 2 are needed; lower"):
        make(folder, tmp_path / "c", test=str(others), size=DrawSize(test_per_class=2))
    (others / "tulip").rename(others / "lily")
    with pytest.raises(
        UserError, match="class 'tulip' of source .*flowers' has no image in .*others'; both need the same"
    ):
        make(folder, tmp_path / "c", test=str(others))


def test_splits_are_found_by_the_names_of_folders_and_files(folder, tmp_path):
    assert find_splits(str(folder)) is None
    root = tmp_path / "root"
    for name in ("train", "val"):
        (root / name).mkdir(parents=True)
    assert find_splits(str(root)) == (str(root / "train"), str(root / "val"))
    (root / "test").mkdir()
    assert find_splits(str(root)) == (str(root / "train"), str(root / "test"))
    with pytest.raises(UserError, match="root' would mix .*train and .*test; give one of them as the source"):
        make(root, tmp_path / "out")
    batches = tmp_path / "batches"
    batches.mkdir()
    for name in ("train_data_batch_1", "val_data"):
        (batches / name).touch()
    assert find_splits(str(batches)) == (str(batches / "train_data_batch*"), str(batches / "val_data*"))
    (tmp_path / "hub" / "data").mkdir(parents=True)
    for split, number in (("train", 8), ("validation", 4)):
        file = tmp_path / "hub" / "data" / f"{split}-00000-of-00001.parquet"
        write_parquet(file, [png(picture(k)) for k in range(number)], [k % 2 for k in range(number)], ["cat", "dog"])
    train, test = find_splits(str(tmp_path / "hub"))
    data = make(train, tmp_path / "out", test=test)
    assert (counts(data.train), counts(data.test)) == ([4, 4], [2, 2])
    assert data.class_names == ("cat", "dog")


def test_unreadable_images_are_dropped_where_all_are_taken(folder, tmp_path):
    (folder / "daisy" / "03.png").write_text("no picture")
    data = make(folder, tmp_path / "out")
    assert sum(counts(data.train)) + sum(counts(data.test)) == 22
    assert pixels(data.train, 0) | pixels(data.test, 0) == {boxed(picture(k)) for k in range(13) if k != 3}
    assert "03.png" in json.loads((tmp_path / "out" / "dataset.json").read_text())["unreadable"][0]
    for file in (folder / "tulip").iterdir():
        file.write_text("no picture")
    with pytest.raises(
        UserError, match="class 'tulip' has too few readable train images: 1 are needed; the first of 4"
    ):
        make(folder, tmp_path / "again")
    assert not list((tmp_path / "again").iterdir())


def test_what_is_passed_over_is_counted(folder, tmp_path):
    (folder / "rose" / "a.heic").touch()
    others = write_folder(tmp_path / "others", {"daisy": 2, "rose": 3, "tulip": 1}, first=50)
    (others / "about").touch()
    description = prepare_dataset(str(folder), str(tmp_path / "out"), test=str(others), mapper=map_in_process)
    assert description.passed_over.examples == {
        "unknown format .heic": [f"{folder}/rose/a.heic"],
        "name without an ending": [f"{others}/about"],
    }
    file = tmp_path / "out" / "dataset.json"
    content = json.loads(file.read_text())
    assert content.pop("passed_over")["counts"] == {"unknown format .heic": 1, "name without an ending": 1}
    file.write_text(json.dumps(content))  # as earlier versions wrote it
    assert load_prepared(tmp_path / "out", "flowers").digest == description.digest


def test_mistakes_are_sentences(folder, tmp_path):
    with pytest.raises(UserError, match="is the folder of the source's own files"):
        make(folder, folder)
    with pytest.raises(UserError, match="side 0 must be at least 1"):
        make(folder, tmp_path / "out", side=0)
    with pytest.raises(
        UserError, match="source 'glyphs:9' has images of 32x32, which cannot become 64x64; use --side 32"
    ):
        make("glyphs:9", tmp_path / "out", side=64)
    with pytest.raises(UserError, match="must be a local folder"):
        make(folder, "s3://bucket/set")
    with pytest.raises(UserError, match="has no image left"):
        make(folder, tmp_path / "out", exclude=Exclusions(frozenset(NUMBERS)))
    with pytest.raises(UserError, match="has no dataset.json; make it with 'gd-ray prepare dataset SOURCE FOLDER'"):
        load_prepared(folder, "flowers")
    assert not (tmp_path / "out").exists()
    one = write_folder(tmp_path / "one", {"daisy": 1})
    with pytest.raises(UserError, match=r"class 'daisy' of source .* has 1 images, but 1 \+ 1 are needed"):
        make(one, tmp_path / "out")


@pytest.mark.parametrize("change", [{"images": {}}, {"class_names": None}, {"statistics": [1]}, {"new": 1}])
def test_a_description_with_a_wrong_field(folder, tmp_path, change):
    make(folder, tmp_path / "out")
    file = tmp_path / "out" / "dataset.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=r"dataset.json' has a wrong field .*; prepare it again\.$"):
        load_prepared(tmp_path / "out", "flowers")


def test_changed_labels_are_found(folder, tmp_path):
    make(folder, tmp_path / "out")
    np.save(tmp_path / "out" / "train-labels.npy", np.zeros(19, np.int64))
    with pytest.raises(UserError, match=r"train-labels.npy' does not match its checksum"):
        load_prepared(tmp_path / "out", "flowers")


def test_train_and_test_images_of_different_sides():
    parts = [ImageSet.from_arrays(np.zeros((1, side, side, 3), np.uint8), [0]) for side in (32, 64)]
    one = (0.5, 0.5, 0.5)
    with pytest.raises(
        UserError, match="mixed has training images of 32x32, but test images of 64x64; give both one size"
    ):
        LabelledData("mixed", *parts, Statistics(one, one), ("a",))


def test_a_trial_on_larger_images(folder, tmp_path):
    data = make(folder, tmp_path / "out", side=64)
    spec = tiny_spec(
        method="baseline", dataset="flowers", num_classes=3, task_size=1, train_per_class=None, test_per_class=None
    )
    assert run_trial(spec, data).stages[-1].confusion[:, -1].sum() == len(data.test)
