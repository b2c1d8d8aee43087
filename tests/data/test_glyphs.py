import numpy as np
import pytest
import torch
from fontTools.ttLib import TTFont

from gd_ray.data import glyphs as dataset
from gd_ray.data.pixels import pixel_statistics
from gd_ray.sources import glyph_images as glyphs


def test_the_classes_are_a_hundred_characters_that_every_face_has():
    assert len(set(glyphs.CHARACTERS)) == 100
    for face in glyphs._FACES:
        characters = TTFont(glyphs._folder() / face, lazy=True).getBestCmap()
        assert all(ord(character) in characters for character in glyphs.CHARACTERS)


def test_the_pixels_are_always_the_same_and_a_smaller_set_is_a_part_of_a_larger(tiny_data):
    again = dataset.load_glyphs(train_per_class=5, test_per_class=4)
    small = tiny_data.train.first_of_each_class(5)
    assert (again.train.images == small.images).all()
    assert (again.train.labels == small.labels).all()
    assert (again.test.images == tiny_data.test.images).all()


def test_drawing_keeps_torch_to_one_thread_and_gives_the_others_back(monkeypatch):
    seen, transform = [], torch.nn.functional.affine_grid
    monkeypatch.setattr(
        torch.nn.functional,
        "affine_grid",
        lambda *a, **k: seen.append(torch.get_num_threads()) or transform(*a, **k),
    )
    torch.set_num_threads(2)
    try:
        glyphs.wild_glyphs(10)
        assert (seen, torch.get_num_threads()) == ([1], 2)
    finally:
        torch.set_num_threads(1)


def test_train_and_test_share_no_image(tiny_data):
    train = {image.tobytes() for image in tiny_data.train.images.numpy()}
    assert not train & {image.tobytes() for image in tiny_data.test.images.numpy()}
    assert len(train) == len(tiny_data.train)


def test_the_stream_can_be_cut_anywhere_and_shows_no_class():
    whole = glyphs.wild_glyphs(2100)
    assert (glyphs.wild_glyphs(100, start=1000) == whole[1000:1100]).all()
    others = {character for character, _ in glyphs.other_glyphs()}
    assert len(others) > 5000
    assert not others & set(glyphs.CHARACTERS)
    # Letters of other alphabets that are drawn just like a class are left out.
    assert not others & {
        "\N{CYRILLIC CAPITAL LETTER A}",
        "\N{GREEK CAPITAL LETTER BETA}",
        "\N{FULLWIDTH LATIN SMALL LETTER A}",
    }


def test_no_face_draws_an_empty_box_or_nothing():
    rng = np.random.default_rng(0)
    others = glyphs.other_glyphs()
    for index in rng.choice(len(others), 300, replace=False):
        character, face = others[index]
        assert ord(character) in TTFont(glyphs._folder() / face, lazy=True).getBestCmap()
        assert glyphs._mask(character, face).max() > 100


def test_a_class_can_be_told_from_the_others():
    """The nearest mean mask of another image of the class is right far more often than chance."""
    masks = np.stack([np.mean([glyphs._mask(c, face) for face in glyphs._FACES], axis=0) for c in glyphs.CHARACTERS])
    masks = masks.reshape(100, -1).astype(float)
    masks -= masks.mean(axis=1, keepdims=True)
    masks /= np.linalg.norm(masks, axis=1, keepdims=True)
    right = 0
    for label, character in enumerate(glyphs.CHARACTERS):
        one = glyphs._mask(character, "DejaVuSerif.ttf").reshape(-1).astype(float)
        right += (masks @ (one - one.mean())).argmax() == label
    assert right > 90


def test_pixel_statistics_are_mean_and_deviation(tiny_data):
    images = tiny_data.train.images.double() / 255
    found = pixel_statistics(tiny_data.train.images)
    assert found.mean == pytest.approx(images.mean(dim=(0, 1, 2)).tolist(), rel=1e-9)
    assert found.std == pytest.approx(images.std(dim=(0, 1, 2), correction=0).tolist(), rel=1e-9)
    # Those of the full set do not depend on how much of it is loaded.
    assert tiny_data.statistics == dataset.STATISTICS
    assert found.mean == pytest.approx(dataset.STATISTICS.mean, abs=0.02)
