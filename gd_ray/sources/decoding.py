"""Encoded images of any format as square RGB pixels, by Pillow's full decode and its box filter."""

import io
import struct
from collections.abc import Callable, Iterable
from contextlib import suppress

import numpy as np
from PIL import Image, UnidentifiedImageError

from gd_ray.sources.base import ImageBatch

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")
_FRAMES = (0xC0, 0xC1, 0xC2)  # markers of a JPEG's frame, baseline to progressive


def decode_batch(
    indices: Iterable[int], contents: Iterable[bytes | OSError | None], path: Callable[[int], str], side: int
) -> ImageBatch:
    """Decode the contents read for these indices; corrupt and missing ones are listed, never fatal."""
    images, readable, unreadable = [], [], []
    for index, content in zip(indices, contents, strict=True):
        try:
            if isinstance(content, OSError):
                raise content
            if not content:
                raise ValueError("it is empty")
            images.append(decode_image(content, side))
            readable.append(index)
        except UnidentifiedImageError:  # its own message has the address of a buffer
            unreadable.append(f"{path(index)}: no image in a format that Pillow knows")
        except Exception as error:  # a decoder may fail with anything
            unreadable.append(f"{path(index)}: {type(error).__name__}: {error}")
    array = np.frombuffer(b"".join(images), np.uint8).reshape(-1, side, side, 3)
    return ImageBatch(array, np.array(readable, np.int64), unreadable)


def decode_image(content: bytes, side: int) -> bytes:
    """Return the RGB pixels of an encoded image, resized to side x side: transparency over white, greyscale repeated.

    Raises whatever its decoder raises.
    """
    image = _open_jpeg(content) or Image.open(io.BytesIO(content))
    if image.mode.startswith("I;16"):  # Pillow would clip; rounding down keeps the brightness
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known range")
    if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    if image.mode != "RGB":
        image = image.convert("RGB")
    if image.size != (side, side):
        image = image.resize((side, side), Image.Resampling.BOX)
    return image.tobytes()


def _open_jpeg(content: bytes) -> Image.Image | None:
    """Hand a plain JPEG straight to Pillow's decoder: of a small one, `Image.open` takes a third of the time.

    Return None for all that needs more care: other formats and channels, broken files.
    """
    at = 2 if content.startswith(b"\xff\xd8") else len(content)
    with suppress(LookupError, struct.error, ValueError, OSError):
        while content[at] == 0xFF:  # a marker, and the length of what follows
            if content[at + 1] in _FRAMES:
                bits, height, width, channels = struct.unpack_from(">BHHB", content, at + 4)
                mode = {(8, 1): "L", (8, 3): "RGB"}[bits, channels]
                return Image.frombytes(mode, (width, height), content, "jpeg", mode, "") if height * width else None
            at += 2 + int.from_bytes(content[at + 2 : at + 4])
    return None
