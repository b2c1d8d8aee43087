import os
import pickle

import numpy as np
import pytest

from gd_ray.data.imagenet32 import STATISTICS, DrawSize, load_imagenet32, prepare_imagenet32
from gd_ray.data.pixels import pixel_statistics
from gd_ray.data.tasks import class_order, class_sets
from gd_ray.errors import UserError
from gd_ray.ray_utils import map_in_process
from gd_ray.trial import run_trial
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wordnet.exclusions import Exclusions, read_exclusions
from gd_ray.wordnet.ilsvrc2012 import BATCH_LABELS
from tests.helpers.pictures import boxed, picture, png, tar_bytes, write_parquet
from tests.helpers.tiny import tiny_spec

CLASSES, IMAGES = sorted(BATCH_LABELS[:7]), 8
SMALL = DrawSize(train_per_class=4, test_per_class=2, set_size=3)


def name(label, k):
    return f"{CLASSES[label]}_{k}.png"


def number(label, k):
    return 100 * label + k


def contents(label):
    return [(name(label, k), png(picture(number(label, k), (40, 36)))) for k in range(IMAGES)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("ilsvrc")
    for label, wnid in enumerate(CLASSES):
        (root / wnid).mkdir()
        for file, content in contents(label):
            (root / wnid / file).write_bytes(content)
    return root


def make(source, out, size=SMALL, **options):
    prepare_imagenet32(str(source), str(out), size=size, mapper=map_in_process, **options)
    return load_imagenet32(out)


def test_the_draw_is_a_permutation_of_each_class_in_turn(folder, tmp_path):
    """Against a plain second way: RandomState(0) draws for one class after the other, names sorted."""
    data = make(folder, tmp_path / "out")
    random = np.random.RandomState(0)
    for label in range(len(CLASSES)):
        images = sorted(range(IMAGES), key=lambda k: name(label, k))
        drawn = [images[place] for place in random.choice(IMAGES, 6, replace=False)]
        pixels = [boxed(picture(number(label, k), (40, 36))) for k in drawn]
        found = [
            image.tobytes() for part in (data.train, data.test) for image in part.images.numpy()[part.labels == label]
        ]
        assert found == pixels
    assert data.class_names == tuple(CLASSES)
    assert data.set_size == 3
    assert data.statistics == pixel_statistics(data.train.images)


def test_folder_tar_and_tar_of_tars_give_the_same_bytes(folder, tmp_path):
    tars = {wnid: tar_bytes(reversed(contents(label))) for label, wnid in enumerate(CLASSES)}
    (tmp_path / "tars").mkdir()
    for wnid, content in tars.items():
        (tmp_path / "tars" / f"{wnid}.tar").write_bytes(content)
    whole = tmp_path / "ILSVRC2012_img_train.tar"
    whole.write_bytes(tar_bytes((f"{wnid}.tar", content) for wnid, content in tars.items()))
    expected = make(folder, tmp_path / "a").digest
    for k, source in enumerate((tmp_path / "tars", whole)):
        data = make(source, tmp_path / f"out{k}")
        assert data.digest == expected
        assert (tmp_path / f"out{k}" / "train.npy").read_bytes() == (tmp_path / "a" / "train.npy").read_bytes()


def test_parquet_and_batches(tmp_path):
    rng = np.random.default_rng(0)
    labels = rng.permutation(np.repeat(np.arange(len(CLASSES)), IMAGES))
    images = rng.integers(0, 256, (len(labels), 32, 32, 3), dtype=np.uint8)
    from PIL import Image

    write_parquet(tmp_path / "a.parquet", [png(Image.fromarray(i)) for i in images], labels, CLASSES, 10)
    rows = images.transpose(0, 3, 1, 2).reshape(len(images), -1)
    numbers = [BATCH_LABELS.index(CLASSES[label]) + 1 for label in labels]
    (tmp_path / "batches").mkdir()
    for part, cut in enumerate((slice(0, 30), slice(30, None)), start=1):
        content = {"data": rows[cut], "labels": numbers[cut], "mean": rows.mean(axis=0)}
        (tmp_path / "batches" / f"train_data_batch_{part}").write_bytes(pickle.dumps(content))
    found = [make(tmp_path / source, tmp_path / f"out-{source}") for source in ("a.parquet", "batches")]
    assert found[0].digest == found[1].digest
    for part in (found[0].train, found[0].test):
        for image, label in zip(part.images.numpy(), part.labels.tolist(), strict=True):
            (place,) = np.flatnonzero((images == image).all(axis=(1, 2, 3)))
            assert labels[place] == label


def test_unreadable_images_are_replaced(folder, tmp_path):
    """A class has eight images; two broken ones leave the six that are needed."""
    import shutil

    shutil.copytree(folder, tmp_path / "s")
    for k in (0, 5):
        (tmp_path / "s" / CLASSES[1] / name(1, k)).write_bytes(b"no picture")
    data = make(tmp_path / "s", tmp_path / "out")
    found = {i.tobytes() for part in (data.train, data.test) for i in part.images.numpy()[part.labels == 1]}
    assert found == {boxed(picture(number(1, k), (40, 36))) for k in range(IMAGES) if k not in (0, 5)}
    (tmp_path / "s" / CLASSES[1] / name(1, 6)).write_bytes(b"no picture")
    with pytest.raises(
        UserError, match=f"class '{CLASSES[1]}' has too few readable test images: 2 are needed; the first of 3"
    ):
        make(tmp_path / "s", tmp_path / "again")
    assert not list((tmp_path / "again").iterdir())


def test_the_papers_class_sets():
    """The facts of the protocol: RandomState(0).permutation(1000) in ten rows, each in the order of its seed."""
    sets = class_sets(1000, 100)
    assert sets.shape == (10, 100)
    assert sets[0, :5].tolist() == [993, 859, 298, 553, 672]  # worked out apart, with RandomState(0) of numpy 2.4
    assert sets[9, :5].tolist() == [949, 47, 774, 324, 203]
    assert sorted(sets.ravel()) == list(range(1000))


def test_seeds_learn_disjoint_classes_in_their_own_order(folder, tmp_path):
    data = make(folder, tmp_path / "out")
    orders = [class_order(data, seed) for seed in (0, 1)]
    permuted = np.random.RandomState(0).permutation(7)
    for seed, order in enumerate(orders):
        own = permuted[3 * seed : 3 * seed + 3]
        assert order.tolist() == [own[k] for k in np.random.RandomState(seed).permutation(3)]
        listed = (tmp_path / "out" / f"classes-of-seed-{seed}.txt").read_text().split()
        assert listed == sorted(CLASSES[label] for label in own)
    with pytest.raises(
        UserError, match="seed 2 has no classes of its own: the 7 classes of imagenet32 make 2 sets of 3"
    ):
        class_order(data, 2)


def test_a_trial_on_its_own_set_of_classes(folder, tmp_path):
    size = DrawSize(train_per_class=5, test_per_class=3, set_size=3)
    data = make(folder, tmp_path / "out", size)
    spec = tiny_spec(
        method="baseline",
        dataset="imagenet32",
        num_classes=3,
        task_size=1,
        seed=1,
        train_per_class=None,
        test_per_class=2,
    )
    result = run_trial(spec, data)
    seen = {int(label) for stage in result.stages for label in stage.confusion[:, 0]}
    assert seen == set(class_sets(7, 3)[1].tolist())


@pytest.mark.parametrize(
    ("size", "says"),
    [
        (DrawSize(7, 2, 3), "class 'n01773797' of source .* has 8 images, but 7 \\+ 2 are needed \\(6 more classes"),
        (DrawSize(4, 2, 8), "has 7 classes, but a trial learns 8; lower --set-size"),
    ],
)
def test_too_few_images_or_classes(folder, tmp_path, size, says):
    with pytest.raises(UserError, match=says.replace("n01773797", CLASSES[0])) as error:
        make(folder, tmp_path / "out", size)
    assert not (tmp_path / "out").exists()
    assert "\n" not in str(error.value)


def test_one_class_with_too_few(folder, tmp_path):
    import shutil

    shutil.copytree(folder, tmp_path / "s")
    for k in range(3):
        (tmp_path / "s" / CLASSES[2] / name(2, k)).unlink()
    with pytest.raises(
        UserError, match=f"class '{CLASSES[2]}' of source .* has 5 images, but 4 \\+ 2 are needed; lower"
    ):
        make(tmp_path / "s", tmp_path / "out")
    data = make(tmp_path / "s", tmp_path / "out", exclude=Exclusions(frozenset({CLASSES[2]})))
    assert data.class_names == tuple(wnid for wnid in CLASSES if wnid != CLASSES[2])


def test_sources_that_do_not_do(folder, tmp_path):
    with pytest.raises(UserError, match="has no class for glyphs, image 0; a data set needs one"):
        make("glyphs:10", tmp_path / "out")
    (tmp_path / "tars").mkdir()
    (tmp_path / "tars" / f"{CLASSES[0]}.tar").write_bytes(tar_bytes(contents(0)).rstrip(b"\0"))  # all images are there
    with pytest.raises(UserError, match="is not whole: .* the rest of the archive is lost"):
        make(tmp_path / "tars", tmp_path / "out")
    with pytest.raises(UserError, match="test_per_class 0 must be at least 1"):
        DrawSize(test_per_class=0)
    (tmp_path / "taken").mkdir()
    for name in ("train.npy", "classes-of-seed-3.txt"):
        (tmp_path / "taken" / name).write_text("mine")
        with pytest.raises(UserError, match=f"holds a {name} of something else; choose another folder or delete it"):
            make(folder, tmp_path / "taken")
        assert (tmp_path / "taken" / name).read_text() == "mine"
        (tmp_path / "taken" / name).unlink()
    make(folder, tmp_path / "out")
    with pytest.raises(UserError, match="holds a prepared data set already"):
        make(folder, tmp_path / "out")


def test_a_run_that_ends_early_leaves_nothing_in_its_own_way(folder, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("gd_ray.data.prepared.class_sets", interrupted)
        with pytest.raises(KeyboardInterrupt):
            make(folder, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())
    make(folder, tmp_path / "out")


def test_damaged_files(folder, tmp_path):
    out = tmp_path / "out"
    make(folder, out)
    file = out / "test.npy"
    whole = bytearray(file.read_bytes())
    whole[-1] ^= 1
    file.write_bytes(whole)
    with pytest.raises(UserError, match=r"test.npy' does not match its checksum; copy it again or prepare it again"):
        load_imagenet32(out)
    file.write_bytes(whole[:-100])
    with pytest.raises(UserError, match=r"test.npy' cannot be read"):
        load_imagenet32(out)
    (out / "dataset.json").write_text('{"format": 2, "side": 32}')
    with pytest.raises(UserError, match=r"has a wrong field \(format 2, expected 1"):
        load_imagenet32(out)
    with pytest.raises(UserError, match=r"has no dataset.json; make it with 'gd-ray prepare imagenet32"):
        load_imagenet32(tmp_path)


TINY = os.environ.get("GD_RAY_TINY_IMAGENET")


@pytest.mark.skipif(TINY is None or "GD_RAY_WORDNET" not in os.environ, reason="no Tiny-ImageNet or WordNet is named")
def test_tiny_imagenet_as_training_data_and_as_a_stream(tmp_path):
    data = make(TINY, tmp_path / "set", DrawSize(250, 50, 100))
    assert (len(data.train), len(data.test), data.num_classes) == (50_000, 10_000, 200)
    assert np.bincount(data.train.labels).tolist() == [250] * 200
    own = {data.class_names[label] for label in class_order(data, 0)}
    # Published for ILSVRC's 1000 classes; these are 200 of them, seen at 64x64 first.
    np.testing.assert_allclose(data.statistics.mean, STATISTICS.mean, atol=0.01)
    np.testing.assert_allclose(data.statistics.std, STATISTICS.std, atol=0.01)
    exclude = read_exclusions(
        [str(tmp_path / "set" / "classes-of-seed-0.txt"), "cifar100"], os.environ["GD_RAY_WORDNET"]
    )
    stream = prepare_stream(TINY, str(tmp_path / "wild"), exclude=exclude, mapper=map_in_process).stream
    found = set(stream.class_names(np.arange(len(stream))))
    assert len(stream) == 300 * len(found) == 23_700
    assert not found & own
    assert set(stream.manifest.excluded) == set(data.class_names) - found
