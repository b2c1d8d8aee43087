"""The embedded data set: 100 classes of drawn characters, and a wild stream of thousands of other ones.

Everything comes from the DejaVu fonts that matplotlib ships: no download, any size, the same pixels every time. An
image is a character in a random face, size, rotation, place and colour over a colour gradient, with noise.
"""

import unicodedata
from functools import cache
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from fontTools.ttLib import TTFont
from matplotlib import get_data_path
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gd_ray.data.image_set import ImageSet, LabelledData
from gd_ray.data.pixels import SIDE, Statistics

# All faces have all of these, and no two look alike when mirrored: training flips images.
CHARACTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789abefghmnrtyΔΘΛΞΠΣΦΨΩαβγδζθλμξπσφψωБДЖЛЦЧШЫЮЋ&@#$%?!*+=<€£¥§¶∞√∫≈≠±÷©"
TRAIN_PER_CLASS, TEST_PER_CLASS = 500, 100
STATISTICS = Statistics((0.4993368, 0.5004355, 0.5001794), (0.2332501, 0.2339159, 0.2334835))
"""Of the 50,000 training images, whatever part of them is loaded."""

_FACES = tuple(
    f"{family}{style}.ttf"
    for family, slanted in (("DejaVuSans", "Oblique"), ("DejaVuSansMono", "Oblique"), ("DejaVuSerif", "Italic"))
    for style in ("", "-Bold", f"-Bold{slanted}", f"-{slanted}")
)
_ROOT_SEED = 2019
_TRAIN, _TEST, _STREAM = 0, 1, 2
_CANVAS, _POINTS = 48, 34
_BLOCK = 1024
_NUMBERS = 24  # random numbers per image, some spare

Glyph = tuple[str, str]
"""A character and the face that draws it."""


def load_glyphs(train_per_class: int = TRAIN_PER_CLASS, test_per_class: int = TEST_PER_CLASS) -> LabelledData:
    """The labelled data. Fewer images per class are the first ones of the full set."""
    parts = []
    for split, number in ((_TRAIN, train_per_class), (_TEST, test_per_class)):
        images = [
            _images([(character, face) for face in _FACES], number, (split, label))
            for label, character in enumerate(CHARACTERS)
        ]
        parts.append(ImageSet.from_arrays(np.concatenate(images), np.repeat(np.arange(len(CHARACTERS)), number)))
    return LabelledData("glyphs", parts[0], parts[1], STATISTICS, tuple(CHARACTERS))


def wild_glyphs(number: int, start: int = 0) -> NDArray[np.uint8]:
    """Images `start` to `start + number` of an endless stream of characters that belong to none of the classes."""
    first, last = start // _BLOCK, -(-(start + number) // _BLOCK)
    glyphs = list(other_glyphs())
    blocks = [_images(glyphs, _BLOCK, (_STREAM, block)) for block in range(first, last)]
    return np.concatenate(blocks)[start - first * _BLOCK :][:number]


@cache
def other_glyphs() -> tuple[Glyph, ...]:
    """Every visible character of every face that has it, but for the classes and what any face draws just like one."""
    found, look_alike = [], set()
    for face in _FACES:
        small, large = _font(face, 12), _font(face, _POINTS)
        class_shapes = {_shape(small, character) for character in CHARACTERS}
        for character in map(chr, TTFont(_folder() / face, lazy=True).getBestCmap()):
            if unicodedata.category(character)[0] not in "LNPS":
                continue
            if _shape(small, character) in class_shapes or unicodedata.normalize("NFKC", character) in CHARACTERS:
                look_alike.add(character)
            left, top, right, bottom = large.getbbox(character)
            if 0 < right - left <= _CANVAS and 0 < bottom - top <= _CANVAS:
                found.append((character, face))
    return tuple((character, face) for character, face in found if character not in look_alike)


