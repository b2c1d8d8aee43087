import pytest

import analysis
from analysis.streams import stream_finder
from gd_ray.errors import UserError
from gd_ray.wild.stream import WildStream
from tests.helpers.made import NO_STORAGE


def test_streams_are_found_by_name(report_folder):
    results = analysis.load(str(report_folder))
    address = f"{next(path for path in results.storage if path != NO_STORAGE)}/streams/glyphs-200"
    name, other = "glyphs:200", "imagenet2011-distance-1"
    found = [stream_finder(results, {})(name, 200), stream_finder(results, {other: address})(other, 200)]
    assert all(isinstance(stream, WildStream) and stream.address == address for stream in found)
    assert stream_finder(results, {})("nowhere", 1) is None
    assert stream_finder(results, {})(name, 201) is None  # another stream of the same name
    with pytest.raises(UserError, match="--stream glyphs:200=nowhere is not a prepared stream"):
        stream_finder(results, {name: "nowhere"})(name, 1)
    with pytest.raises(UserError, match="has 200 images, but trials took image 200; give the stream"):
        stream_finder(results, {name: address})(name, 201)
    with pytest.raises(UserError, match="--stream wild=nowhere: no trial here has 'wild'; choose one of: glyphs:200, "):
        stream_finder(results, {"wild": "nowhere"})
