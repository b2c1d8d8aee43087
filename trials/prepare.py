"""`gd-ray prepare`: make streams and data sets, and print their size and statistics. Imports torch and Ray late."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated, Any

import tyro
from rich.console import Console

from gd_ray.data.pixels import Statistics
from gd_ray.errors import UserError
from gd_ray.naming import counted
from gd_ray.progress import OnProgress
from gd_ray.sources.base import PassedOver, TinyRequest, find_splits
from gd_ray.storage import sibling
from gd_ray.wild.shuffle import prepare_stream
from gd_ray.wild.splits import class_counts, is_written, plan_splits, write_split
from gd_ray.wild.stream import WildStream
from gd_ray.wordnet.cifar100_synsets import SYNSETS
from gd_ray.wordnet.exclusions import read_exclusions, read_names
from gd_ray.wordnet.hierarchy import WORDNET, read_wordnet
from gd_ray.wordnet.ilsvrc2012 import WORDNET_IDS
from trials.console import progress_bar

if TYPE_CHECKING:
    from gd_ray.data.prepared import Description

_STEPS = {
    "list": ("listing the source", 0.0, 0.1),
    "read": ("reading the source", 0.1, 0.8),
    "write": ("writing shards", 0.9, 0.1),
}
"""Text of each step, where it starts on the progress bar, and its length: reading decodes, the others do not."""
_REASONS = 8
_CONSOLE = Console(soft_wrap=True, markup=False)


@dataclass(frozen=True)
class Paths:
    """Where images come from and go to."""

    source: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
    """Folder, file or pattern of the images."""
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
    """Folder of the new stream or data set."""
    exclude: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """A class to exclude, by its name or WordNet id; a file with one on each line; ilsvrc2012 for its 1000 classes;
    cifar100 for all that match its classes by name or WordNet (needs WordNet); may be repeated."""
    wordnet: str = WORDNET
    """Folder with WordNet 3.0's data.noun (Debian's package wordnet-base)."""
    seed: int = 0
    """Seed of the shuffle, or of the draw of images."""

    @property
    def options(self) -> dict[str, Any]:
        return {"exclude": read_exclusions(self.exclude, self.wordnet), "seed": self.seed}


_Paths = tyro.conf.OmitArgPrefixes[Paths]


def stream(
    paths: _Paths, side: int = 32, images: int | None = None, words: str | None = None, indexes: str | None = None
) -> None:
    """Turn any source of images into a wild stream: one size, shuffled once, in Parquet shards with a manifest.

    SOURCE is a folder of images (a class per folder, or flat), Hugging Face-style Parquet, tars (WebDataset, one per
    WordNet id, or the official tar of tars), downsampled-ImageNet batches, a tiny_images.bin, or glyphs:N for N drawn
    characters. OUT is a folder or an address such as s3://bucket/stream. OUT/manifest.json counts corrupt images and
    files that are passed over. The stream has the path of every image: 'gd-ray sampled' lists those that a trial
    sampled. The paper's streams, and a small one:

        gd-ray prepare stream /data/fall11_whole.tar streams/imagenet2011 --exclude ilsvrc2012
        gd-ray prepare stream /data/tiny_images.bin streams/tinyimages --indexes /data/cifar_indexes --images 20000000
        gd-ray prepare stream /data/pictures streams/wild --exclude cifar100 --exclude classes.txt

    Args:
        paths: Where images come from and go to.
        side: Side of the images in pixels; it must be that of the training data.
        images: Size of a uniform sample of a tiny_images.bin; only the sample is read.
        words: tiny_metadata.bin or tiny_index.mat of a tiny_images.bin, unless it is in the same folder.
        indexes: CIFAR-100's index file (cifar_indexes) for a tiny_images.bin: excludes its images, and all images of
            their words.
    """
    tiny, options, started = TinyRequest(images, words, indexes), paths.options, perf_counter()
    with _progress() as on_progress:
        prepared = prepare_stream(paths.source, paths.out, side=side, tiny=tiny, on_progress=on_progress, **options)
    manifest, excluded = prepared.stream.manifest, prepared.stream.manifest.excluded
    size = sum(shard.bytes for shard in manifest.shards) / 1e6
    contents = f"{manifest.images} images of {side}x{side} in {counted(len(manifest.shards), 'shard')}, {size:.0f} MB"
    _print_made(paths.out, contents, manifest.images, started, prepared.stream.digest)
    if excluded:
        number = f"{sum(excluded.values())} images of {counted(len(excluded), 'class')}"
        _CONSOLE.print(f"Excluded {number}; manifest.json lists them.")
    unreadable = f"{manifest.unreadable} could not be read" if manifest.unreadable else ""
    _print_rest(manifest.statistics, unreadable, manifest.unreadable_examples, manifest.passed_over, "manifest.json")
    for warning in prepared.warnings:
        _CONSOLE.print(f"Warning: {warning}")


def dataset(
    paths: _Paths,
    test: str | None = None,
    train_per_class: int | None = None,
    test_per_class: int | None = None,
    set_size: int | None = None,
    side: int = 32,
) -> None:
    """Make a training data set from any source whose images have classes, in files that trials map into memory.

    SOURCE is one that 'gd-ray prepare stream' reads. Test images come from --test, or from SOURCE/test or SOURCE/val
    beside SOURCE/train (also test*.parquet beside train*.parquet, val_data* beside train_data_batch*), or are held
    out of SOURCE: --test-per-class of each class, or one in six. Give the folder a name to train on it:

        gd-ray prepare dataset /data/flowers data/flowers --side 64
        gd-ray run table1 --set dataset=flowers --data flowers=data/flowers

    Args:
        paths: Where images come from and go to.
        test: Source of the test images.
        train_per_class: Training images of each class; all without it.
        test_per_class: Test images of each class.
        set_size: Number of classes of one trial, if each seed is to learn a disjoint set of classes.
        side: Side of the images in pixels.
    """
    from gd_ray.data.drawing import HELD_OUT, DrawSize, prepare_dataset

    size, source = DrawSize(train_per_class, test_per_class, set_size), paths.source
    if test is None and (splits := find_splits(source)):
        source, test = splits
        _CONSOLE.print(f"Training images from {source}, test images from {test}.")
    make = partial(prepare_dataset, source, paths.out, test=test, size=size, side=side, **paths.options)
    _make_dataset(paths.out, make)
    if test is None and test_per_class is None:
        share = f"One in {HELD_OUT} images of each class"
        _CONSOLE.print(f"{share} is held out for the test; change it with --test-per-class.")


def imagenet32(paths: _Paths, train_per_class: int = 500, test_per_class: int = 100, set_size: int = 100) -> None:
    """Draw ImageNet's training and test data at 32x32: the paper's preset of 'gd-ray prepare dataset'.

    SOURCE is ILSVRC 2012's training set (a folder per WordNet id, or ILSVRC2012_img_train.tar as it is), the 32x32
    batches of downsampled ImageNet, or Hugging Face-style Parquet. Of each class 500 + 100 images are drawn. The
    classes are cut into disjoint sets, one for each seed: ten sets of 100 for the paper's 1000 classes, of which seed 0
    is for validation; OUT/classes-of-seed-K.txt lists them. A smaller source needs smaller numbers, such as
    Tiny-ImageNet with its 200 classes:

        gd-ray prepare imagenet32 /data/ILSVRC2012_img_train.tar data/imagenet32
        gd-ray prepare imagenet32 /data/tiny-imagenet/train data/imagenet32 --train-per-class 250 --test-per-class 50

    Args:
        paths: Where images come from and go to.
        train_per_class: Training images of each class.
        test_per_class: Test images of each class, drawn from the same source.
        set_size: Number of classes of one trial.
    """
    from gd_ray.data.drawing import DrawSize
    from gd_ray.data.imagenet32 import prepare_imagenet32

    size = DrawSize(train_per_class, test_per_class, set_size)
    _make_dataset(paths.out, partial(prepare_imagenet32, paths.source, paths.out, size=size, **paths.options))


def cifar100(
    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")], source: str | None = None
) -> None:
    """Download CIFAR-100 with torchvision, or take the files that you have, and write files that trials map.

    Args:
        folder: Folder of the data set; give it to other commands with --data cifar100=FOLDER.
        source: Folder with Hugging Face-style Parquet or with torchvision's files; FOLDER itself without it.
    """
    from gd_ray.data.cifar100 import prepare_cifar100

    _make_dataset(folder, lambda **_: prepare_cifar100(folder, source))


def distances(
    stream: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STREAM")],
    out: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")],
    to: str = "ilsvrc2012",
    least: int = 1_000_000,
    splits: int = 5,
    wordnet: str = WORDNET,
) -> None:
    """Cut a stream by WordNet distance into OUT-distance-1, OUT-distance-2 and so on.

    STREAM is a prepared stream whose classes are WordNet ids. The distance of a class is the shortest path in the noun
    hierarchy to the nearest training class. Near distances come first; distances are joined until each split has enough
    images, and the farthest ones join the last split. Classes that are not in WordNet become OUT-unknown. For the
    'distance' experiment:

        gd-ray prepare distances streams/imagenet2011 streams/imagenet2011

    Args:
        stream: The stream to cut.
        out: Prefix of the names of the new streams.
        to: The training classes: ilsvrc2012, cifar100, or a file with a WordNet id on each line.
        least: Minimum number of images of a split.
        splits: Maximum number of splits.
        wordnet: Folder with WordNet 3.0's data.noun (Debian's package wordnet-base).
    """
    nouns = read_wordnet(wordnet)
    lists = {"ilsvrc2012": list(WORDNET_IDS), "cifar100": [id for ids in SYNSETS.values() for id in ids]}
    training = lists[to] if to in lists else read_names(to)
    opened = WildStream.open(stream)
    plan = plan_splits(class_counts(opened), nouns, training, least=least, most_splits=splits)
    with _progress() as on_progress:
        for split in [split for split in plan.splits if not is_written(opened, split, sibling(out, split.name))]:
            write_split(opened, split, sibling(out, split.name), on_progress=on_progress)
    for split in plan.splits:
        short = "" if split.images >= least or split.name == "unknown" else f" (fewer than --least {least})"
        size = f"{counted(len(split.classes), 'class')}, {split.images} images{short}"
        _CONSOLE.print(f"{sibling(out, split.name)}: {split.about}, {size}.")
    _print_classes("Training classes, in no split", plan.training)
    _print_classes(f"Not in WordNet, in {sibling(out, 'unknown')}", plan.unknown)


COMMANDS: dict[str, Callable[..., None]] = {
    command.__name__: command for command in (stream, dataset, imagenet32, cifar100, distances)
}
"""Sub-commands of `gd-ray prepare`."""


def main(arguments: list[str]) -> None:
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        fix = f"for a stream, write 'gd-ray prepare stream {' '.join(arguments)}'."
        raise UserError(f"prepare needs one of {', '.join(COMMANDS)} before {arguments[0]!r}; {fix}")
    about = "Make wild streams and training data sets from images."
    tyro.extras.subcommand_cli_from_dict(
        COMMANDS, prog="gd-ray prepare", description=about, args=arguments or ["--help"]
    )


@contextmanager
def _progress() -> Iterator[OnProgress]:
    """Show a bar over all steps; an unknown step has the whole bar."""
    with progress_bar(_CONSOLE) as progress:
        bar = progress.add_task("listing the source", total=1.0)

        def on_progress(step: str, done: int, total: int) -> None:
            text, start, share = _STEPS.get(step, (step, 0.0, 1.0))
            completed = start + share * done / max(1, total)
            progress.update(bar, completed=completed, description=f"{text}: {done} of {total} parts")

        yield on_progress


def _make_dataset(out: str, make: "Callable[..., Description]") -> None:
    """Make a data set under a progress bar, and print what it contains."""
    started = perf_counter()
    with _progress() as on_progress:
        made = make(on_progress=on_progress)
    classes, images = len(made.class_names), made.images
    contents = f"{classes} classes, {images['train']} + {images['test']} images of {made.side}x{made.side}"
    _print_made(out, contents, sum(images.values()), started, made.digest)
    if made.set_size is not None:
        _CONSOLE.print(f"{classes // made.set_size} sets of {made.set_size} classes, one for each seed from 0.")
    unreadable = f"{len(made.unreadable)} could not be read and were replaced or dropped" if made.unreadable else ""
    _print_rest(made.statistics, unreadable, made.unreadable, made.passed_over, "dataset.json")


def _print_made(out: str, contents: str, images: int, started: float, digest: str) -> None:
    seconds = perf_counter() - started
    _CONSOLE.print(f"{out}: {contents}, {seconds:.0f} s ({images / seconds:.0f} images/s); digest {digest}.")


def _print_rest(
    statistics: Statistics, unreadable: str, examples: Sequence[str], passed_over: PassedOver, file: str
) -> None:
    mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (statistics.mean, statistics.std))
    _CONSOLE.print(f"Mean ({mean}), standard deviation ({std}).")
    if unreadable:
        _CONSOLE.print(f"{unreadable}; {file} lists them, the first: {examples[0]}")
    for reason, number in sorted(passed_over.counts.items(), key=lambda item: -item[1])[:_REASONS]:
        paths = passed_over.examples[reason]
        _CONSOLE.print(f"Passed over {number}: {reason} ({', '.join(paths)}{', …' if number > len(paths) else ''}).")
    if (left := len(passed_over.counts) - _REASONS) > 0:
        _CONSOLE.print(f"Passed over more for {left} other reasons; {file} lists them.")


def _print_classes(what: str, counts: Mapping[str, int]) -> None:
    if counts:
        names = ", ".join(list(counts)[:10]) + (" and more" if len(counts) > 10 else "")
        _CONSOLE.print(f"{what}: {sum(counts.values())} images of {counted(len(counts), 'class')}: {names}.")
