"""Streams from Parquet files."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from gd_ray.errors import UserError
from tests.helpers.pictures import boxed, picture, png, write_parquet
from tests.helpers.streams import contents, expected, make


def test_hugging_face_parquet(tmp_path):
    contained = [png(picture(k)) for k in range(10)]
    write_parquet(tmp_path / "part.parquet", contained, [k % 2 for k in range(10)], ["dog", "cat"])
    assert contents(make(tmp_path / "part.parquet", tmp_path / "out").stream) == expected()


@pytest.mark.parametrize("rows", [3, 4, 10, 4096])
def test_parts_of_one_large_row_group(tmp_path, monkeypatch, rows):
    """Whatever pieces it is read in: rows before a part are passed over, and those behind it are not read."""
    from gd_ray.sources import parquet

    monkeypatch.setattr(parquet, "PART_ROWS", rows)
    file = tmp_path / "part.parquet"
    pictures = pa.array([{"bytes": png(picture(k)), "path": None} for k in range(10)])
    pq.write_table(pa.table({"image": pictures, "label": [f"class {k}" for k in range(10)]}), file, row_group_size=10)
    for start, number in ((0, 10), (0, 4), (4, 4), (8, 2), (3, 5)):
        part = parquet.ParquetPart(file, 0, start, number, 32)
        assert part.index().classes == [f"class {k}" for k in range(start, start + number)]
        chunk = part.load(np.array([number - 1, 0]))
        assert [image.tobytes() for image in chunk.images] == [
            boxed(picture(start + number - 1)),
            boxed(picture(start)),
        ]


def test_a_parquet_label_outside_its_names(tmp_path):
    file = tmp_path / "part.parquet"
    write_parquet(file, [png(picture(k)) for k in range(5)], [0, 1, -1, 1, 2], ["dog", "cat"])
    with pytest.raises(UserError, match="has label 2 in row group 1, row 1, outside 0 to 1"):
        make(file, tmp_path / "out")
    write_parquet(file, [png(picture(k)) for k in range(3)], [0, 1, -1], ["dog", "cat"])
    found = make(file, tmp_path / "out").stream
    assert contents(found) == sorted(zip(map(boxed, map(picture, range(3))), ["dog", "cat", "None"], strict=True))
