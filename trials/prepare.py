"""`gd-ray prepare`: make streams and data sets, and print their size and statistics. Imports torch and Ray late."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sized
from contextlib import contextmanager
from functools import cache, partial
from time import perf_counter
from typing import TYPE_CHECKING, Annotated

import tyro

from gd_ray.errors import UserError
from gd_ray.wordnet.hierarchy import WORDNET

if TYPE_CHECKING:
    from rich.console import Console

    from gd_ray.data.pixels import Statistics
    from gd_ray.data.prepared import Description
    from gd_ray.progress import OnProgress
    from gd_ray.sources.base import PassedOver

_STEPS = {
    "count": ("counting classes", 0.0, 1.0),
    "list": ("listing the source", 0.0, 0.1),
    "read": ("reading the source", 0.1, 0.8),
    "write": ("writing shards", 0.9, 0.1),
}
"""Text of each step, where it starts on the progress bar, and its length: reading decodes, the others do not."""
_Source = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
_Out = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]
_REASONS = 8
_Names = tyro.conf.UseAppendAction[tuple[str, ...]]


def stream(
    source: _Source,
    out: _Out,
    side: int = 32,
    exclude: _Names = (),
    images: int | None = None,
    words: str | None = None,
    indexes: str | None = None,
    wordnet: str = WORDNET,
    seed: int = 0,
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
        source: Folder, file or pattern of the images.
        out: Folder or address of the new stream.
        side: Side of the images in pixels; it must be that of the training data.
        exclude: A class to exclude, by its name or WordNet id; a file with one on each line; ilsvrc2012 for its 1000
            classes; cifar100 for all that match its classes by name or WordNet (needs WordNet); may be repeated.
        images: Size of a uniform sample of a tiny_images.bin; only the sample is read.
        words: tiny_metadata.bin or tiny_index.mat of a tiny_images.bin, unless it is in the same folder.
        indexes: CIFAR-100's index file (cifar_indexes) for a tiny_images.bin: excludes its images, and all images of
            their words.
        wordnet: Folder with WordNet 3.0's data.noun (Debian's package wordnet-base).
        seed: Seed of the shuffle and the sample.
    """
    from gd_ray.sources.base import TinyRequest
    from gd_ray.wild.shuffle import prepare_stream
    from gd_ray.wordnet.exclusions import read_exclusions

    excluded, tiny = read_exclusions(exclude, wordnet), TinyRequest(images, words, indexes)
    started = perf_counter()
    with _progress() as on_progress:
        prepared = prepare_stream(
            source, out, side=side, exclude=excluded, tiny=tiny, seed=seed, on_progress=on_progress
        )
    manifest, seconds = prepared.stream.manifest, perf_counter() - started
    size = sum(shard.bytes for shard in manifest.shards) / 1e6
    _print(
        f"{out}: {manifest.images} images of {side}x{side} in {_count(manifest.shards, 'shard')}, {size:.0f} MB, "
        f"{seconds:.0f} s ({manifest.images / seconds:.0f} images/s); digest {prepared.stream.digest}."
    )
    if manifest.excluded:
        left_out = sum(manifest.excluded.values())
        _print(f"Excluded {left_out} images of {_count(manifest.excluded, 'class')}; manifest.json lists them.")
    _print_statistics(manifest.statistics)
    if manifest.unreadable:
        first = manifest.unreadable_examples[0]
        _print(f"{manifest.unreadable} could not be read; manifest.json lists them, the first: {first}")
    _print_passed_over(manifest.passed_over)
    for warning in prepared.warnings:
        _print(f"Warning: {warning}")


