"""Data sets by name. Loading one imports torch; naming one does not."""

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING

from gd_ray.plugins import Registry, imported

if TYPE_CHECKING:
    from gd_ray.data.dataset import LabelledData

Loader = Callable[[str, int | None, int | None], "LabelledData"]
"""Load a data set from a folder; the numbers of training and test images per class, None for all, are hints."""
DATASETS: Registry[Loader] = Registry("data set")
DESCRIPTION = "dataset.json"
"""File of a prepared data set, whose module needs torch."""

_glyphs = imported("gd_ray.data.glyphs", "load_glyphs")
_imagenet32 = imported("gd_ray.data.imagenet32", "load_imagenet32")
_cifar100 = lru_cache(maxsize=1)(imported("gd_ray.data.cifar100", "load_cifar100"))  # to decode it takes twenty seconds

DATASETS["glyphs"] = lambda _, train_per_class, test_per_class: _glyphs(train_per_class, test_per_class)
DATASETS["cifar100"] = lambda folder, *_: _cifar100(folder)
DATASETS["imagenet32"] = lambda folder, *_: _imagenet32(folder)
