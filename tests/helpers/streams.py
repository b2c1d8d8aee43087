"""Streams prepared from pictures, and what they contain."""

import numpy as np

from gd_ray.ray_utils import map_in_process
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.stream import WildStream
from gd_ray.wordnet.exclusions import Exclusions
from tests.helpers.pictures import boxed, picture


def contents(stream: WildStream):
    """The images and classes of a stream, whatever their order."""
    positions = np.arange(len(stream))
    images = [image.tobytes() for image in stream.read(positions)]
    return sorted(zip(images, (str(name) for name in stream.class_names(positions)), strict=True))


def excluded(*names):
    return Exclusions(frozenset(names))


def make(source, out, **options):
    return prepare_stream(str(source), str(out), mapper=map_in_process, **options)


def expected(number=10):
    return sorted((boxed(picture(k)), "cat" if k % 2 else "dog") for k in range(number))