def dataset(
    source: _Source,
    out: _Out,
    test: str | None = None,
    train_per_class: int | None = None,
    test_per_class: int | None = None,
    set_size: int | None = None,
    side: int = 32,
    exclude: _Names = (),
    wordnet: str = WORDNET,
    seed: int = 0,
) -> None:
    """Make a training data set from any source whose images have classes, in files that trials map into memory.

    SOURCE is one that 'gd-ray prepare stream' reads. Test images come from --test, or from SOURCE/test or SOURCE/val
    beside SOURCE/train (also test*.parquet beside train*.parquet, val_data* beside train_data_batch*), or are held
    out of SOURCE: --test-per-class of each class, or one in six. Give the folder a name to train on it:

        gd-ray prepare dataset /data/flowers data/flowers --side 64
        gd-ray run table1 --set dataset=flowers --data flowers=data/flowers

    Args:
        source: Folder, file or pattern of the images.
        out: Folder of the new data set.
        test: Source of the test images.
        train_per_class: Training images of each class; all without it.
        test_per_class: Test images of each class.
        set_size: Number of classes of one trial, if each seed is to learn a disjoint set of classes.
        side: Side of the images in pixels.
        exclude: A class to exclude, as in 'gd-ray prepare stream'; may be repeated.
        wordnet: Folder with WordNet 3.0's data.noun, for --exclude cifar100.
        seed: Seed of the draw of images.
    """
    from gd_ray.data.drawing import HELD_OUT, DrawSize, prepare_dataset
    from gd_ray.sources.base import find_splits
    from gd_ray.wordnet.exclusions import read_exclusions

    size, excluded = DrawSize(train_per_class, test_per_class, set_size), read_exclusions(exclude, wordnet)
    if test is None and (splits := find_splits(source)):
        source, test = splits
        _print(f"Training images from {source}, test images from {test}.")
    _make_dataset(
        out, partial(prepare_dataset, source, out, test=test, size=size, side=side, exclude=excluded, seed=seed)
    )
    if test is None and test_per_class is None:
        held_out = f"One in {HELD_OUT} images of each class is held out for the test"
        _print(f"{held_out}; change it with --test-per-class.")


def imagenet32(
    source: _Source,
    out: _Out,
    train_per_class: int = 500,
    test_per_class: int = 100,
    set_size: int = 100,
    exclude: _Names = (),
    wordnet: str = WORDNET,
    seed: int = 0,
) -> None:
    """Draw ImageNet's training and test data at 32x32: the paper's preset of 'gd-ray prepare dataset'.

    SOURCE is ILSVRC 2012's training set (a folder per WordNet id, or ILSVRC2012_img_train.tar as it is), the 32x32
    batches of downsampled ImageNet, or Hugging Face-style Parquet. Of each class 500 + 100 images are drawn. The
    classes are cut into disjoint sets, one for each seed: ten sets of 100 for the paper's 1000 classes, of which seed 0
    is for validation; OUT/classes-of-seed-K.txt lists them. A smaller source needs smaller numbers, such as
    Tiny-ImageNet with its 200 classes:

        gd-ray prepare imagenet32 /data/ILSVRC2012_img_train.tar data/imagenet32
        gd-ray prepare imagenet32 /data/tiny-imagenet data/imagenet32 --train-per-class 250 --test-per-class 50

    Args:
        source: Folder, file or pattern of the images.
        out: Folder of the new data set.
        train_per_class: Training images of each class.
        test_per_class: Test images of each class, drawn from the same source.
        set_size: Number of classes of one trial.
        exclude: A class to exclude, as in 'gd-ray prepare stream'; may be repeated.
        wordnet: Folder with WordNet 3.0's data.noun, for --exclude cifar100.
        seed: Seed of the draw of images.
    """
    from gd_ray.data.drawing import DrawSize
    from gd_ray.data.imagenet32 import prepare_imagenet32
    from gd_ray.wordnet.exclusions import read_exclusions

    size, excluded = DrawSize(train_per_class, test_per_class, set_size), read_exclusions(exclude, wordnet)
    _make_dataset(out, partial(prepare_imagenet32, source, out, size=size, exclude=excluded, seed=seed))


def cifar100(
    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")], source: str | None = None
) -> None:
    """Download CIFAR-100 with torchvision, or take the files that you have, and write files that trials map.

    Args:
        folder: Folder of the data set; give it to other commands with --data cifar100=FOLDER.
        source: Folder with Hugging Face-style Parquet or with torchvision's files; FOLDER itself without it.
    """
    from gd_ray.data.cifar100 import prepare_cifar100

    started = perf_counter()
    _print_dataset(folder, prepare_cifar100(folder, source), started)


