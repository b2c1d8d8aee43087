import json
import shutil

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gd_ray.data.glyphs import wild_glyphs
from gd_ray.errors import UserError
from gd_ray.ray_utils import map_in_process
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.stream import MemoryStream, WildStream, Window, stage_window
from tests.helpers.pictures import boxed, picture


@given(st.integers(0, 1000), st.integers(1, 12), st.integers(1, 50), st.integers(1, 700))
def test_windows_of_a_trial_are_disjoint_while_they_fit(seed, stages, window, total):
    windows = [stage_window(seed, stage, stages, total, window) for stage in range(1, stages + 1)]
    seen = [set(w.positions(np.arange(w.length)).tolist()) for w in windows]
    assert all(len(positions) == min(window, total) for positions in seen)
    if stages * window <= total:
        assert len(set().union(*seen)) == stages * window


def test_windows_depend_on_the_seed_and_never_repeat_when_they_do_not_fit():
    starts = {(seed, stage): stage_window(seed, stage, 10, 4000, 4000).start for seed in (0, 1) for stage in (1, 2, 3)}
    assert len(set(starts.values())) == 6


@given(st.integers(1, 200), st.integers(1, 40), st.integers(0, 199), st.integers(1, 200), st.integers(0, 200))
def test_units_are_the_window_in_order(total, block, start, length, skip):
    images = np.zeros((total, 32, 32, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(total)
    window = Window(start % total, min(length, total), total)
    skip = min(skip, window.length)
    stream = MemoryStream(images, block)
    units = stream.units(window, skip)
    assert [o for unit in units for o in unit.offsets.tolist()] == list(range(skip, window.length))
    found = [int(v) for unit in units for v in stream.load(unit)[:, 0, 0, 0]]
    assert found == window.positions(np.arange(skip, window.length)).tolist()
    assert all(len(unit) <= block for unit in units)


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    out = tmp_path_factory.mktemp("streams") / "glyphs"
    return prepare_stream("glyphs:1000", str(out), shard_rows=300, group_rows=64, mapper=map_in_process).stream


@pytest.fixture
def copied(stream, tmp_path):
    shutil.copytree(stream.address, tmp_path / "stream")
    return tmp_path / "stream"


def test_a_prepared_stream_holds_the_sources_images_shuffled(stream):
    whole = stream.read(np.arange(1000))
    source = wild_glyphs(1000)
    assert len(stream) == 1000
    assert not (whole == source).all()
    assert sorted(image.tobytes() for image in whole) == sorted(image.tobytes() for image in source)
    stayed = [k for k in range(1000) if (whole[k] == source[k]).all()]
    assert len(stayed) < 10  # about one image of a random permutation keeps its place


def test_reading_by_units_and_by_positions_agree(stream):
    window = Window(700, 600, 1000)
    units = stream.units(window, 10)
    images = np.concatenate([stream.load(unit) for unit in units])
    offsets = np.concatenate([unit.offsets for unit in units])
    assert offsets.tolist() == list(range(10, 600))
    assert (images == stream.read(window.positions(offsets))).all()
    some = np.array([999, 0, 512, 0, 63, 64])
    assert (stream.read(some) == stream.read(np.arange(1000))[some]).all()


def test_positions_are_written_and_row_groups_are_fixed(stream, tmp_path):
    import pyarrow.parquet as pq

    first = 0
    for shard in stream.manifest.shards:
        file = pq.ParquetFile(f"{stream.address}/{shard.file}")
        assert file.read(columns=["position"])["position"].to_pylist() == list(range(first, first + shard.rows))
        assert [file.metadata.row_group(k).num_rows for k in range(file.num_row_groups)] == list(shard.group_rows)
        assert set(shard.group_rows[:-1]) <= {64}
        assert file.schema_arrow.field("image").type == pa.binary(3072)
        first += shard.rows


def test_it_opens_from_any_filesystem_address(stream, tmp_path):
    found = WildStream.open(f"file://{stream.address}")
    assert (found.read(np.arange(5)) == stream.read(np.arange(5))).all()


def test_it_travels_without_its_images(stream):
    import pickle

    assert len(pickle.dumps(stream)) < 20_000


def one_sentence(error):
    assert "\n" not in str(error.value)
    assert str(error.value).endswith(".")


def test_a_missing_shard(copied):
    (copied / "shard-00001.parquet").unlink()
    with pytest.raises(UserError, match="lacks its shard shard-00001.parquet") as error:
        WildStream.open(str(copied))
    one_sentence(error)


def test_a_truncated_shard(copied):
    file = copied / "shard-00001.parquet"
    file.write_bytes(file.read_bytes()[:-1000])
    with pytest.raises(UserError, match=r"shard-00001.parquet of \d+ bytes, expected \d+") as error:
        WildStream.open(str(copied))
    one_sentence(error)


def test_a_changed_byte_is_found_when_it_is_read(copied):
    file = copied / "shard-00000.parquet"
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)
    stream = WildStream.open(str(copied))  # its size is right
    with pytest.raises(UserError, match="does not match its checksum|cannot be read") as error:
        stream.read(np.arange(len(stream)))
    one_sentence(error)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": 7}, "has format 7, this program reads 1"),
        ({"side": 0}, "wrong field .side 0."),
        ({"side": "32"}, "wrong field"),
        ({"images": 5}, "counts do not add up"),
        ({"shards": None}, "wrong field"),
        ({"new": 1}, "wrong field"),
    ],
)
def test_a_manifest_that_does_not_fit(copied, change, says):
    file = copied / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **change}))
    with pytest.raises(UserError, match=says) as error:
        WildStream.open(str(copied))
    one_sentence(error)


