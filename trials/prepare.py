"""`gd-ray prepare`: makes streams and data sets and tells how it went."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from time import perf_counter
from typing import TYPE_CHECKING

from rich.console import Console

from gd_ray.data.ilsvrc2012 import WORDNET_IDS
from gd_ray.data.pixels import Statistics, pixel_statistics
from gd_ray.filesystems import beside
from gd_ray.progress import OnProgress
from gd_ray.wild.cifar100_synsets import SYNSETS
from gd_ray.wild.distances import class_counts, is_written, plan_splits, write_split
from gd_ray.wild.exclusions import Exclusions, read_names
from gd_ray.wild.hierarchy import read_wordnet
from gd_ray.wild.prepare import prepare
from gd_ray.wild.stream import WildStream
from gd_ray.wild.tiny_images import TinyRequest
from trials.view import progress_bar

if TYPE_CHECKING:
    from gd_ray.data.imagenet32 import Numbers

_SHARES = {"list": (0.0, 0.1), "read": (0.1, 0.8), "write": (0.9, 0.1)}
"""Where a step begins and how much of the work it is: reading decodes, the others do not."""
_STEPS = {
    "count": "counting classes",
    "list": "listing the source",
    "read": "reading the source",
    "write": "writing shards",
}


def run_prepare(source: str, out: str, exclude: Exclusions, tiny: TinyRequest, seed: int) -> None:
    console = Console(soft_wrap=True)
    started = perf_counter()
    with _progress(console, _SHARES) as on_progress:
        prepared = prepare(source, out, exclude=exclude, tiny=tiny, seed=seed, on_progress=on_progress)
    manifest, seconds = prepared.stream.manifest, perf_counter() - started
    size = sum(shard.bytes for shard in manifest.shards) / 1e6
    console.print(
        f"{out}: {manifest.images} images in {len(manifest.shards)} shards, {size:.0f} MB, "
        f"{seconds:.0f} s ({manifest.images / seconds:.0f} images/s); digest {prepared.stream.digest}."
    )
    if manifest.excluded:
        left_out = sum(manifest.excluded.values())
        console.print(
            f"Left out {left_out} images of {len(manifest.excluded)} excluded classes; manifest.json lists them."
        )
    _tell_statistics(console, manifest.statistics)
    if manifest.unreadable:
        console.print(f"{manifest.unreadable} could not be read; manifest.json lists them, the first: ", end="")
        console.print(manifest.unreadable_examples[0], markup=False)
    for warning in prepared.warnings:
        console.print(f"Warning: {warning}", markup=False)


def run_prepare_imagenet32(source: str, out: str, numbers: "Numbers", exclude: Exclusions, seed: int) -> None:
    from gd_ray.data.imagenet32 import prepare_imagenet32

    console = Console(soft_wrap=True)
    started = perf_counter()
    with _progress(console, {"list": (0.0, 0.1), "read": (0.1, 0.9)}) as on_progress:
        manifest = prepare_imagenet32(source, out, numbers=numbers, exclude=exclude, seed=seed, on_progress=on_progress)
    classes, sets = len(manifest.class_names), len(manifest.class_names) // numbers.set_size
    images, seconds = classes * numbers.per_class, perf_counter() - started
    console.print(
        f"{out}: {classes} classes of {numbers.train_per_class} + {numbers.test_per_class} images, {seconds:.0f} s "
        f"({images / seconds:.0f} images/s); {sets} sets of {numbers.set_size} classes, one for each seed from 0."
    )
    _tell_statistics(console, manifest.statistics)
    if manifest.unreadable:
        console.print(f"{len(manifest.unreadable)} could not be read; others stand in, the first: ", end="")
        console.print(manifest.unreadable[0], markup=False)


def run_prepare_distances(stream: str, out: str, to: str, least: int, splits: int, wordnet: str) -> None:
    console = Console(soft_wrap=True)
    nouns, training = read_wordnet(wordnet), _training_classes(to)
    opened = WildStream.open(stream)
    with _progress(console, {}) as on_progress:
        counts = class_counts(opened, on_progress=on_progress)
        plan = plan_splits(counts, nouns, training, least=least, most_splits=splits)
        missing = [split for split in plan.splits if not is_written(opened, split, beside(out, split.name))]
        for split in missing:
            write_split(opened, split, beside(out, split.name), on_progress=on_progress)
    for split in plan.splits:
        short = "" if split.images >= least or split.name == "unknown" else f" (fewer than --least {least})"
        console.print(
            f"{beside(out, split.name)}: {split.about}, {len(split.classes)} classes, {split.images} images{short}."
        )
    _tell_classes(console, "Training classes, left out", plan.training)
    _tell_classes(console, f"Unknown to WordNet, kept apart in {beside(out, 'unknown')}", plan.unknown)


def run_prepare_cifar100(folder: str) -> None:
    from gd_ray.data.cifar100 import load_cifar100

    console = Console(soft_wrap=True)
    data = load_cifar100(folder, download=True)
    console.print(f"{folder}: {len(data.train)} + {len(data.test)} images, content {data.content_hash()[:16]}.")
    _tell_statistics(console, pixel_statistics(data.train.images))


def _training_classes(to: str) -> list[str]:
    if to == "ilsvrc2012":
        return list(WORDNET_IDS)
    if to == "cifar100":
        return [synset for synsets in SYNSETS.values() for synset in synsets]
    return read_names(to)


@contextmanager
def _progress(console: Console, shares: Mapping[str, tuple[float, float]]) -> Iterator[OnProgress]:
    """A bar over all steps; a step without a share of its own has the whole bar."""
    with progress_bar(console) as progress:
        bar = progress.add_task("listing the source", total=1.0)

        def on_progress(step: str, done: int, total: int) -> None:
            start, share = shares.get(step, (0.0, 1.0))
            text = f"{_STEPS.get(step, step)}: {done} of {total} parts"
            progress.update(bar, completed=start + share * done / max(1, total), description=text)

        yield on_progress


def _tell_statistics(console: Console, statistics: Statistics) -> None:
    mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (statistics.mean, statistics.std))
    console.print(f"Mean ({mean}), standard deviation ({std}).")


def _tell_classes(console: Console, what: str, counts: Mapping[str, int]) -> None:
    if counts:
        names = ", ".join(list(counts)[:10]) + (" and more" if len(counts) > 10 else "")
        console.print(f"{what}: {sum(counts.values())} images of {len(counts)} classes: {names}.", markup=False)