def _images(glyphs: list[Glyph], number: int, key: tuple[int, int]) -> NDArray[np.uint8]:
    """`number` images of glyphs drawn from the list; the first ones do not depend on how many are asked for."""
    draws, noise = (np.random.default_rng(np.random.SeedSequence(_ROOT_SEED, spawn_key=(*key, k))) for k in (0, 1))
    u = draws.random((number, _NUMBERS))
    grain = noise.integers(0, 256, (number, SIDE, SIDE, 3), dtype=np.uint8)
    which, place = np.unique((u[:, 0] * len(glyphs)).astype(int), return_inverse=True)
    masks = np.stack([_mask(*glyphs[index]) for index in which])
    return _painted(_placed(masks[place], u[:, 1:6]), u[:, 6:], grain)


def _placed(masks: NDArray[np.uint8], u: NDArray[np.float64]) -> NDArray[np.float32]:
    """Masks turned by up to 15 degrees, scaled, and shifted by up to 2 pixels, as coverage of a 32x32 image."""
    angle = np.deg2rad(15) * (2 * u[:, 0] - 1)
    zoom = (SIDE / _CANVAS) / (0.85 + 0.3 * u[:, 1])
    aspect = np.exp(0.1 * (2 * u[:, 2] - 1))
    shift = (2 * u[:, 3:5] - 1) * 2 / (SIDE / 2)
    cos, sin = np.cos(angle), np.sin(angle)
    linear = np.stack([np.stack([cos * aspect, -sin], -1), np.stack([sin, cos / aspect], -1)], 1) * zoom[:, None, None]
    offset = -(linear @ shift[:, :, None])
    theta = torch.from_numpy(np.concatenate([linear, offset], axis=2)).float()
    grid = F.affine_grid(theta, [len(masks), 1, SIDE, SIDE], align_corners=False)
    coverage = F.grid_sample(torch.from_numpy(masks).float()[:, None] / 255, grid, align_corners=False)
    return coverage[:, 0].numpy()


def _painted(coverage: NDArray[np.float32], u: NDArray[np.float64], grain: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Ink over a gradient between two colours, with uniform noise."""
    ink, near, far = (255 * u[:, 3 * k : 3 * k + 3] for k in range(3))
    weak = np.abs(ink.mean(axis=1) - (near + far).mean(axis=1) / 2) < 80
    ink = np.where(weak[:, None], (ink + 128) % 256, ink)
    direction = 2 * np.pi * u[:, 9]
    axis = (np.arange(SIDE) + 0.5) / SIDE - 0.5
    slope = axis[:, None] * np.sin(direction)[:, None, None] + axis * np.cos(direction)[:, None, None]
    share = (0.5 + slope / np.sqrt(2)).astype(np.float32)[..., None]
    start, end, stroke = (colour.astype(np.float32)[:, None, None] for colour in (near, far, ink))
    image = start + (end - start) * share
    image += (stroke - image) * coverage[..., None]
    image += (grain - np.float32(127.5)) * (0.2 * u[:, 10]).astype(np.float32)[:, None, None, None]
    pixels: NDArray[np.uint8] = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return pixels


def _mask(character: str, face: str) -> NDArray[np.uint8]:
    """The character in white on black, its box in the middle of the canvas."""
    font = _font(face, _POINTS)
    left, top, right, bottom = font.getbbox(character)
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    corner = ((_CANVAS - right - left) / 2, (_CANVAS - bottom - top) / 2)
    ImageDraw.Draw(canvas).text(corner, character, fill=255, font=font)
    return np.asarray(canvas)


def _shape(font: ImageFont.FreeTypeFont, character: str) -> tuple[object, bytes]:
    return font.getbbox(character), bytes(font.getmask(character))


@cache
def _font(face: str, points: int) -> ImageFont.FreeTypeFont:
    # The basic layout draws a character as it is; others may reshape it.
    return ImageFont.truetype(_folder() / face, points, layout_engine=ImageFont.Layout.BASIC)


def _folder() -> Path:
    return Path(get_data_path()) / "fonts" / "ttf"
