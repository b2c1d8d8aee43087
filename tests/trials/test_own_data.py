"""A user's own pictures from the command line alone: prepare, plan, run on Ray, report."""

import subprocess
import sys

import pandas as pd
import pytest

from tests.helpers.pictures import picture

SMALL = "num_classes: 4\ntask_size: 2\ncoreset_size: 4\nwindow: 60\nbatch_size: 8\nepoch_factor: 0.01\n"


def gd_ray(folder, *commands):
    """Run commands in one process, which share its Ray; return what they print."""
    lines = "".join(
        f"sys.argv = ['gd-ray', *{list(words)!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
        for words in commands
    )
    code = f"import sys\nfrom trials.cli import main\n{lines}"
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return " ".join(done.stdout.split())


def test_labelled_pictures_of_64_pixels_through_every_command(tmp_path):
    for label, name in enumerate(("rose", "tulip", "daisy", "iris")):
        for k in range(9):
            file = tmp_path / "flowers" / name / f"{k}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            picture(10 * label + k, (70, 64)).save(file)
    for k in range(70):
        (tmp_path / "wild").mkdir(exist_ok=True)
        picture(1000 + k, (64, 64)).save(tmp_path / "wild" / f"{k}.png")
    (tmp_path / "grid.yaml").write_text(
        f"dataset: flowers\nstream: wild\nmethod: [gd+ext]\nnetwork: resnet-32\n{SMALL}"
    )
    told = gd_ray(
        tmp_path,
        ["prepare", "dataset", "flowers", "data/flowers", "--side", "64", "--test-per-class", "2"],
        ["prepare", "stream", "wild", "streams/wild", "--side", "64"],
        ["plan", "grid.yaml"],
        ["run", "grid.yaml"],
        ["report", "results"],
    )
    assert "4 classes, 28 + 8 images of 64x64" in told
    assert "grid: 1 trials, 0 finished, 1 to run." in told
    (trial,) = pd.read_parquet(tmp_path / "results" / "trials").to_dict("records")
    assert (trial["dataset"], trial["network"], trial["method"]) == ("flowers", "resnet-32", "gd+ext")
    page = (tmp_path / "results" / "report.html").read_text()
    assert "flowers" in page
    assert "resnet-32" in page


def test_a_stream_of_another_side_is_refused_before_any_trial(tmp_path):
    from gd_ray.checks import check_inputs
    from gd_ray.data.dataset import ImageSet, LabelledData
    from gd_ray.data.pixels import pixel_statistics
    from gd_ray.data.tasks import ClassIncrementalData
    from gd_ray.errors import UserError
    from gd_ray.sources.glyph_images import wild_glyphs
    from gd_ray.spec import TrialSpec
    from gd_ray.wild.stream import MemoryStream

    pixels = wild_glyphs(16).repeat(2, axis=1).repeat(2, axis=2)
    images = ImageSet.from_arrays(pixels, list(range(4)) * 4)
    data = LabelledData("large", images, images, pixel_statistics(pixels), ("a", "b", "c", "d"))
    spec = TrialSpec(method="gd+ext", dataset="large", num_classes=4, task_size=2, window=60, stream="small")
    with pytest.raises(UserError, match="stream 'small' has images of 32x32, but dataset 'large' of 64x64; prepare"):
        check_inputs(spec, ClassIncrementalData.of(spec, data), MemoryStream(wild_glyphs(64)))
