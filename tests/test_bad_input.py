"""A user's mistake gets one sentence that names the field, the value and what to do."""

import dataclasses
import io
import json
import zlib

import numpy as np
import pytest
import torch

from gd_ray.checkpoint import FORMAT, Checkpoint
from gd_ray.data.cifar100 import load_cifar100
from gd_ray.data.dataset import ImageSet, LabelledData
from gd_ray.data.pixels import Statistics
from gd_ray.errors import UserError
from gd_ray.methods import METHODS, Method
from gd_ray.spec import TrialSpec
from gd_ray.trial import run_trial
from gd_ray.wild.stream import MemoryStream
from tests.helpers.tiny import tiny_spec


def sentence(error: pytest.ExceptionInfo[UserError]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith((".", "?"))
    return text


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("task_size", 7, "task_size 7 does not cut num_classes 100"),
        ("task_size", 100, "task_size 100 does not cut"),
        ("task_size", 0, "task_size 0 must be a whole number"),
        (
            "first_task_size",
            45,
            "first_task_size 45 does not leave whole tasks of task_size 10 of num_classes 100; choose one of 10, 20,",
        ),
        ("first_task_size", 100, "first_task_size 100 does not leave whole tasks"),
        ("first_task_size", -1, "first_task_size -1 must be a whole number of at least 0"),
        ("ood_ratio", 1.5, r"ood_ratio 1.5 is outside \[0, 1\]"),
        ("ood_ratio", -0.1, r"ood_ratio -0.1 is outside"),
        ("epoch_factor", 1e308, r"epoch_factor 1e\+308 is outside \[0, 10000"),
        ("fine_tune_factor", 1e9, r"fine_tune_factor 1000000000.0 is outside"),
        ("ood_ratio", float("nan"), "ood_ratio nan must be a finite number"),
        ("ood_ratio", "much", "ood_ratio 'much' must be a finite number"),
        ("method", "gd+ex", r"method 'gd\+ex' does not exist; did you mean 'gd\+ext'\?"),
        ("method", "zzz", "method 'zzz' does not exist; choose one of: oracle, baseline"),
        ("convention", "relased", "did you mean 'released'"),
        ("seed", -1, "seed -1 must be a whole number of at least 0"),
        ("seed", 1.5, "seed 1.5 must be a whole number"),
        ("network", "wrn-12-1", "network 'wrn-12-1' is no WideResNet: its depth must be 6n"),
        ("dropout", 1.0, "dropout 1.0 is outside"),
        ("epoch_factor", 0, "epoch_factor 0.0 must be above 0"),
        ("fine_tune_factor", 0, "fine_tune_factor 0.0 must be above 0"),
        ("batch_size", 0, "batch_size 0 must be"),
        ("train_per_class", 0, "train_per_class 0 must be"),
        ("dataset", None, "dataset None must be a name"),
        ("stream", "", "stream '' must be a name"),
        ("convention", None, "convention 'None' does not exist"),
        ("method", 3, "method '3' does not exist"),
        ("seed", 2**31, r"seed 2147483648 must be at least 0 and below 2\*\*31"),
        ("network", "resnet-33", "network 'resnet-33' does not exist; did you mean 'resnet-32'?"),
        ("learning_rate", 10**400, "learning_rate 1000.* must be a finite number"),
        ("window", True, "window True must be a whole number"),
    ],
)
def test_a_bad_value_in_the_spec(field, value, says):
    with pytest.raises(UserError, match=says) as error:
        TrialSpec(**{field: value})
    sentence(error)


@pytest.mark.parametrize(
    "fields",
    [
        {"ensemble": True},
        {"balancing": "weighted fine-tuning"},
        {"fine_tuned": "head"},
        {"external": True},
        {"ood_sampling": "random"},
        {"previous": "globl"},
        {"teacher": "destilled"},
    ],
)
def test_a_method_that_contradicts_itself(fields):
    with pytest.raises(UserError, match="method 'mine'") as error:
        Method(name="mine", title="Mine", **fields)
    sentence(error)


def test_external_data_without_a_stream(tiny_data):
    with pytest.raises(UserError, match="learns with external data, but no stream was given") as error:
        run_trial(tiny_spec(method="gd+ext"), tiny_data)
    sentence(error)


