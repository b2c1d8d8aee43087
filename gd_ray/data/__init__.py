"""Data sets by name. Loading one imports torch; naming one does not."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from gd_ray.plugins import Registry

if TYPE_CHECKING:
    from gd_ray.data.dataset import LabelledData

Loader = Callable[[str, int | None, int | None], "LabelledData"]
"""Load a data set from a folder; the numbers of training and test images per class, None for all, are hints."""
DATASETS: Registry[Loader] = Registry("data set")


@DATASETS.register("glyphs")
def _glyphs(_: str, train_per_class: int | None, test_per_class: int | None) -> "LabelledData":
    from gd_ray.data import glyphs

    return glyphs.load_glyphs(train_per_class or glyphs.TRAIN_PER_CLASS, test_per_class or glyphs.TEST_PER_CLASS)


@DATASETS.register("cifar100")
def _cifar100(folder: str, *_: int | None) -> "LabelledData":
    return _decode_cifar100(folder)


@lru_cache(maxsize=1)
def _decode_cifar100(folder: str) -> "LabelledData":
    """Load it once per process: decoding all of CIFAR-100 takes twenty seconds."""
    from gd_ray.data.cifar100 import load_cifar100

    return load_cifar100(folder)


@DATASETS.register("imagenet32")
def _imagenet32(folder: str, *_: int | None) -> "LabelledData":
    from gd_ray.data.imagenet32 import load_imagenet32

    return load_imagenet32(folder)
