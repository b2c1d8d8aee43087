"""ImageNet at 32x32 under the paper's protocol: 500 training and 100 test images of each class, drawn once.

A trial's seed learns its own 100 of the classes (`gd_ray.data.tasks`).
"""

from pathlib import Path
from typing import Any

from gd_ray.data.dataset import LabelledData
from gd_ray.data.drawing import DrawSize, prepare_dataset
from gd_ray.data.pixels import Statistics
from gd_ray.data.prepared import Description, load_prepared
from gd_ray.wordnet.ilsvrc2012 import WORDNET_IDS

NAME = "imagenet32"
SIDE = 32
SIZE = DrawSize(train_per_class=500, test_per_class=100, set_size=100)
STATISTICS = Statistics((0.4814872, 0.4577173, 0.4082078), (0.2606994, 0.2536456, 0.2685610))
"""The published ones, of ILSVRC's 1000 classes."""


def prepare_imagenet32(source: str, out: str, *, size: DrawSize = SIZE, **options: Any) -> Description:
    """Draw the data set from a source, with the options of `prepare_dataset`."""
    return prepare_dataset(source, out, size=size, side=SIDE, published=(WORDNET_IDS, STATISTICS), **options)


def load_imagenet32(folder: str | Path) -> LabelledData:
    return load_prepared(folder, NAME, NAME)
