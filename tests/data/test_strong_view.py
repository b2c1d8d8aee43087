"""Operations of strong views against PIL's, where PIL has them, and against plain loops."""

import math

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageOps

from gd_ray.data.strong_view import DRAWS, OPERATIONS, cut_out, distort, strong_view

SIDE, NUMBER = 32, 15
RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (NUMBER, SIDE, SIDE, 3), dtype=np.uint8)
IMAGES[1] = IMAGES[1] // 4 + 50  # of little contrast
IMAGES[2] = 90  # of none
IMAGES[3, :, :, 1] = 7
STRENGTHS = RNG.random(NUMBER, dtype=np.float32)


def distorted(name, images=IMAGES, strengths=STRENGTHS):
    kinds = torch.full((len(images),), OPERATIONS.index(name))
    result = distort(torch.from_numpy(images).float(), kinds, torch.from_numpy(strengths)).numpy()
    assert result.min() >= 0
    assert result.max() <= 255
    assert (result == np.floor(result)).all()
    return result


def enhanced(kind):
    def enhance(image, u):
        return kind(image).enhance(0.05 + 0.9 * u)

    return enhance


@pytest.mark.parametrize(
    ("name", "by_pil"),
    [
        ("identity", lambda image, u: image),
        ("equalize", lambda image, u: ImageOps.equalize(image)),
        ("posterize", lambda image, u: ImageOps.posterize(image, 4 + math.floor(5 * u))),
        ("solarize", lambda image, u: ImageOps.solarize(image, math.ceil(256 * u))),
        ("brightness", enhanced(ImageEnhance.Brightness)),
        ("contrast", enhanced(ImageEnhance.Contrast)),
        ("color", enhanced(ImageEnhance.Color)),
        ("sharpness", enhanced(ImageEnhance.Sharpness)),
    ],
)
def test_an_operation_is_pils(name, by_pil):
    expected = [np.asarray(by_pil(Image.fromarray(image), u)) for image, u in zip(IMAGES, STRENGTHS, strict=True)]
    inner = slice(1, -1) if name == "sharpness" else slice(None)  # PIL leaves the border as it is
    np.testing.assert_array_equal(distorted(name)[:, inner, inner], np.stack(expected)[:, inner, inner])


def test_autocontrast_stretches_each_channel():
    found = distorted("autocontrast")
    for image, result in zip(IMAGES.astype(int), found, strict=True):
        for channel in range(3):
            values, (low, high) = image[..., channel], (image[..., channel].min(), image[..., channel].max())
            expected = (values - low) * 255 // (high - low) if high > low else values
            np.testing.assert_array_equal(result[..., channel], expected)


MOVES = {
    "rotate": lambda v: (math.cos(v * math.pi / 6), math.sin(v * math.pi / 6), -math.sin(v * math.pi / 6), None, 0, 0),
    "shear x": lambda v: (1, 0, 0.3 * v, 1, 0, 0),
    "shear y": lambda v: (1, 0.3 * v, 0, 1, 0, 0),
    "translate x": lambda v: (1, 0, 0, 1, 0.3 * SIDE * v, 0),
    "translate y": lambda v: (1, 0, 0, 1, 0, 0.3 * SIDE * v),
}


@pytest.mark.parametrize("name", MOVES)
def test_a_move_takes_the_nearest_pixel_around_the_centre(name):
    found, c = distorted(name), SIDE / 2
    for image, u, result in zip(IMAGES, STRENGTHS, found, strict=True):
        xx, yx, xy, yy, shift_x, shift_y = MOVES[name](2 * float(u) - 1)
        yy = xx if yy is None else yy
        for row in range(SIDE):
            for column in range(SIDE):
                x, y = column + 0.5 - c, row + 0.5 - c
                from_column = math.floor(xx * x + xy * y + shift_x + c)
                from_row = math.floor(yx * x + yy * y + shift_y + c)
                inside = 0 <= from_row < SIDE and 0 <= from_column < SIDE
                assert (result[row, column] == (image[from_row, from_column] if inside else 0)).all()


def test_every_image_takes_its_own_operation():
    kinds = torch.arange(NUMBER) % len(OPERATIONS)
    found = distort(torch.from_numpy(IMAGES).float(), kinds, torch.from_numpy(STRENGTHS)).numpy()
    for k, name in enumerate(OPERATIONS):
        np.testing.assert_array_equal(found[kinds == k], distorted(name)[kinds == k])


def test_a_square_of_half_the_side_is_grey():
    rows, columns = torch.tensor([0.0, 0.5, 0.99]), torch.tensor([0.25, 0.5, 0.0])
    found = cut_out(torch.zeros(3, SIDE, SIDE, 3), rows, columns)
    assert found.unique().tolist() == [0, 127]
    expected = torch.zeros(3, SIDE, SIDE)
    expected[0, 0:8, 0:16] = expected[1, 8:24, 8:24] = expected[2, 23:32, 0:8] = 127
    assert torch.equal(found, expected[..., None].expand(-1, -1, -1, 3))


def test_a_strong_view_is_two_operations_and_a_square():
    images, rng = torch.from_numpy(IMAGES).float(), torch.Generator().manual_seed(0)
    draws = torch.rand(DRAWS, NUMBER, generator=rng)
    expected = images.clone()
    for first in (0, 2):
        expected = distort(expected, (draws[first] * 14).floor().long(), draws[first + 1])
    assert torch.equal(strong_view(images, draws), cut_out(expected, draws[4], draws[5]))
    assert torch.equal(images, torch.from_numpy(IMAGES).float())
    assert len({tuple(view) for view in strong_view(images, draws).flatten(1).tolist()}) == NUMBER