@pytest.mark.parametrize(("length", "window", "says"), [(22, 60, "stream 'glyphs' offers 22"), (200, 22, "window 22")])
def test_a_stream_shorter_than_the_sample(tiny_data, tiny_stream, length, window, says):
    with pytest.raises(UserError, match=f"{says}.*a stage samples up to 23") as error:
        run_trial(tiny_spec(method="gd+ext", window=window), tiny_data, MemoryStream(tiny_stream.images[:length]))
    sentence(error)


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (np.zeros((3, 32, 32, 3), np.float32), "type float32; give them as uint8"),
        (np.zeros((3, 3, 32, 32), np.uint8), r"shape \(3, 3, 32, 32\)"),
        (np.zeros((3, 64, 32, 3), np.uint8), r"shape \(3, 64, 32, 3\)"),
        (np.zeros((32, 32, 3), np.uint8), "channels last"),
    ],
)
def test_images_of_the_wrong_shape_or_type(images, says):
    for make in (MemoryStream, lambda array: ImageSet.from_arrays(array, np.zeros(3, int))):
        with pytest.raises(UserError, match=says) as error:
            make(images)
        sentence(error)


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.zeros(2, int), r"labels have shape \(2,\)"),
        (np.zeros(3), "type float64"),
        (np.array([0, -1, 1]), "labels have the value -1"),
    ],
)
def test_labels_that_do_not_fit(labels, says):
    with pytest.raises(UserError, match=says) as error:
        ImageSet.from_arrays(np.zeros((3, 32, 32, 3), np.uint8), labels)
    sentence(error)


def test_labels_outside_the_class_names():
    images = ImageSet.from_arrays(np.zeros((3, 32, 32, 3), np.uint8), np.array([0, 1, 5]))
    with pytest.raises(UserError, match="train labels reach 5, but there are only 2 class names") as error:
        LabelledData("mine", images, images, Statistics((0, 0, 0), (1, 1, 1)), ("a", "b"))
    sentence(error)


def test_more_classes_than_the_data_has_and_a_class_without_images(tiny_data):
    with pytest.raises(UserError, match="num_classes 200 is more than the 100 classes of glyphs") as error:
        run_trial(tiny_spec(num_classes=200, method="gd"), tiny_data)
    sentence(error)
    kept = tiny_data.test.labels != 26  # the first class of seed 0
    short = dataclasses.replace(tiny_data, test=ImageSet(tiny_data.test.images[kept], tiny_data.test.labels[kept]))
    with pytest.raises(UserError, match="no test image of class 26") as error:
        run_trial(tiny_spec(method="gd"), short)
    sentence(error)


def test_data_of_another_name_and_more_images_than_there_are(tiny_data):
    with pytest.raises(UserError, match="spec.dataset is 'cifar100', but the data passed is 'glyphs'") as error:
        run_trial(tiny_spec(method="gd", dataset="cifar100"), tiny_data)
    sentence(error)
    for field, count in (("train_per_class", 8), ("test_per_class", 4)):
        with pytest.raises(UserError, match=f"{field} 9 is more than the {count} ") as error:
            run_trial(tiny_spec(method="gd", **{field: 9}), tiny_data)
        sentence(error)


def test_no_coreset_to_balance():
    with pytest.raises(UserError, match="coreset_size 0 leaves method 'e2e' no balanced set") as error:
        tiny_spec(method="e2e", coreset_size=0)
    sentence(error)


def test_a_loss_that_is_not_finite(tiny_data):
    says = (
        r"The .* loss of stage . is not finite in its term '.*'; lower learning_rate 1e\+30, or raise temperature 2.0"
    )
    with pytest.raises(UserError, match=says) as error:
        run_trial(tiny_spec(method="gd", learning_rate=1e30), tiny_data)
    sentence(error)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
def test_a_gpu_that_is_not_there(tiny_data):
    with pytest.raises(UserError, match="device 'cuda' needs a GPU, but torch .* can use none of") as error:
        run_trial(tiny_spec(method="gd"), tiny_data, device="cuda")
    sentence(error)


def test_a_checkpoint_of_another_spec(tiny_data):
    checkpoints = []
    run_trial(tiny_spec(method="gd"), tiny_data, on_stage=lambda _, c: checkpoints.append(c))
    for other in (tiny_spec(method="lwf"), tiny_spec(method="gd", seed=1), tiny_spec(method="gd", coreset_size=8)):
        with pytest.raises(UserError, match="the checkpoint belongs to trial") as error:
            run_trial(other, tiny_data, resume=checkpoints[1])
        sentence(error)
    with pytest.raises(UserError, match="the checkpoint belongs to trial"):
        run_trial(tiny_spec(method="gd", seed=1), tiny_data, resume=checkpoints[0])