def distances(
    stream: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STREAM")],
    out: _Out,
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
    from gd_ray.storage import sibling
    from gd_ray.wild.splits import class_counts, is_written, plan_splits, write_split
    from gd_ray.wild.stream import WildStream
    from gd_ray.wordnet.hierarchy import read_wordnet

    nouns, training, opened = read_wordnet(wordnet), _training_classes(to), WildStream.open(stream)
    with _progress() as on_progress:
        counts = class_counts(opened, on_progress=on_progress)
        plan = plan_splits(counts, nouns, training, least=least, most_splits=splits)
        missing = [split for split in plan.splits if not is_written(opened, split, sibling(out, split.name))]
        for split in missing:
            write_split(opened, split, sibling(out, split.name), on_progress=on_progress)
    for split in plan.splits:
        short = "" if split.images >= least or split.name == "unknown" else f" (fewer than --least {least})"
        size = f"{_count(split.classes, 'class')}, {split.images} images{short}"
        _print(f"{sibling(out, split.name)}: {split.about}, {size}.")
    _print_classes("Training classes, in no split", plan.training)
    _print_classes(f"Not in WordNet, in {sibling(out, 'unknown')}", plan.unknown)


_ALL: tuple[Callable[..., None], ...] = (stream, dataset, imagenet32, cifar100, distances)
COMMANDS = {command.__name__: command for command in _ALL}
"""Sub-commands of `gd-ray prepare`."""


def main(arguments: list[str]) -> None:
    """Run `gd-ray prepare` with these arguments."""
    if arguments and not arguments[0].startswith("-") and arguments[0] not in COMMANDS:
        fix = f"for a stream, write 'gd-ray prepare stream {' '.join(arguments)}'."
        raise UserError(f"prepare needs one of {', '.join(COMMANDS)} before {arguments[0]!r}; {fix}")
    about = "Make wild streams and training data sets from images."
    tyro.extras.subcommand_cli_from_dict(
        COMMANDS, prog="gd-ray prepare", description=about, args=arguments or ["--help"]
    )


def prepare() -> None:
    """Make wild streams and training data sets: stream, dataset, imagenet32, cifar100, distances."""
    main(sys.argv[2:])


@cache
def _console() -> "Console":
    from rich.console import Console

    return Console(soft_wrap=True)


def _print(text: str) -> None:
    _console().print(text, markup=False)


def _training_classes(to: str) -> list[str]:
    from gd_ray.wordnet.cifar100_synsets import SYNSETS
    from gd_ray.wordnet.exclusions import read_names
    from gd_ray.wordnet.ilsvrc2012 import WORDNET_IDS

    lists = {"ilsvrc2012": list(WORDNET_IDS), "cifar100": [id for ids in SYNSETS.values() for id in ids]}
    return lists[to] if to in lists else read_names(to)


@contextmanager
def _progress() -> "Iterator[OnProgress]":
    """Show a bar over all steps; an unknown step has the whole bar."""
    from trials.console import progress_bar

    with progress_bar(_console()) as progress:
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
        description = make(on_progress=on_progress)
    _print_dataset(out, description, started)


def _print_dataset(out: str, description: "Description", started: float) -> None:
    seconds = perf_counter() - started
    classes, side, size = len(description.class_names), description.side, description.set_size
    train, test = description.images["train"], description.images["test"]
    _print(
        f"{out}: {classes} classes, {train} + {test} images of {side}x{side}, {seconds:.0f} s "
        f"({(train + test) / seconds:.0f} images/s); digest {description.digest}."
    )
    if size is not None:
        _print(f"{classes // size} sets of {size} classes, one for each seed from 0.")
    _print_statistics(description.statistics)
    if description.unreadable:
        number = f"{len(description.unreadable)} could not be read and were replaced or dropped"
        _print(f"{number}; dataset.json lists them, the first: {description.unreadable[0]}")
    _print_passed_over(description.passed_over)


def _print_passed_over(passed_over: "PassedOver") -> None:
    for reason, number in sorted(passed_over.counts.items(), key=lambda item: -item[1])[:_REASONS]:
        examples = passed_over.examples[reason]
        more = ", …" if number > len(examples) else ""
        _print(f"Passed over {number}: {reason} ({', '.join(examples)}{more}).")
    if (left := len(passed_over.counts) - _REASONS) > 0:
        _print(f"Passed over more for {left} other reasons; the manifest lists them.")


def _count(things: Sized, noun: str) -> str:
    plural = f"{noun}es" if noun.endswith("s") else f"{noun}s"
    return f"{len(things)} {noun if len(things) == 1 else plural}"


def _print_statistics(statistics: "Statistics") -> None:
    mean, std = (", ".join(f"{value:.4f}" for value in values) for values in (statistics.mean, statistics.std))
    _print(f"Mean ({mean}), standard deviation ({std}).")


def _print_classes(what: str, counts: Mapping[str, int]) -> None:
    if counts:
        names = ", ".join(list(counts)[:10]) + (" and more" if len(counts) > 10 else "")
        _print(f"{what}: {sum(counts.values())} images of {_count(counts, 'class')}: {names}.")
