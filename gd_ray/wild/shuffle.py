"""Turn a source of images into a WildStream: one size, shuffled once, in Parquet shards.

Two passes, each in parallel on Ray, neither with the whole stream in memory. The first decodes the parts of the source
and assigns every image to a bucket by a random key; the second sorts each bucket by key and writes it as a shard. Keys
depend on the seed and the image's index in the source alone, so the result does not depend on the parallelism. The
manifest is written last: an interrupted run leaves nothing that opens.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from gd_ray.errors import UserError
from gd_ray.progress import OnProgress, track
from gd_ray.ray_utils import Mapper, map_with_ray
from gd_ray.sources.base import PassedOver, SourcePart, TinyRequest, find_splits, open_source, require_apart
from gd_ray.sources.tiny_images import INDEXED
from gd_ray.spec import check_seed
from gd_ray.storage import filesystem_of
from gd_ray.wild import writer
from gd_ray.wild.stream import WildStream, image_array, image_column
from gd_ray.wordnet.exclusions import Exclusions

_EXAMPLES = 10


@dataclass(frozen=True)
class Prepared:
    """The prepared stream and its warnings."""

    stream: WildStream
    warnings: tuple[str, ...]


def prepare_stream(
    source: str,
    out: str,
    *,
    side: int = 32,
    exclude: Exclusions | None = None,
    tiny: TinyRequest | None = None,
    seed: int = 0,
    shard_rows: int = writer.SHARD_ROWS,
    group_rows: int = writer.GROUP_ROWS,
    mapper: Mapper = map_with_ray,
    on_progress: OnProgress = lambda *_: None,
) -> Prepared:
    """Write the source's images to a new stream at `out`; `tiny` has the options of a tiny_images.bin."""
    check_seed(seed)
    require_apart(source, out)
    filesystem, root = writer.require_no_stream(out)
    requested = exclude or Exclusions()
    opened = open_source(source, side=side, exclude=requested, tiny=tiny, seed=seed)
    parts, excluded = opened.parts, requested.with_listed(opened.exclude)
    buckets = max(1, -(-sum(part.expected for part in parts) // shard_rows))
    scratch = f"{root}/{writer.SCRATCH}"
    with writer.clean_on_failure(out):
        filesystem.create_dir(scratch, recursive=True)
        maps = mapper(ShuffleMap(out, buckets, excluded, seed), list(enumerate(parts)))
        mapped = sorted(track("read", maps, len(parts), on_progress), key=lambda part: part.part)
        for part in mapped:
            opened.passed_over.update(part.passed_over)
        rows = np.sum([part.counts for part in mapped], axis=0)
        unreadable = [line for part in mapped for line in part.unreadable]
        classes = sorted(frozenset().union(*(part.classes for part in mapped)))
        left_out: Counter[str] = sum((part.excluded for part in mapped), Counter())
        if not rows.any():
            first = f"the first of {len(unreadable)} failures is {unreadable[0]}" if unreadable else "it is empty"
            problem = f"source {source!r} has no readable image; {first}."
            if left_out:
                number = f"all its {left_out.total()} images are of excluded classes"
                problem = f"exclude leaves nothing of source {source!r}: {number}."
            raise UserError(problem)
        if (requested.named or requested.listed) and not classes and not left_out:
            raise UserError(f"exclude has no effect: the images of source {source!r} have no classes; remove it.")
        shards = [(bucket, int(rows[:bucket].sum())) for bucket in np.flatnonzero(rows).tolist()]
        reduces = mapper(ShuffleReduce(out, len(parts), group_rows), shards)
        written = list(track("write", reduces, len(shards), on_progress))
        filesystem.delete_dir(scratch)
        about = {"side": side, "source": source, "seed": seed, "passed_over": opened.passed_over}
        counts = {"classes": len(classes), "excluded": dict(sorted(left_out.items()))}
        stream = writer.close_stream(out, written, unreadable, **about, **counts)
    return Prepared(stream, tuple(_warnings(source, requested, opened.exclude, left_out, classes)))


def _warnings(
    source: str, requested: Exclusions, by_source: frozenset[str], excluded: Counter[str], classes: list[str]
) -> Iterator[str]:
    if splits := find_splits(source):
        yield f"the stream has the images of {splits[0]} and of {splits[1]}; for one of them, give it as the source."
    if names := requested.unmatched(excluded):
        more = f" and {len(names) - _EXAMPLES} more" if len(names) > _EXAMPLES else ""
        yield f"exclude: no image of class {', '.join(map(repr, names[:_EXAMPLES]))}{more} was found."
    if requested.listed and not any(name in Exclusions(listed=requested.listed) for name in excluded):
        seen = ", ".join(map(repr, classes[:_EXAMPLES]))
        yield f"exclude: no image of any class of the list was found; the classes of the source are such as {seen}."
    if by_source == {INDEXED}:
        yield (
            "indexes: without the words of the images only the listed images are excluded, not all images of their "
            "words; put tiny_metadata.bin or tiny_index.mat into the folder of the source, or give it with --words."
        )


@dataclass(frozen=True)
class _Mapped:
    """Contribution of one part to the buckets."""

    part: int
    counts: list[int]
    classes: frozenset[str]
    excluded: Counter[str]
    unreadable: list[str]
    passed_over: PassedOver


@dataclass(frozen=True)
class ShuffleMap:
    """First pass: write one part's images, sorted by bucket, to a scratch file with a record batch per bucket."""

    out: str
    buckets: int
    exclude: Exclusions
    seed: int

    def __call__(self, item: tuple[int, SourcePart]) -> _Mapped:
        number, part = item
        index = part.index()
        # Drawn for all images: the key of an image does not depend on the exclusions.
        rng = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(number,)))
        all_keys = rng.integers(0, 2**62, len(index.classes))
        is_excluded = np.array([name in self.exclude for name in index.classes], bool)
        excluded = Counter(str(name) for name, out in zip(index.classes, is_excluded, strict=True) if out)
        batch = part.load(np.flatnonzero(~is_excluded))
        order = np.argsort(all_keys[batch.indices] % self.buckets, kind="stable")
        keys = all_keys[batch.indices[order]]
        counts = np.bincount(keys % self.buckets, minlength=self.buckets)
        names = [index.classes[k] for k in batch.indices[order].tolist()]
        paths = [part.path(k) for k in batch.indices[order].tolist()]
        texts = [pa.array(names, pa.string()), pa.array(paths, pa.string())]
        columns = [pa.array(keys), image_column(batch.images[order]), *texts]
        records = pa.record_batch(columns, ["key", "image", "class", "path"])
        filesystem, root = filesystem_of(self.out)
        with (
            filesystem.open_output_stream(f"{root}/{writer.SCRATCH}/{number}.arrow") as target,
            pa.ipc.new_file(target, records.schema) as scratch,
        ):
            for end, count in zip(np.cumsum(counts).tolist(), counts.tolist(), strict=True):
                scratch.write_batch(records.slice(end - count, count))
        classes = frozenset(name for name in names if name)
        unreadable = [*index.broken, *batch.unreadable]
        return _Mapped(number, counts.tolist(), classes, excluded, unreadable, index.passed_over)


@dataclass(frozen=True)
class ShuffleReduce:
    """Second pass: read a bucket of all scratch files, sort it by key, and write it as one shard."""

    out: str
    parts: int
    group_rows: int

    def __call__(self, item: tuple[int, int]) -> writer.Written:
        bucket, first_position = item
        filesystem, root = filesystem_of(self.out)
        batches = []
        for part in range(self.parts):
            with filesystem.open_input_file(f"{root}/{writer.SCRATCH}/{part}.arrow") as source:
                batches.append(pa.ipc.open_file(source).get_batch(bucket))
        table = pa.Table.from_batches(batches)
        table = table.take(np.argsort(table["key"].to_numpy(), kind="stable"))  # equal keys keep the source's order
        images = image_array(table["image"].combine_chunks())
        texts = {name: table[name] for name in ("class", "path")}
        return writer.write_shard(self.out, bucket, first_position, images, texts, self.group_rows)
