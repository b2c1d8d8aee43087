"""Any source of images becomes a WildStream: 32x32, shuffled once for good, in Parquet shards.

Two passes, each in parallel on Ray, neither holding the stream in memory. The first decodes the source's tasks
and deals every image to a bucket by a random key; the second sorts each bucket by key and writes it as a shard. Keys
depend on the seed and the image's place in the source alone, so the result does not depend on the parallelism. The
manifest is written last: an interrupted run leaves nothing that opens.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gd_ray.data.pixels import SIDE
from gd_ray.errors import UserError
from gd_ray.filesystems import filesystem_of
from gd_ray.progress import OnProgress, counted
from gd_ray.spec import check_seed
from gd_ray.wild.exclusions import Exclusions
from gd_ray.wild.manifest import Manifest
from gd_ray.wild.on_ray import Mapper, map_with_ray
from gd_ray.wild.parts import Part
from gd_ray.wild.shards import (
    GROUP_ROWS,
    SCRATCH,
    SHARD_ROWS,
    Written,
    cleared_on_failure,
    close_stream,
    fresh_place,
    write_shard,
)
from gd_ray.wild.sources import open_source
from gd_ray.wild.stream import WildStream, image_array, image_column
from gd_ray.wild.tiny_images import INDEXED, TinyRequest

_NAMED = 10


@dataclass(frozen=True)
class Prepared:
    """A finished stream and what a person should hear about it."""

    stream: WildStream
    warnings: tuple[str, ...]


def prepare(
    source: str,
    out: str,
    *,
    exclude: Exclusions | None = None,
    tiny: TinyRequest | None = None,
    seed: int = 0,
    shard_rows: int = SHARD_ROWS,
    group_rows: int = GROUP_ROWS,
    mapper: Mapper = map_with_ray,
    on_progress: OnProgress = lambda *_: None,
) -> Prepared:
    """Writes the source's images to a new stream at `out`. `tiny` says what is wanted of a tiny_images.bin."""
    check_seed(seed)
    filesystem, root = fresh_place(out)
    asked = exclude or Exclusions()
    opened = open_source(source, exclude=asked, tiny=tiny, seed=seed)
    parts, excluded = opened.parts, asked.with_listed(opened.exclude)
    buckets = max(1, -(-sum(part.expected for part in parts) // shard_rows))
    scratch = f"{root}/{SCRATCH}"
    with cleared_on_failure(out):
        filesystem.create_dir(scratch, recursive=True)
        deal = mapper(_Deal(out, buckets, excluded, seed), list(enumerate(parts)))
        dealt = list(counted("read", deal, len(parts), on_progress))
        images = sum(sum(part.counts) for part in dealt)
        if not images:
            raise UserError(_nothing_left(source, dealt))
        classes = sorted(frozenset().union(*(part.classes for part in dealt)))
        left_out: Counter[str] = sum((part.excluded for part in dealt), Counter())
        if (asked.named or asked.listed) and not classes and not left_out:
            raise UserError(f"exclude cannot leave anything out: the images of source {source!r} have no classes.")
        rows = np.sum([part.counts for part in dealt], axis=0)
        places = [(bucket, int(rows[:bucket].sum())) for bucket in np.flatnonzero(rows).tolist()]
        gather = mapper(_Gather(out, len(parts), group_rows), places)
        gathered = list(counted("write", gather, len(places), on_progress))
        filesystem.delete_dir(scratch)
        in_order = sorted(dealt, key=lambda part: part.part)
        stream = close_stream(
            out,
            gathered,
            source=source,
            seed=seed,
            classes=len(classes),
            excluded=dict(sorted(left_out.items())),
            unreadable=[line for part in in_order for line in part.unreadable],
        )
    told = (*_unmatched(asked, stream.manifest), *_list_without_match(asked, left_out, classes))
    return Prepared(stream, (*told, *_only_indexed(opened.exclude)))


def _list_without_match(exclude: Exclusions, left_out: Iterable[str], classes: list[str]) -> tuple[str, ...]:
    if not exclude.listed or any(name in Exclusions(listed=exclude.listed) for name in left_out):
        return ()
    seen = ", ".join(map(repr, classes[:_NAMED]))
    return (f"exclude: no image of any class of the list was found; the classes of the source are such as {seen}.",)


def _only_indexed(excluded: frozenset[str]) -> tuple[str, ...]:
    if excluded != {INDEXED}:
        return ()
    return (
        "indexes: without the words of the images only those listed are left out, not all images of their words; put "
        "tiny_metadata.bin or tiny_index.mat beside the source, or name it with --words.",
    )


def _unmatched(exclude: Exclusions, manifest: Manifest) -> tuple[str, ...]:
    names = exclude.unmatched(manifest.excluded)
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    told = ", ".join(map(repr, names[:_NAMED]))
    return (f"exclude: no image of class {told}{more} was found.",) if names else ()


@dataclass(frozen=True)
class _Dealt:
    """What one part gave to the buckets."""

    part: int
    counts: list[int]
    classes: frozenset[str]
    excluded: Counter[str]
    unreadable: list[str]


@dataclass(frozen=True)
class _Deal:
    """First pass: one part's images, sorted into buckets, in one scratch file with a record batch per bucket."""

    out: str
    buckets: int
    exclude: Exclusions
    seed: int

    def __call__(self, item: tuple[int, Part]) -> _Dealt:
        number, part = item
        listing = part.listing()
        # Drawn before anything is left out: an image's key does not depend on the exclusions.
        numbers = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number,)))
        all_keys = numbers.integers(0, 2**62, len(listing.classes))
        out_of = np.array([name in self.exclude for name in listing.classes], bool)
        excluded = Counter(str(name) for name, out in zip(listing.classes, out_of, strict=True) if out)
        chunk = part.load(np.flatnonzero(~out_of))
        order = np.argsort(all_keys[chunk.places] % self.buckets, kind="stable")
        keys = all_keys[chunk.places[order]]
        counts = np.bincount(keys % self.buckets, minlength=self.buckets)
        names = [listing.classes[place] for place in chunk.places[order].tolist()]
        columns = {
            "key": pa.array(keys),
            "image": image_column(chunk.images[order]),
            "class": pa.array(names, pa.string()),
        }
        table = pa.table(columns)
        filesystem, root = filesystem_of(self.out)
        with (
            filesystem.open_output_stream(f"{root}/{SCRATCH}/{number}.arrow") as target,
            pa.ipc.new_file(target, table.schema) as writer,
        ):
            start = 0
            for count in counts.tolist():
                batch = table.slice(start, count).combine_chunks()
                empty = pa.RecordBatch.from_pylist([], schema=table.schema)
                writer.write_batch(batch.to_batches()[0] if count else empty)
                start += count
        classes = frozenset(name for name in names if name)
        return _Dealt(number, counts.tolist(), classes, excluded, listing.broken + chunk.unreadable)


