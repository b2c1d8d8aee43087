"""Drawn characters: 100 of them are the classes of the embedded data set, thousands of others a source of images.

The fonts are the DejaVu fonts of matplotlib: no download, any number of images, always the same pixels. An image is a
character in a random face, size, rotation, position and color over a color gradient, with noise.
"""

import unicodedata
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from gd_ray.errors import UserError
from gd_ray.sources.base import PART_ROWS, ImageBatch, PartIndex, Source, SourceRequest, require_side

SIDE = 32
# All faces have all of these, and no two look alike when mirrored: training flips images.
CHARACTERS = "ABCDEFGHJKLMNPQRSTUVWXYZ23456789abefghmnrtyΔΘΛΞΠΣΦΨΩαβγδζθλμξπσφψωБДЖЛЦЧШЫЮЋ&@#$%?!*+=<€£¥§¶∞√∫≈≠±÷©"
_FACES = tuple(
    f"{family}{style}.ttf"
    for family, slanted in (("DejaVuSans", "Oblique"), ("DejaVuSansMono", "Oblique"), ("DejaVuSerif", "Italic"))
    for style in ("", "-Bold", f"-Bold{slanted}", f"-{slanted}")
)
_ROOT_SEED = 2019
TRAIN, TEST, _STREAM = 0, 1, 2
"""First numbers of the seeds."""
_CANVAS, _POINTS = 48, 34
_BLOCK = 1024
_DRAWS = 24  # random numbers per image, some spare

Glyph = tuple[str, str]
"""A character and the face that draws it."""


@dataclass(frozen=True)
class GlyphPart:
    """A range of the endless sequence of characters that are not classes."""

    start: int
    expected: int

    def index(self) -> PartIndex:
        return PartIndex([None] * self.expected)

    def load(self, indices: NDArray[np.int64]) -> ImageBatch:
        return ImageBatch(wild_glyphs(self.expected, self.start)[indices], indices, [])

    def path(self, index: int) -> str:
        return f"glyphs, image {self.start + index}"


def open_glyphs(address: str, request: SourceRequest) -> Source:
    """Open glyphs:N, a source of N images."""
    text = address.removeprefix("glyphs:")
    if not text.isdecimal() or int(text) == 0:
        raise UserError(f"source {address!r} needs a number of images after the colon, such as glyphs:100000.")
    require_side(f"source {address!r}", SIDE, request.side)
    starts = range(0, int(text), PART_ROWS)
    return Source([GlyphPart(start, min(PART_ROWS, int(text) - start)) for start in starts])


def class_glyphs(number: int, split: int) -> NDArray[np.uint8]:
    """Draw `number` images of each class for a split, in the order of the classes."""
    faces_of = [[(character, face) for face in _FACES] for character in CHARACTERS]
    return np.concatenate([_draw(glyphs, number, (split, label)) for label, glyphs in enumerate(faces_of)])


def wild_glyphs(number: int, start: int = 0) -> NDArray[np.uint8]:
    """Draw images `start` to `start + number` of an endless sequence of characters that are not classes."""
    first, last = start // _BLOCK, -(-(start + number) // _BLOCK)
    glyphs = list(other_glyphs())
    blocks = [_draw(glyphs, _BLOCK, (_STREAM, block)) for block in range(first, last)]
    return np.concatenate(blocks)[start - first * _BLOCK :][:number]


@cache
def other_glyphs() -> tuple[Glyph, ...]:
    """List every visible character of every face, except the classes and characters that any face draws like one."""
    from fontTools.ttLib import TTFont

    candidates, look_alike = [], set()
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
                candidates.append((character, face))
    return tuple((character, face) for character, face in candidates if character not in look_alike)


def _draw(glyphs: list[Glyph], number: int, key: tuple[int, int]) -> NDArray[np.uint8]:
    """Draw `number` images of random glyphs of the list; the first ones do not depend on the number."""
    draws, noise = (np.random.default_rng(np.random.SeedSequence(_ROOT_SEED, spawn_key=(*key, k))) for k in (0, 1))
    u = draws.random((number, _DRAWS))
    grain = noise.integers(0, 256, (number, SIDE, SIDE, 3), dtype=np.uint8)
    which, inverse = np.unique((u[:, 0] * len(glyphs)).astype(int), return_inverse=True)
    masks = np.stack([_mask(*glyphs[index]) for index in which])
    return _paint(_transform(masks[inverse], u[:, 1:6]), u[:, 6:], grain)


def _transform(masks: NDArray[np.uint8], u: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rotate masks by up to 15 degrees, scale them, and shift them by up to 2 pixels, as coverage of an image."""
    import torch  # not at the top: opening a source needs no torch
    import torch.nn.functional as F

    angle = np.deg2rad(15) * (2 * u[:, 0] - 1)
    zoom = (SIDE / _CANVAS) / (0.85 + 0.3 * u[:, 1])
    aspect = np.exp(0.1 * (2 * u[:, 2] - 1))
    shift = (2 * u[:, 3:5] - 1) * 2 / (SIDE / 2)
    cos, sin = np.cos(angle), np.sin(angle)
    linear = np.stack([np.stack([cos * aspect, -sin], -1), np.stack([sin, cos / aspect], -1)], 1) * zoom[:, None, None]
    offset = -(linear @ shift[:, :, None])
    theta = torch.from_numpy(np.concatenate([linear, offset], axis=2)).float()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # for so few small images several threads mostly wait for each other
    try:
        grid = F.affine_grid(theta, [len(masks), 1, SIDE, SIDE], align_corners=False)
        coverage = F.grid_sample(torch.from_numpy(masks).float()[:, None] / 255, grid, align_corners=False)
    finally:
        torch.set_num_threads(threads)
    return coverage[:, 0].numpy()


def _paint(coverage: NDArray[np.float32], u: NDArray[np.float64], grain: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Paint ink over a gradient between two colors, with uniform noise."""
    ink, near, far = (255 * u[:, 3 * k : 3 * k + 3] for k in range(3))
    weak = np.abs(ink.mean(axis=1) - (near + far).mean(axis=1) / 2) < 80
    ink = np.where(weak[:, None], (ink + 128) % 256, ink)
    direction = 2 * np.pi * u[:, 9]
    axis = (np.arange(SIDE) + 0.5) / SIDE - 0.5
    slope = axis[:, None] * np.sin(direction)[:, None, None] + axis * np.cos(direction)[:, None, None]
    blend = (0.5 + slope / np.sqrt(2)).astype(np.float32)[..., None]
    start, end, stroke = (color.astype(np.float32)[:, None, None] for color in (near, far, ink))
    image = start + (end - start) * blend
    image += (stroke - image) * coverage[..., None]
    image += (grain - np.float32(127.5)) * (0.2 * u[:, 10]).astype(np.float32)[:, None, None, None]
    pixels: NDArray[np.uint8] = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return pixels


def _mask(character: str, face: str) -> NDArray[np.uint8]:
    """Draw a character in white on black, its box in the middle of the canvas."""
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
    from matplotlib import get_data_path

    return Path(get_data_path()) / "fonts" / "ttf"
