"""A user's own images: mistakes are refused before any trial. `tests/test_readme.py` runs every command on them."""

import pytest


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
