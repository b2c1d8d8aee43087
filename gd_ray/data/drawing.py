"""Draw the training and test images of a data set from any source with classes.

Of each class, in the order of the classes' names, a permutation of its images in the order of their names decides:
the first ones are training images, the next ones test images. That is the authors' draw for ImageNet.
"""

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from gd_ray.data.pixels import Statistics
from gd_ray.data.prepared import SPLITS, DatasetWriter, Description, new_dataset, require_no_dataset
from gd_ray.errors import UserError
from gd_ray.progress import OnProgress, track
from gd_ray.ray_utils import Mapper, map_with_ray
from gd_ray.sources.base import ImageBatch, PassedOver, SourcePart, find_splits, open_source, require_apart
from gd_ray.spec import check_seed
from gd_ray.wordnet.exclusions import Exclusions

HELD_OUT = 6
"""Without a number of test images and without a source of them, one in so many of each class is a test image."""

Candidates = dict[str, NDArray[np.int64]]
"""(part, index) of the images of each class, in the order of their names."""


@dataclass(frozen=True)
class DrawSize:
    """How many images are drawn; None for all that a source has."""

    train_per_class: int | None = None
    test_per_class: int | None = None
    set_size: int | None = None
    """Number of classes of one trial, if each seed learns a set of its own."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value is not None and value < 1:
                raise UserError(f"{name} {value} must be at least 1.")

    def held_out(self, images: int) -> tuple[int, int]:
        """Return the numbers of training and test images if both come from the same images of a class."""
        test = self.test_per_class or max(1, images // HELD_OUT)
        return self.train_per_class or max(1, images - test), test


def prepare_dataset(
    source: str,
    out: str,
    *,
    test: str | None = None,
    size: DrawSize | None = None,
    side: int = 32,
    exclude: Exclusions | None = None,
    seed: int = 0,
    published: tuple[tuple[str, ...], Statistics] | None = None,
    mapper: Mapper = map_with_ray,
    on_progress: OnProgress = lambda *_: None,
) -> Description:
    """Draw images of every class of a source and write them to the folder `out`.

    Test images come from the source `test`, or are held out of `source`. `published` statistics are used in place of
    those of the training images if the classes are the ones that they were published for.
    """
    check_seed(seed)
    require_no_dataset(out)
    if splits := find_splits(source):
        mixed = f"would mix {splits[0]} and {splits[1]}"
        raise UserError(f"source {source!r} {mixed}; give one of them as the source.")
    for address in (source, test or source):
        require_apart(address, out)
    size, exclude, rng = size or DrawSize(), exclude or Exclusions(), np.random.RandomState(seed)
    # The index is read in this process: a class with too few images is reported before any work starts.
    parts, passed_over = list[SourcePart](), PassedOver()
    train = _index(source, side, exclude, parts, passed_over, on_progress)
    if size.set_size is not None and len(train) < size.set_size:
        few = f"{len(train)} classes, but a trial learns {size.set_size}"
        raise UserError(f"source {source!r} has {few}; lower --set-size.")
    if test is None:
        draws = _draw(source, train, size.held_out, rng)
    else:
        held_out = _index(test, side, exclude, parts, passed_over, on_progress)
        if different := sorted(train.keys() - held_out.keys()) or sorted(held_out.keys() - train.keys()):
            has, lacks = (source, test) if different[0] in train else (test, source)
            fix = "both need the same classes: exclude it with --exclude, or give another --test."
            raise UserError(f"class {different[0]!r} of source {has!r} has no image in {lacks!r}; {fix}")
        draws = _draw(source, train, lambda images: (size.train_per_class or images, 0), rng)
        draws += _draw(test, held_out, lambda images: (0, size.test_per_class or images), rng)
    names = tuple(sorted(train))
    statistics = published[1] if published is not None and published[0] == names else None
    sources = source if test is None else f"{source}, {test}"
    with new_dataset(out) as writer:
        unreadable, labels = _fill(writer, draws, names, size, side, parts, mapper, on_progress)
        origin = {"source": sources, "seed": seed, "unreadable": unreadable, "passed_over": passed_over}
        return writer.close(labels, names, statistics, size.set_size, **origin)


@dataclass(frozen=True)
class _Draw:
    """Images of one class in one source, in the order of the draw."""

    label: int
    candidates: NDArray[np.int64]
    sizes: tuple[int, int]
    """Numbers of training images, which come first, and of test images."""


def _index(
    source: str,
    side: int,
    exclude: Exclusions,
    parts: list[SourcePart],
    passed_over: PassedOver,
    on_progress: OnProgress,
) -> Candidates:
    """List the images of each class of a source; add its parts and what it passes over to those of other sources."""
    opened = open_source(source, side=side, exclude=exclude)
    passed_over.update(opened.passed_over)
    images: dict[str, list[tuple[str, int, int]]] = defaultdict(list)
    indices = track("list", (part.index() for part in opened.parts), len(opened.parts), on_progress)
    for part, contents in zip(opened.parts, indices, strict=True):
        if contents.broken:
            raise UserError(f"source {source!r} is not whole: {contents.broken[0]}; copy it again.")
        passed_over.update(contents.passed_over)
        names = contents.names or [""] * len(contents.classes)
        for index, (name, label) in enumerate(zip(names, contents.classes, strict=True)):
            if label is None:
                image = part.path(index)
                raise UserError(f"source {source!r} has no class for {image}; a data set needs one for every image.")
            if label not in exclude:
                images[label].append((name, len(parts), index))
        parts.append(part)
    if not images:
        raise UserError(f"source {source!r} has no image left; exclude fewer classes.")
    return {label: np.array([entry[1:] for entry in sorted(own)]) for label, own in images.items()}


def _draw(
    source: str, candidates: Candidates, sizes: Callable[[int], tuple[int, int]], rng: np.random.RandomState
) -> list[_Draw]:
    """Draw from each class the numbers of training and test images that `sizes` returns for its number of images."""
    draws, short = [], []
    for label, (name, own) in enumerate(sorted(candidates.items())):
        draws.append(_Draw(label, own[rng.permutation(len(own))], sizes(len(own))))
        if len(own) < sum(draws[-1].sizes):
            needed = " + ".join(str(number) for number in draws[-1].sizes if number)
            short.append(f"class {name!r} of source {source!r} has {len(own)} images, but {needed} are needed")
    if short:
        others = f" ({len(short) - 1} more classes have too few)" if len(short) > 1 else ""
        fix = "lower --train-per-class or --test-per-class, or exclude it with --exclude."
        raise UserError(f"{short[0]}{others}; {fix}")
    return draws


def _fill(
    writer: DatasetWriter,
    draws: list[_Draw],
    names: tuple[str, ...],
    size: DrawSize,
    side: int,
    parts: list[SourcePart],
    mapper: Mapper,
    on_progress: OnProgress,
) -> tuple[list[str], dict[str, NDArray[np.int64]]]:
    """Read the drawn images into rows sorted by class; return the unreadable images and the labels.

    An unreadable image is replaced by the next one of its class; if all are taken already, its row is removed.
    """
    owners = [np.repeat(np.arange(len(draws)), [draw.sizes[k] for draw in draws]) for k in range(len(SPLITS))]
    arrays = [writer.create(split, len(own), side) for split, own in zip(SPLITS, owners, strict=True)]
    filled = [np.zeros(len(own), bool) for own in owners]
    candidates = [iter(draw.candidates.tolist()) for draw in draws]
    missing = [(number, k, row) for k, own in enumerate(owners) for row, number in enumerate(own.tolist())]
    unreadable: list[str] = []
    while missing:
        # (part, index) of the source to (draw, split, row), a part at a time: each is read once.
        rows: dict[int, dict[int, tuple[int, int, int]]] = defaultdict(dict)
        for entry in missing:
            for part, index in islice(candidates[entry[0]], 1):
                rows[part][index] = entry
        items = [(part, parts[part], np.array(sorted(indices))) for part, indices in sorted(rows.items())]
        for part, batch in track("read", mapper(_load, items), len(items), on_progress):
            for index, image in zip(batch.indices.tolist(), batch.images, strict=True):
                _, k, row = rows[part].pop(index)
                arrays[k][row], filled[k][row] = image, True
            unreadable += batch.unreadable
        missing = sorted(entry for indices in rows.values() for entry in indices.values())
    labels = {}
    for k, (split, exact) in enumerate(zip(SPLITS, (size.train_per_class, size.test_per_class), strict=True)):
        labels[split] = np.array([draw.label for draw in draws])[owners[k][filled[k]]]
        needed = exact or 1
        if len(short := np.flatnonzero(np.bincount(labels[split], minlength=len(names)) < needed)):
            few = f"class {names[short[0]]!r} has too few readable {split} images: {needed} are needed"
            raise UserError(f"{few}; the first of {len(unreadable)} that cannot be read is {min(unreadable)}.")
        writer.keep(split, filled[k])
    return sorted(unreadable), labels


def _load(item: tuple[int, SourcePart, NDArray[np.int64]]) -> tuple[int, ImageBatch]:
    number, part, indices = item
    return number, part.load(indices)