def test_no_manifest_or_none_that_can_be_read(copied):
    (copied / "manifest.json").write_text("{ half")
    with pytest.raises(UserError, match="cannot be read"):
        WildStream.open(str(copied))
    (copied / "manifest.json").unlink()
    with pytest.raises(UserError, match="was not finished; make it with 'gd-ray prepare stream'") as error:
        WildStream.open(str(copied))
    one_sentence(error)


def test_a_stream_prepared_without_paths(stream, copied):
    """As earlier versions did: it opens, and has the same digest and images."""
    import pyarrow.parquet as pq

    manifest = json.loads((copied / "manifest.json").read_text())
    del manifest["passed_over"]
    for shard in manifest["shards"]:
        file = copied / shard["file"]
        pq.write_table(pq.read_table(file).drop_columns("path"), file, row_group_size=64, compression="none")
        shard["bytes"] = file.stat().st_size
    (copied / "manifest.json").write_text(json.dumps(manifest))
    old, some = WildStream.open(str(copied)), np.array([999, 0, 64])
    assert old.digest == stream.digest
    assert (old.read(some) == stream.read(some)).all()
    assert old.class_names(some) == old.paths(some) == [None] * 3
    assert len(set(stream.paths(np.arange(1000)))) == 1000
    assert not old.manifest.passed_over.counts


def test_larger_images(tmp_path):
    """Through prepare, by units, by position and by another process's open."""
    (tmp_path / "s").mkdir()
    for k in range(30):
        picture(k, (80, 70)).save(tmp_path / "s" / f"{k}.png")
    made = prepare_stream(
        str(tmp_path / "s"), str(tmp_path / "out"), side=64, group_rows=8, mapper=map_in_process
    ).stream
    stream = WildStream.open(made.address)
    assert stream.side == 64
    images = stream.read(np.arange(30))
    assert images.shape == (30, 64, 64, 3)
    assert {image.tobytes() for image in images} == {boxed(picture(k, (80, 70)), 64) for k in range(30)}
    units = stream.units(Window(25, 30, 30), 3)
    assert (np.concatenate([stream.load(unit) for unit in units]) == images[(25 + np.arange(3, 30)) % 30]).all()
    assert MemoryStream(images).side == 64
    small = prepare_stream(str(tmp_path / "s"), str(tmp_path / "small"), mapper=map_in_process).stream
    assert small.side == 32
    assert small.digest != stream.digest


@pytest.mark.parametrize("shape", [(2, 32, 31, 3), (2, 32, 32), (2, 3, 32, 32)])
def test_images_of_a_wrong_shape(shape):
    with pytest.raises(UserError, match=r"stream images have shape .*; give them as \(n, side, side, 3\)"):
        MemoryStream(np.zeros(shape, np.uint8))
