"""A stream cut by hierarchical distance: how far its classes are from the training classes in WordNet.

The stream is a prepared one. It is shuffled, and so is any part of it: images are only copied, in their order.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pyarrow import fs

from gd_ray.errors import UserError
from gd_ray.filesystems import filesystem_of
from gd_ray.progress import OnProgress, counted
from gd_ray.wild.hierarchy import WordNet
from gd_ray.wild.manifest import NAME, read_manifest
from gd_ray.wild.on_ray import Mapper, map_with_ray
from gd_ray.wild.shards import (
    GROUP_ROWS,
    SHARD_ROWS,
    Written,
    cleared_on_failure,
    close_stream,
    fresh_place,
    write_shard,
)
from gd_ray.wild.stream import WildStream

LEAST = 1_000_000
MOST_SPLITS = 5


@dataclass(frozen=True)
class Split:
    """The classes of a stream from one distance to another."""

    name: str
    """What is put behind the stream's name."""
    about: str
    classes: frozenset[str]
    images: int


@dataclass(frozen=True)
class Plan:
    """How a stream is cut, and what is in none of its splits."""

    splits: tuple[Split, ...]
    training: Mapping[str, int]
    """Training classes in the stream themselves, with their images: left out."""
    unknown: Mapping[str, int]
    """Classes that WordNet does not know, with their images: a split of their own."""


def class_counts(
    stream: WildStream, *, mapper: Mapper = map_with_ray, on_progress: OnProgress = lambda *_: None
) -> dict[str, int]:
    """The images of each class of a stream."""
    starts = range(0, len(stream), SHARD_ROWS)
    parts = counted("count", mapper(_Count(stream), list(starts)), len(starts), on_progress)
    return dict(sum(parts, Counter[str]()))


def plan_splits(
    counts: Mapping[str, int],
    wordnet: WordNet,
    training: Iterable[str],
    *,
    least: int = LEAST,
    most_splits: int = MOST_SPLITS,
) -> Plan:
    """Cuts classes by distance: near ones first, distances joined until a split has `least` images.

    What is left at the far end joins the last split, and so does every distance beyond `most_splits`.
    """
    if least < 1 or most_splits < 1:
        raise UserError(f"least {least} and splits {most_splits} must be at least 1.")
    goals = sorted(set(training))
    strange = [name for name in goals if name not in wordnet.words]
    if strange or not goals:
        told = f"has {strange[0]!r}, which WordNet does not know" if strange else "is empty"
        raise UserError(f"list of training classes {told}; give WordNet 3.0 ids such as n02084071.")
    distances = wordnet.distances(goals)
    by_distance: dict[int, list[str]] = {}
    unknown = {}
    for name, images in sorted(counts.items()):
        if name in distances:
            by_distance.setdefault(distances[name], []).append(name)
        else:
            unknown[name] = images
    if not by_distance:
        raise UserError(
            f"stream has no class that WordNet knows (the first of {len(counts)} is {next(iter(counts), None)!r}); its "
            f"classes must be WordNet 3.0 ids such as n02084071."
        )
    itself = by_distance.pop(0, [])
    groups: list[list[int]] = []
    images = 0
    for distance in sorted(by_distance):
        if not groups or (images >= least and len(groups) < most_splits):
            groups.append([])
            images = 0
        groups[-1].append(distance)
        images += sum(counts[name] for name in by_distance[distance])
    if images < least and len(groups) > 1:
        last = groups.pop()
        groups[-1] += last
    splits = [_split(f"distance-{k}", group, by_distance, counts) for k, group in enumerate(groups, start=1)]
    if unknown:
        splits.append(Split("unknown", "unknown to WordNet", frozenset(unknown), sum(unknown.values())))
    return Plan(tuple(splits), {name: counts[name] for name in itself}, unknown)


def _split(name: str, group: list[int], by_distance: Mapping[int, list[str]], counts: Mapping[str, int]) -> Split:
    classes = frozenset(label for distance in group for label in by_distance[distance])
    about = f"distance {group[0]}" if len(group) == 1 else f"distances {group[0]} to {group[-1]}"
    return Split(name, about, classes, sum(counts[label] for label in classes))


def is_written(stream: WildStream, split: Split, out: str) -> bool:
    """Whether the split is there already, from a run that was stopped later on; any other stream there is refused."""
    filesystem, root = filesystem_of(out)
    if filesystem.get_file_info(f"{root}/{NAME}").type == fs.FileType.File:
        there = read_manifest(out)
        about = (there.images, there.classes, there.split, there.source, there.seed)
        if about == (split.images, len(split.classes), split.about, stream.address, stream.manifest.seed):
            return True
    fresh_place(out)
    return False


def write_split(
    stream: WildStream,
    split: Split,
    out: str,
    *,
    shard_rows: int = SHARD_ROWS,
    group_rows: int = GROUP_ROWS,
    mapper: Mapper = map_with_ray,
    on_progress: OnProgress = lambda *_: None,
) -> WildStream:
    """Copies the images of a split to a stream of its own."""
    filesystem, root = fresh_place(out)
    with cleared_on_failure(out):
        filesystem.create_dir(root, recursive=True)
        starts = range(0, len(stream), SHARD_ROWS)
        found = dict(mapper(_Find(stream, split.classes), list(starts)))
        positions = np.concatenate([found[start] for start in starts])
        cuts = [(k, positions[k * shard_rows : (k + 1) * shard_rows]) for k in range(-(-len(positions) // shard_rows))]
        copies = mapper(_Copy(stream, out, shard_rows, group_rows), cuts)
        written: list[Written] = list(counted(split.name, copies, len(cuts), on_progress))
        return close_stream(
            out,
            written,
            source=stream.address,
            seed=stream.manifest.seed,
            classes=len(split.classes),
            split=split.about,
        )


@dataclass(frozen=True)
class _Count:
    """Counts the classes of a stretch of the stream."""

    stream: WildStream

    def __call__(self, start: int) -> Counter[str]:
        return Counter(str(name) for name in _names(self.stream, start))


@dataclass(frozen=True)
class _Find:
    """Finds the positions of some classes in a stretch of the stream."""

    stream: WildStream
    classes: frozenset[str]

    def __call__(self, start: int) -> tuple[int, NDArray[np.int64]]:
        here = [str(name) in self.classes for name in _names(self.stream, start)]
        return start, start + np.flatnonzero(here)


@dataclass(frozen=True)
class _Copy:
    """Copies images to one shard of another stream."""

    stream: WildStream
    out: str
    shard_rows: int
    group_rows: int

    def __call__(self, item: tuple[int, NDArray[np.int64]]) -> Written:
        number, positions = item
        names = pa.chunked_array([pa.array(self.stream.class_names(positions), pa.string())])
        images = self.stream.read(positions)
        return write_shard(self.out, number, number * self.shard_rows, images, names, self.group_rows)


def _names(stream: WildStream, start: int) -> list[str | None]:
    return stream.class_names(np.arange(start, min(start + SHARD_ROWS, len(stream))))