@dataclass(frozen=True)
class _Gather:
    """Second pass: a bucket of all scratch files, sorted by key, as one shard."""

    out: str
    parts: int
    group_rows: int

    def __call__(self, place: tuple[int, int]) -> Written:
        bucket, first_position = place
        filesystem, root = filesystem_of(self.out)
        batches = []
        for part in range(self.parts):
            with filesystem.open_input_file(f"{root}/{SCRATCH}/{part}.arrow") as source:
                batches.append(pa.ipc.open_file(source).get_batch(bucket))
        table = pa.Table.from_batches(batches)
        order = np.argsort(table["key"].to_numpy(), kind="stable")  # equal keys keep the order of the source
        images, places, start = np.empty((len(order), SIDE, SIDE, 3), np.uint8), np.argsort(order), 0
        for chunk in table["image"].chunks:
            images[places[start : start + len(chunk)]] = image_array(chunk)
            start += len(chunk)
        return write_shard(self.out, bucket, first_position, images, table["class"].take(order), self.group_rows)


def _nothing_left(source: str, dealt: list[_Dealt]) -> str:
    excluded = sum(sum(part.excluded.values()) for part in dealt)
    unreadable = [line for part in dealt for line in part.unreadable]
    if excluded:
        return f"exclude leaves nothing of source {source!r}: all its {excluded} images are of excluded classes."
    if unreadable:
        return f"source {source!r} has no readable image; the first of {len(unreadable)} failures is {unreadable[0]}."
    return f"source {source!r} is empty; give one with images."
