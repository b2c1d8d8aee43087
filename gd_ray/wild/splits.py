"""Cut a prepared stream by hierarchical distance: the distance of its classes from the training classes in WordNet.

The stream is shuffled, and so is any part of it: images are copied in their order.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pyarrow import fs

from gd_ray.errors import UserError
from gd_ray.progress import OnProgress, track
from gd_ray.ray_utils import Mapper, map_with_ray
from gd_ray.storage import filesystem_of
from gd_ray.wild import writer
from gd_ray.wild.manifest import NAME, read_manifest
from gd_ray.wild.stream import WildStream
from gd_ray.wordnet.hierarchy import WordNet


@dataclass(frozen=True)
class Split:
    """Classes of a stream within a range of distances."""

    name: str
    """Suffix of the new stream's name."""
    about: str
    classes: frozenset[str]
    images: int


@dataclass(frozen=True)
class Plan:
    """Splits of a stream, and the classes without a distance."""

    splits: tuple[Split, ...]
    training: Mapping[str, int]
    """Number of images of each training class in the stream: in no split."""
    unknown: Mapping[str, int]
    """Number of images of each class that WordNet lacks: a split of their own."""


def class_counts(stream: WildStream) -> dict[str, int]:
    """Count the images of each class of a stream; 'None' is that of images without one."""
    counts = stream.all_classes().value_counts().to_pylist()
    return {str(entry["values"]): entry["counts"] for entry in counts}


def plan_splits(
    counts: Mapping[str, int],
    wordnet: WordNet,
    training: Iterable[str],
    *,
    least: int = 1_000_000,
    most_splits: int = 5,
) -> Plan:
    """Cut classes by distance: nearest first, distances joined until a split has `least` images.

    The rest at the far end joins the last split, and so does every distance beyond `most_splits`.
    """
    if least < 1 or most_splits < 1:
        raise UserError(f"least {least} and splits {most_splits} must be at least 1.")
    goals = sorted(set(training))
    missing = [name for name in goals if name not in wordnet.words]
    if missing or not goals:
        problem = f"has {missing[0]!r}, which is not in WordNet" if missing else "is empty"
        raise UserError(f"list of training classes {problem}; give WordNet 3.0 ids such as n02084071.")
    distances = wordnet.distances(goals)
    unknown = {name: images for name, images in sorted(counts.items()) if name not in distances}
    by_distance: dict[int, list[str]] = defaultdict(list)
    for name in sorted(counts.keys() - unknown.keys()):
        by_distance[distances[name]].append(name)
    if not by_distance:
        first = f"the first of {len(counts)} is {next(iter(counts), None)!r}"
        raise UserError(f"stream has no class that is in WordNet ({first}); give WordNet 3.0 ids such as n02084071.")
    trained = by_distance.pop(0, [])
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
    splits = []
    for number, group in enumerate(groups, start=1):
        classes = frozenset(name for distance in group for name in by_distance[distance])
        about = f"distance {group[0]}" if len(group) == 1 else f"distances {group[0]} to {group[-1]}"
        splits.append(Split(f"distance-{number}", about, classes, sum(counts[name] for name in classes)))
    if unknown:
        splits.append(Split("unknown", "unknown to WordNet", frozenset(unknown), sum(unknown.values())))
    return Plan(tuple(splits), {name: counts[name] for name in trained}, unknown)


def is_written(stream: WildStream, split: Split, out: str) -> bool:
    """Return whether an interrupted run has finished this split already; refuse any other stream at `out`."""
    filesystem, root = filesystem_of(out)
    if filesystem.get_file_info(f"{root}/{NAME}").type == fs.FileType.File:
        present = read_manifest(out)
        about = (present.images, present.classes, present.split, present.source, present.seed)
        if about == (split.images, len(split.classes), split.about, stream.address, stream.manifest.seed):
            return True
    writer.require_no_stream(out)
    return False


def write_split(
    stream: WildStream,
    split: Split,
    out: str,
    *,
    shard_rows: int = writer.SHARD_ROWS,
    group_rows: int = writer.GROUP_ROWS,
    mapper: Mapper = map_with_ray,
    on_progress: OnProgress = lambda *_: None,
) -> WildStream:
    """Copy the images of a split to a stream of its own."""
    filesystem, root = writer.require_no_stream(out)
    with writer.clean_on_failure(out):
        filesystem.create_dir(root, recursive=True)
        chosen = pc.is_in(stream.all_classes().fill_null("None"), pa.array(sorted(split.classes)))
        positions = np.flatnonzero(chosen.to_numpy())
        cuts = [(k, positions[k * shard_rows : (k + 1) * shard_rows]) for k in range(-(-len(positions) // shard_rows))]
        copies = mapper(partial(_copy, stream, out, shard_rows, group_rows), cuts)
        written: list[writer.Written] = list(track(split.name, copies, len(cuts), on_progress))
        about = {"source": stream.address, "seed": stream.manifest.seed, "split": split.about}
        return writer.close_stream(out, written, (), side=stream.side, classes=len(split.classes), **about)


def _copy(
    stream: WildStream, out: str, shard_rows: int, group_rows: int, item: tuple[int, NDArray[np.int64]]
) -> writer.Written:
    number, positions = item
    texts = {"class": stream.class_names(positions), "path": stream.paths(positions)}
    columns = {name: pa.array(values, pa.string()) for name, values in texts.items()}
    return writer.write_shard(out, number, number * shard_rows, stream.read(positions), columns, group_rows)
