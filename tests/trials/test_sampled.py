"""`gd-ray sampled`: sampled stream images and the files that they come from."""

import re

import numpy as np
import pytest
from PIL import Image

from gd_ray.errors import UserError
from gd_ray.fingerprint import Fingerprints
from gd_ray.ray_utils import map_in_process
from gd_ray.store import write_class_names
from gd_ray.wild.shuffle import prepare_stream
from tests.helpers.made import made_spec, write_made
from tests.helpers.pictures import boxed, picture
from trials.sampled import sampled


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Results of a trial whose stage 2 sampled positions 20 to 25 of a stream: classes 0, 0, 1, 1, ood, ood."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "pictures").mkdir()
    for k in range(30):
        picture(k).save(tmp_path / "pictures" / f"{k}.png")
    stream = prepare_stream("pictures", "streams/wild", mapper=map_in_process).stream
    spec = made_spec(stream="wild")
    write_made("results", "mine", spec, lambda stage, task: 50, inputs=Fingerprints("d", stream.digest))
    write_class_names("results", spec.dataset, ["ant hill", "bee", "cat", "dog"])
    return spec.trial_id, stream


def rows(capsys):
    """The columns of each printed image."""
    lines = capsys.readouterr().out.splitlines()[1:]
    return [re.match(r" *(\d+) +(.+?) +([\d.]*) +(\d+) +(.+)", line).groups() for line in lines if ".png" in line]


def test_images_are_listed_and_copied(made, tmp_path, capsys):
    trial, stream = made
    paths = stream.paths(np.arange(20, 26))
    sampled("results", trial)
    listed = rows(capsys)
    assert [row[-1] for row in listed] == [*paths[4:], *paths[:4]]
    assert [row[1].strip() for row in listed] == ["ood", "ood", "ant hill", "ant hill", "bee", "bee"]
    assert listed[2] == ("2", "ant hill", "0.9000", "20", paths[0])
    sampled("results", trial, class_name="bee", stage=2, stream=("wild=streams/wild",), copy="bees")
    assert [row[-1] for row in rows(capsys)] == paths[2:4]
    for file, path in zip(sorted(tmp_path.glob("bees/*.png")), paths[2:4], strict=True):
        assert boxed(Image.open(path)) == np.asarray(Image.open(file)).tobytes()
    sampled("results", trial, class_name="1")
    assert [row[-1] for row in rows(capsys)] == paths[2:4]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"trial": "0"}, "results 'results' have no finished trial '0'; take a trial_id of results/trials"),
        ({"class_name": "bea"}, "class 'bea' does not exist; did you mean 'bee'"),
        ({"class_name": "dog"}, "sampled no such image; leave out --class or --stage"),
        ({"stage": 1}, "sampled no such image"),
        ({"stream": ("wlid=a",)}, "--stream wlid=a is not the trial's stream, which is 'wild'"),
        ({"stream": ("wild=a",)}, "stream .*a' has no manifest.json.*give its folder with --stream wild=FOLDER"),
        ({"stream": ("wild=other",)}, "has other images than the trial learned from; give the one it had"),
    ],
)
def test_mistakes_are_sentences(made, options, says):
    prepare_stream("glyphs:30", "other", mapper=map_in_process)
    with pytest.raises(UserError, match=says) as error:
        sampled("results", **{"trial": made[0], **options})
    assert "\n" not in str(error.value)