def test_a_checkpoint_of_other_images(tiny_data, tiny_stream):
    def checkpoints_of(method):
        found = []
        run_trial(tiny_spec(method=method), tiny_data, tiny_stream, on_stage=lambda _, c: found.append(c), last_stage=2)
        return found

    turned = ImageSet(tiny_data.train.images.flip(0), tiny_data.train.labels.flip(0))
    other_data = dataclasses.replace(tiny_data, train=turned)
    other_stream = MemoryStream(tiny_stream.images[::-1])
    for stage in checkpoints_of("gd+ext"):
        with pytest.raises(UserError, match="made with other images of dataset 'glyphs'") as error:
            run_trial(tiny_spec(method="gd+ext"), other_data, tiny_stream, resume=stage)
        sentence(error)
        with pytest.raises(UserError, match="made with other images of stream 'glyphs'") as error:
            run_trial(tiny_spec(method="gd+ext"), tiny_data, other_stream, resume=stage)
        sentence(error)
    first, second = checkpoints_of("teacher-cls")
    run_trial(
        tiny_spec(method="teacher-cls"), tiny_data, other_stream, resume=first, last_stage=1
    )  # has seen no stream
    with pytest.raises(UserError, match="made with other images of stream 'glyphs'"):
        run_trial(tiny_spec(method="teacher-cls"), tiny_data, other_stream, resume=second)


@pytest.mark.parametrize("stage", [0, -1, 4])
def test_a_last_stage_that_is_none(tiny_data, stage):
    with pytest.raises(UserError, match=f"last_stage {stage} is not among the 3 stages") as error:
        run_trial(tiny_spec(method="gd"), tiny_data, last_stage=stage)
    sentence(error)


def test_a_device_that_torch_does_not_know(tiny_data):
    with pytest.raises(UserError, match="unknown device 'gpu': use 'cpu' or 'cuda'") as error:
        run_trial(tiny_spec(method="gd"), tiny_data, device="gpu")
    with pytest.raises(UserError, match="unsupported device 'meta'"):
        run_trial(tiny_spec(method="gd"), tiny_data, device="meta")
    sentence(error)


def test_a_flipped_bit_in_a_checkpoint_is_never_a_wrong_weight(tiny_data, tmp_path):
    saved = []
    run_trial(tiny_spec(method="gd"), tiny_data, on_stage=lambda _, c: saved.append(c), last_stage=1)
    saved[0].save(tmp_path / "whole.pt")
    content = (tmp_path / "whole.pt").read_bytes()
    places = np.random.default_rng(0).integers(len(content), size=60)
    refused = 0
    for place in places:
        flipped = bytearray(content)
        flipped[place] ^= 1 << int(place) % 8
        (tmp_path / "flipped.pt").write_bytes(flipped)
        try:
            found = Checkpoint.load(tmp_path / "flipped.pt")
        except UserError:
            refused += 1
            continue
        assert all(torch.equal(found.weights[name], value) for name, value in saved[0].weights.items())
        assert found.coreset.tolist() == saved[0].coreset.tolist()
        assert found.results[0].hits == saved[0].results[0].hits
    assert refused > 50  # most of the file are weights


def test_a_checkpoint_that_is_no_checkpoint(tmp_path):
    (tmp_path / "new.pt").write_bytes(b'{"format": 99, "crc": 0}\nwhatever')
    (tmp_path / "torn.pt").write_bytes(b"PK\x03\x04 half a file")
    torch.save(METHODS["gd"], tmp_path / "code.pt")
    (tmp_path / "empty.pt").write_bytes(json.dumps({"format": FORMAT, "crc": zlib.crc32(b"")}).encode())
    packed = io.BytesIO()
    torch.save(METHODS["gd"], packed)
    header = json.dumps({"format": FORMAT, "crc": zlib.crc32(packed.getvalue())}).encode()
    (tmp_path / "object.pt").write_bytes(header + b"\n" + packed.getvalue())  # which a safe load refuses
    unreadable = dict.fromkeys(("torn.pt", "code.pt", "empty.pt", "object.pt"), "cannot be read")
    for name, says in {"new.pt": "has format 99", **unreadable}.items():
        with pytest.raises(UserError, match=says) as error:
            Checkpoint.load(tmp_path / name)
        sentence(error)
    # What cannot be opened may be as good as ever: nobody is told to delete it.
    for name in ("absent.pt", "."):
        with pytest.raises(UserError, match=r"cannot be opened \((No such file|Is a directory)") as error:
            Checkpoint.load(tmp_path / name)
        sentence(error)
        assert "delete" not in str(error.value)


def test_a_folder_without_cifar100(tmp_path):
    with pytest.raises(UserError, match="holds neither cifar-100-python") as error:
        load_cifar100(tmp_path)
    sentence(error)
