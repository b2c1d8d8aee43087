import io

import numpy as np
import pytest
from PIL import Image

from gd_ray.sources.decoding import decode_image


def smooth(size, seed=0):
    """A picture that a JPEG keeps small."""
    coarse = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC)


def jpeg(image, **options):
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", **options)
    return buffer.getvalue()


def pillow(content, side=32):
    """Pillow's own decode and resize."""
    picture = Image.open(io.BytesIO(content)).convert("RGB")
    return np.asarray(picture.resize((side, side), Image.Resampling.BOX)).tobytes()


@pytest.mark.parametrize("size", [(64, 64), (500, 375), (333, 500), (100, 64), (32, 32), (31, 33), (7, 9)])
@pytest.mark.parametrize("options", [{}, {"quality": 95, "subsampling": 0}, {"subsampling": 1}, {"progressive": True}])
def test_jpegs_have_the_pixels_of_pillow(size, options):
    content = jpeg(smooth(size), **options)
    for side in (32, 64):
        assert decode_image(content, side) == pillow(content, side)


@pytest.mark.parametrize("mode", ["L", "CMYK"])
def test_jpegs_of_other_colours(mode):
    content = jpeg(smooth((64, 64)).convert(mode))
    assert decode_image(content, 32) == pillow(content)


def test_other_pictures_and_markers_before_the_frame():
    buffer = io.BytesIO()
    smooth((50, 40)).save(buffer, "PNG")
    assert decode_image(buffer.getvalue(), 32) == pillow(buffer.getvalue())
    content = jpeg(smooth((64, 48)), comment=b"\xff\xc0 in a comment", exif=Image.Exif(), dpi=(72, 72))
    assert decode_image(content, 32) == pillow(content)


@pytest.mark.parametrize("kept", [0.1, 0.3, 0.5, 0.9])
def test_a_torn_jpeg_fails_as_in_pillow(kept):
    content = jpeg(smooth((64, 64)))
    torn = content[: int(len(content) * kept)]
    with pytest.raises(OSError, match="(?i)truncated") as expected:
        pillow(torn)
    with pytest.raises(OSError, match="(?i)truncated") as found:
        decode_image(torn, 32)
    assert str(found.value) == str(expected.value)


@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_greyscale_of_16_bits_keeps_its_brightness(kind):
    ramp = np.linspace(0, 65535, 64 * 64).astype(np.uint16).reshape(64, 64)
    buffer = io.BytesIO()
    Image.fromarray(ramp).save(buffer, kind)
    pixels = np.frombuffer(decode_image(buffer.getvalue(), 32), np.uint8).reshape(32, 32, 3)
    boxes = (ramp // 256).reshape(32, 2, 32, 2).mean(axis=(1, 3))
    assert (np.abs(pixels - boxes[:, :, None]) <= 0.5).all()


def test_pixels_without_a_range_are_refused():
    buffer = io.BytesIO()
    Image.fromarray(np.ones((8, 8), np.float32)).save(buffer, "TIFF")
    with pytest.raises(ValueError, match="mode F have no known range"):
        decode_image(buffer.getvalue(), 32)
