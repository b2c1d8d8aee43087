"""Streams from tars, and from tars of tars."""

import pytest

from gd_ray.errors import UserError
from gd_ray.sources.base import open_source
from tests.helpers.pictures import boxed, class_tar, picture, png, tar_bytes
from tests.helpers.streams import contents, excluded, expected, make


@pytest.mark.parametrize("rows", [1, 4096])
def test_members_of_tars_that_are_passed_over(tmp_path, monkeypatch, rows):
    monkeypatch.setattr("gd_ray.sources.tars.PART_ROWS", rows)
    inner = tar_bytes([("0.png", png(picture(0))), ("1.png", png(picture(1))), ("0.txt", b"a"), ("2.heic", b"b")])
    (tmp_path / "whole.tar").write_bytes(tar_bytes([("n00000001.tar", inner), ("about", b"c")]))
    passed_over = make(tmp_path / "whole.tar", tmp_path / "out").stream.manifest.passed_over
    assert passed_over.examples == {
        "name without an ending": [f"{tmp_path}/whole.tar/about"],
        "unknown format .txt": [f"{tmp_path}/whole.tar/n00000001.tar/0.txt"],
        "unknown format .heic": [f"{tmp_path}/whole.tar/n00000001.tar/2.heic"],
    }


def test_webdataset_tars(tmp_path):
    for part in range(2):
        files = []
        for k in range(5 * part, 5 * part + 5):
            files += [(f"{k}.png", png(picture(k))), (f"{k}.cls", b"cat" if k % 2 else b"dog")]
        (tmp_path / f"{part}.tar").write_bytes(tar_bytes(files))
    assert contents(make(tmp_path, tmp_path / "out").stream) == expected()


def test_a_tar_named_after_a_wordnet_id_and_a_truncated_one(tmp_path):
    (tmp_path / "n00000001.tar").write_bytes(class_tar())
    (tmp_path / "n00000002.tar").write_bytes(class_tar()[:9000])
    found = make(tmp_path, tmp_path / "out").stream
    names = [name for _, name in contents(found)]
    assert names.count("n00000001") == 4
    assert 0 < names.count("n00000002") < 4
    assert found.manifest.unreadable == 1
    assert "the rest of the archive is lost" in found.manifest.unreadable_examples[0]


def test_a_label_that_cannot_be_read_costs_only_itself(tmp_path):
    files = [item for k in range(6) for item in ((f"{k}.png", png(picture(k))), (f"{k}.cls", b"cat"))]
    files[3] = ("1.cls", b"\xff\xfe")
    files[5] = ("2.json", b"{no")
    (tmp_path / "0.tar").write_bytes(tar_bytes(files))
    found = make(tmp_path, tmp_path / "out").stream
    assert [name for _, name in contents(found)].count("cat") == 4
    assert len(found) == 6
    assert found.manifest.unreadable == 2


def test_a_large_tar_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("gd_ray.sources.tars.PART_ROWS", 3)
    files = [
        item for k in range(10) for item in ((f"{k}.png", png(picture(k))), (f"{k}.cls", b"cat" if k % 2 else b"dog"))
    ]
    (tmp_path / "one.tar").write_bytes(tar_bytes(files))
    parts = open_source(str(tmp_path / "one.tar")).parts
    assert [part.expected for part in parts] == [3, 3, 3, 1]
    assert contents(make(tmp_path / "one.tar", tmp_path / "out").stream) == expected()


def test_a_tar_of_tars_and_other_things(tmp_path):
    whole = tar_bytes(
        [("readme.txt", b"hello"), ("all/n00000001.tar", class_tar()), ("all/n00000002.tar", class_tar(4))]
    )
    (tmp_path / "whole.tar").write_bytes(whole)
    (tmp_path / "without.tar").write_bytes(tar_bytes([("readme.txt", b"hello")]))
    found = make(tmp_path, tmp_path / "out").stream
    assert contents(found) == sorted((boxed(picture(k)), f"n0000000{1 + k // 4}") for k in range(8))
    assert "without.tar: it holds no image" in found.manifest.unreadable_examples[0]


def test_a_tar_of_tars(tmp_path):
    whole = tar_bytes([("n00000001.tar", class_tar()), ("n00000002.tar", class_tar(4))])
    (tmp_path / "whole.tar").write_bytes(whole)
    found = make(tmp_path / "whole.tar", tmp_path / "out", exclude=excluded("n00000003")).stream
    assert contents(found) == sorted((boxed(picture(k)), f"n0000000{1 + k // 4}") for k in range(8))
    part = make(tmp_path / "whole.tar", tmp_path / "part", exclude=excluded("n00000001")).stream
    assert contents(part) == sorted((boxed(picture(k)), "n00000002") for k in range(4, 8))
    assert part.manifest.excluded == {"n00000001": 4}
    (tmp_path / "whole.tar").write_bytes(whole[: len(whole) * 3 // 4])
    with pytest.raises(UserError, match="is a truncated tar: after 2 tars inside it, unexpected end of data"):
        make(tmp_path / "whole.tar", tmp_path / "again")
