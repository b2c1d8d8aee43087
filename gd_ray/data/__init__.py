"""Data sets by name. Loading one imports torch; naming one does not."""

from collections.abc import Callable
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING

from gd_ray.plugins import Registry

if TYPE_CHECKING:
    from gd_ray.data.dataset import LabelledData

Loader = Callable[[str, int | None, int | None], "LabelledData"]
"""Load a data set from a folder; the numbers of training and test images per class, None for all, are hints."""
DATASETS: Registry[Loader] = Registry("data set")
DESCRIPTION = "dataset.json"
"""File of a prepared data set, whose module needs torch."""


@DATASETS.register("glyphs")
def _glyphs(_: str, train_per_class: int | None, test_per_class: int | None) -> "LabelledData":
    from gd_ray.data import glyphs

    return glyphs.load_glyphs(train_per_class or glyphs.TRAIN_PER_CLASS, test_per_class or glyphs.TEST_PER_CLASS)


def _register(name: str) -> None:
    """Register the function load_NAME of the module of that name, which takes a folder."""

    @lru_cache(maxsize=1)  # decoding all of CIFAR-100 takes twenty seconds
    def load(folder: str) -> "LabelledData":
        data: LabelledData = getattr(import_module(f"gd_ray.data.{name}"), f"load_{name}")(folder)
        return data

    DATASETS[name] = lambda folder, *_: load(folder)


_register("cifar100")
_register("imagenet32")
