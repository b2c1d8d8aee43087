"""Encoded pictures of any kind as 32x32 RGB pixels, by Pillow's full decode and its box filter."""

import io

import numpy as np
from PIL import Image

from gd_ray.data.pixels import SIDE

_BASELINE_TO_PROGRESSIVE = range(0xC0, 0xC3)  # markers of a JPEG's frame, in the kinds that Pillow reads
_MODES = {1: "L", 3: "RGB"}


def picture32(content: bytes) -> bytes:
    """The pixels of an encoded picture as 32x32 RGB. Raises whatever its decoder raises."""
    jpeg = _jpeg(content)
    if jpeg is not None:
        return _rgb32(jpeg)
    with Image.open(io.BytesIO(content)) as picture:
        return _rgb32(picture)


def _rgb32(image: Image.Image) -> bytes:
    """The pixels of any picture as 32x32 RGB: transparency over white, greyscale repeated, box filter."""
    if image.mode.startswith("I;16"):  # Pillow would clip, where 8 bits can be had by rounding down
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known range")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    if image.size != (SIDE, SIDE):
        image = image.resize((SIDE, SIDE), Image.Resampling.BOX)
    return image.tobytes()


def _jpeg(content: bytes) -> Image.Image | None:
    """A plain JPEG, handed straight to Pillow's decoder: `Image.open` takes a third of the time of a small one.

    None for all that needs more care: other kinds of picture, four colour channels, broken files.
    """
    try:
        frame = _jpeg_frame(content)
        if frame is None:
            return None
        mode, size = frame
        return Image.frombytes(mode, size, content, "jpeg", mode, "")
    except (IndexError, ValueError, OSError):
        return None


def _jpeg_frame(content: bytes) -> tuple[str, tuple[int, int]] | None:
    """The mode and size of a JPEG from its frame header; None where it is another kind of picture."""
    if content[:2] != b"\xff\xd8":
        return None
    at = 2
    while content[at] == 0xFF:  # a marker, and the length of what follows
        if content[at + 1] in _BASELINE_TO_PROGRESSIVE:
            bits, channels = content[at + 4], content[at + 9]
            size = int.from_bytes(content[at + 7 : at + 9]), int.from_bytes(content[at + 5 : at + 7])
            return (_MODES[channels], size) if bits == 8 and channels in _MODES and all(size) else None
        at += 2 + int.from_bytes(content[at + 2 : at + 4])
    return None
