"""Streams from folders of image files."""

import errno
import os

import numpy as np
import pytest
from PIL import Image

from gd_ray.errors import UserError
from gd_ray.wild.stream import WildStream
from tests.helpers.pictures import boxed, picture, png
from tests.helpers.streams import contents, expected, make


def test_a_folder_with_a_class_per_folder(pictures, tmp_path):
    found = make(pictures, tmp_path / "out").stream
    assert contents(found) == expected()
    assert found.manifest.classes == 2
    assert found.manifest.source == str(pictures)


def test_what_is_passed_over_is_counted_and_named(pictures, tmp_path, monkeypatch):
    for name in ("cat/a.heic", "dog/b.HEIC", "dog/c.heic", "dog/d.heic", "cat/picture", "notes.txt", "locked/e.png"):
        (pictures / name).parent.mkdir(exist_ok=True)
        (pictures / name).write_bytes(png(picture(1)))
    scandir = os.scandir

    def refuse(path):
        if str(path).endswith("locked"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    out = tmp_path / "out"
    assert contents(make(pictures, out).stream) == expected()
    passed_over = WildStream.open(str(out)).manifest.passed_over
    locked = "folder that cannot be read (Permission denied)"
    assert passed_over.counts == {
        **{locked: 1, "unknown format .heic": 4},
        **{"unknown format .txt": 1, "name without an ending": 1},
    }
    assert passed_over.examples["unknown format .heic"] == [
        *(f"{pictures}/cat/a.heic", f"{pictures}/dog/b.HEIC", f"{pictures}/dog/c.heic")
    ]
    assert passed_over.examples[locked] == [f"{pictures}/locked"]
    with pytest.raises(
        UserError, match=r"holds no images \(folder that cannot be read \(Permission denied\): .*locked"
    ):
        make(pictures / "locked", tmp_path / "again")


def test_a_flat_folder_has_no_classes(tmp_path):
    (tmp_path / "flat").mkdir()
    picture(1).save(tmp_path / "flat" / "a.png")
    found = make(tmp_path / "flat", tmp_path / "out").stream
    assert contents(found) == [(boxed(picture(1)), "None")]
    assert found.manifest.classes == 0


def test_odd_names_and_links_in_a_circle(pictures, tmp_path):
    (pictures / "cat" / "back").symlink_to(pictures)
    (pictures / "cat").rename(os.fsdecode(os.fsencode(pictures) + b"/c\xe9t"))
    found = make(pictures, tmp_path / "out").stream
    assert len(found) == 10
    assert set(found.class_names(np.arange(10))) == {"c\\udce9t", "dog"}


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


def test_corrupt_images_are_counted_and_listed(pictures, tmp_path):
    (pictures / "dog" / "torn.png").write_bytes(png(picture(3))[:200])
    (pictures / "dog" / "text.jpg").write_text("no picture")
    (pictures / "dog" / "void.jpg").touch()
    stream = make(pictures, tmp_path / "out").stream
    assert contents(stream) == expected()
    assert stream.manifest.unreadable == 3
    assert list(stream.manifest.unreadable_examples) == [
        f"{pictures}/dog/text.jpg: no image in a format that Pillow knows",
        f"{pictures}/dog/torn.png: OSError: image file is truncated",
        f"{pictures}/dog/void.jpg: ValueError: it is empty",
    ]
