"""The embedded data set: 100 classes of drawn characters. `wild_glyphs` draws the others, for a stream."""

import numpy as np

from gd_ray.data.dataset import ImageSet, LabelledData
from gd_ray.data.pixels import Statistics
from gd_ray.sources.glyph_images import CHARACTERS, TEST, TRAIN, class_glyphs, wild_glyphs

__all__ = ["STATISTICS", "load_glyphs", "wild_glyphs"]

TRAIN_PER_CLASS, TEST_PER_CLASS = 500, 100
STATISTICS = Statistics((0.4993368, 0.5004355, 0.5001794), (0.2332501, 0.2339159, 0.2334835))
"""Of the 50,000 training images, however many of them are loaded."""


def load_glyphs(train_per_class: int | None = None, test_per_class: int | None = None) -> LabelledData:
    """Draw the labelled data. Fewer images per class are the first ones of the full set."""
    numbers = train_per_class or TRAIN_PER_CLASS, test_per_class or TEST_PER_CLASS
    train, test = (
        ImageSet.from_arrays(class_glyphs(number, split), np.repeat(np.arange(len(CHARACTERS)), number))
        for number, split in zip(numbers, (TRAIN, TEST), strict=True)
    )
    return LabelledData("glyphs", train, test, STATISTICS, tuple(CHARACTERS))
