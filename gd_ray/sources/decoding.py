"""Encoded images of any format as square RGB pixels, by Pillow's full decode and its box filter."""

import io
from collections.abc import Callable, Iterable

import numpy as np
from PIL import Image, UnidentifiedImageError

from gd_ray.sources.base import ImageBatch

IMAGE_ENDINGS = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".ppm", ".tif", ".tiff")


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
    image: Image.Image = Image.open(io.BytesIO(content))
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
