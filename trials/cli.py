"""The command line, `gd-ray`. Torch and Ray are imported only by the commands that need them."""

import os
import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from gd_ray.errors import UserError, unknown_name
from gd_ray.wild.hierarchy import WORDNET
from trials.options import Cluster

if TYPE_CHECKING:
    from analysis import Results
    from gd_ray.spec import TrialSpec


_SourceArgument = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="SOURCE")]
_OutArgument = Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="OUT")]


def demo() -> None:
    """Compare five methods on the embedded glyphs data: a few minutes on two cores, nothing to download.

    Drawn characters are learned task by task. Oracle keeps all data, Baseline only a coreset; E2E and GD distil the
    previous model; GD+ext also samples unlabeled characters from a stream, scored by Ray Data. The table shows the
    average incremental accuracy (ACC, higher is better) and the average forgetting (FGT, lower is better). It is
    'gd-ray run demo --scorers 1 --results results/demo --storage storage/demo', and then 'gd-ray report results/demo'.
    """
    left = _run(Selection("demo", results="results/demo"), Cluster(storage="storage/demo", scorers=1))
    report("results/demo")
    sys.exit(1 if left else 0)


def prepare(
    source: _SourceArgument,
    out: _OutArgument,
    exclude: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    images: int | None = None,
    words: str | None = None,
    indexes: str | None = None,
    wordnet: str = WORDNET,
    seed: int = 0,
) -> None:
    """Turn any source of images into a wild stream: 32x32, shuffled once, in Parquet shards with a manifest.

    SOURCE is a folder of images (a class per folder, or flat), Hugging Face-style Parquet, tars (WebDataset, one per
    WordNet id, or the official tar of tars), downsampled-ImageNet batches, a tiny_images.bin, or glyphs:N for N drawn
    characters. OUT is a folder or an address such as s3://bucket/stream. Corrupt images are counted and listed in
    OUT/manifest.json. The paper's streams, and a small one:

        gd-ray prepare /data/fall11_whole.tar /streams/imagenet2011 --exclude ilsvrc2012
        gd-ray prepare /data/tiny_images.bin /streams/tinyimages --indexes /data/cifar_indexes --images 20000000
        gd-ray prepare /data/pictures /streams/wild --exclude cifar100 --exclude classes.txt --exclude "aquarium fish"

    Other things to prepare: 'gd-ray prepare imagenet32 --help' (training data from ILSVRC or the like), 'gd-ray prepare
    distances --help' (a stream cut by WordNet distance), 'gd-ray prepare cifar100 --help' (download).

    Args:
        source: Where the images are.
        out: Where the stream goes.
        exclude: A class to leave out, by its name or WordNet id; a file with one on each line; ilsvrc2012 for its 1000
            classes; cifar100 for all that match its classes by name or WordNet (needs WordNet); may be repeated.
        images: Of a tiny_images.bin, a uniform sample of so many; only these are read.
        words: Of a tiny_images.bin, its tiny_metadata.bin or tiny_index.mat; looked for beside it without this.
        indexes: Of a tiny_images.bin, CIFAR-100's index file (cifar_indexes): its images stay out, and all images of
            their words.
        wordnet: Folder with WordNet 3.0's data.noun (Debian's package wordnet-base).
        seed: Of the shuffle and the sample.
    """
    from gd_ray.wild.exclusions import read_exclusions
    from gd_ray.wild.tiny_images import TinyRequest
    from trials.prepare import run_prepare

    run_prepare(source, out, read_exclusions(exclude, wordnet), TinyRequest(images, words, indexes), seed)


def prepare_imagenet32(
    source: _SourceArgument,
    out: _OutArgument,
    train_per_class: int = 500,
    test_per_class: int = 100,
    set_size: int = 100,
    exclude: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    wordnet: str = WORDNET,
    seed: int = 0,
) -> None:
    """Draw ImageNet's training and test data, 32x32, as 'gd-ray prepare imagenet32 SOURCE OUT'.

    SOURCE is ILSVRC 2012's training set (a folder per WordNet id, or ILSVRC2012_img_train.tar as it is), the 32x32
    batches of downsampled ImageNet, or Hugging Face-style Parquet. Of each class 500 + 100 images are drawn. The
    classes are cut into disjoint sets, one for each seed: ten sets of 100 for the paper's 1000 classes, of which seed 0
    is for validation; OUT/classes-of-seed-K.txt lists them. A source with less works by stating the numbers, such as
    Tiny-ImageNet with its 200 classes:

        gd-ray prepare imagenet32 /data/ILSVRC2012_img_train.tar data/imagenet32
        gd-ray prepare imagenet32 /data/tiny-imagenet data/imagenet32 --train-per-class 250 --test-per-class 50

    Args:
        source: Where the images are.
        out: Where the prepared set goes.
        train_per_class: Training images of each class.
        test_per_class: Test images of each class, drawn from the same source.
        set_size: Classes of one trial.
        exclude: A class to leave out, as 'gd-ray prepare' takes it; may be repeated.
        wordnet: Folder with WordNet 3.0's data.noun, for --exclude cifar100.
        seed: Of the draw of images.
    """
    from gd_ray.data.imagenet32 import Numbers
    from gd_ray.wild.exclusions import read_exclusions
    from trials.prepare import run_prepare_imagenet32

    numbers = Numbers(train_per_class, test_per_class, set_size)
    run_prepare_imagenet32(source, out, numbers, read_exclusions(exclude, wordnet), seed)


def prepare_distances(
    stream: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="STREAM")],
    out: _OutArgument,
    to: str = "ilsvrc2012",
    least: int = 1_000_000,
    splits: int = 5,
    wordnet: str = WORDNET,
) -> None:
    """Cut a stream by WordNet distance into OUT-distance-1 and on, as 'gd-ray prepare distances STREAM OUT'.

    STREAM is a prepared stream whose classes are WordNet ids. The distance of a class is the shortest path in the noun
    hierarchy to the nearest training class. Near distances come first; distances are joined until each split has enough
    images, and the farthest ones join the last split. Classes that WordNet does not know go to OUT-unknown. What the
    'distance' experiment uses:

        gd-ray prepare distances streams/imagenet2011 streams/imagenet2011

    Args:
        stream: The stream to cut.
        out: What the names of the new streams begin with.
        to: The training classes: ilsvrc2012, cifar100, or a file with a WordNet id on each line.
        least: Images that each split has at least.
        splits: How many splits at most.
        wordnet: Folder with WordNet 3.0's data.noun (Debian's package wordnet-base).
    """
    from trials.prepare import run_prepare_distances

    run_prepare_distances(stream, out, to, least, splits, wordnet)


def prepare_cifar100(folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="FOLDER")]) -> None:
    """Download CIFAR-100 with torchvision, as 'gd-ray prepare cifar100 FOLDER', or check what is there.

    Args:
        folder: Where it goes; name it to other commands with --data cifar100=FOLDER.
    """
    from trials.prepare import run_prepare_cifar100

    run_prepare_cifar100(folder)


_PREPARED: dict[str, Callable[..., None]] = {
    "imagenet32": prepare_imagenet32,
    "distances": prepare_distances,
    "cifar100": prepare_cifar100,
}
"""What `gd-ray prepare` makes besides streams, by the word after it."""


@dataclass(frozen=True)
class Selection:
    """Which trials."""

    name: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="NAME")]
    """An experiment from 'gd-ray list', or a YAML file with 'key: [values]' for the fields that it lists too."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Change a field of every trial, as key=value or key=value,value for a grid; may be repeated."""
    where: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Keep only trials whose field has one of the values, as key=value,value; may be repeated."""
    results: str = "results"
    """Folder or address of the Parquet results."""

    def specs(self) -> "tuple[str, list[TrialSpec]]":
        from trials.grid import read_grid, selected, unique, with_settings
        from trials.sources import DATASETS

        name, specs = read_grid(self.name)
        found = unique(selected(with_settings(specs, self.set), self.where))
        for dataset in {spec.dataset: None for spec in found}:
            if dataset not in DATASETS:
                raise unknown_name("dataset", dataset, DATASETS)
        return name, found


def run(selection: tyro.conf.OmitArgPrefixes[Selection], cluster: tyro.conf.OmitArgPrefixes[Cluster]) -> None:
    """Run an experiment on Ray: every trial that is not finished, as many at once as fit.

    Start it again with the same command after any interruption: finished trials are skipped, others go on after their
    last stage. Results are Parquet files under --results, readable while the experiment runs. Examples:

        gd-ray run demo
        gd-ray run table1 --where dataset=cifar100 --address auto --gpus 0.25 --stream tinyimages=/streams/tiny
        gd-ray run table1 --where method=gd+ext --where task_size=10 --set ood_ratio=0.5,0.6
    """
    left = _run(selection, cluster)
    print(f"'gd-ray report {selection.results} --open' shows tables, figures and statistics.")
    sys.exit(1 if left else 0)


def _run(selection: Selection, cluster: Cluster) -> int:
    """Runs and shows the table of what is finished; gives back how many trials are not."""
    from rich.console import Console

    from analysis.summary import accuracy_table
    from trials.results import finished
    from trials.runner import run_experiment

    name, specs = selection.specs()
    console = Console()
    command = shlex.join(["gd-ray", *sys.argv[1:]])
    failures = run_experiment(name, specs, selection.results, cluster, console, command)
    for failure in failures:
        text = f"Failed: {failure.spec.rules.title}, seed {failure.spec.seed}: {failure.error} (log: {failure.log})"
        console.print(text, markup=False, soft_wrap=True)
    left = {spec.trial_id for spec in specs} - set(finished(selection.results))
    if len(left) < len(specs):
        console.print(accuracy_table(selection.results, name))
    if left:
        console.print(f"{len(left)} trials are not finished; the same command goes on with them.")
    return len(left)


def plan(
    selection: tyro.conf.OmitArgPrefixes[Selection],
    at_once: int = os.cpu_count() or 1,
    images_per_second: float | None = None,
) -> None:
    """Tell what an experiment costs, and start nothing.

    Args:
        selection: Which trials.
        at_once: Trials that will run at the same time.
        images_per_second: Forward passes of one trial's network per second; measured on this machine without it.
    """
    from trials.plan import print_plan

    name, specs = selection.specs()
    print_plan(name, specs, selection.results, at_once, images_per_second)


def status(results: tyro.conf.Positional[str] = "results") -> None:
    """Show how the experiments in a results folder stand: done, running, failed, waiting, and the time left.

    Args:
        results: The folder that 'gd-ray run --results' writes to.
    """
    from rich.console import Console

    from trials.ledger import read_states
    from trials.summary import status_table
    from trials.view import running_table

    console = Console()
    states = read_states(results)
    console.print(status_table(states))
    if any(state.state == "running" for state in states):
        console.print("", running_table(states))
    for state in states:
        if state.state == "failed":
            console.print(f"failed: {state.name}: {state.detail}", markup=False, soft_wrap=True)


def report(
    results: tyro.conf.Positional[str] = "results",
    out: str | None = None,
    open: bool = False,
    watch: bool = False,
    every: int = 10,
    stream: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Write a report of a results folder: one HTML file with tables against the paper, verdicts, figures and trials.

    It reads Parquet only and also works while the experiment runs. Figures (SVG and PNG) and tables (Markdown, LaTeX
    and CSV) are written beside it. Examples:

        gd-ray report results --open
        gd-ray report results --watch
        gd-ray report s3://bucket/results --out report.html --stream tinyimages=/streams/tiny

    Args:
        results: The folder or address that 'gd-ray run --results' writes to.
        out: The HTML file; report.html in the results folder without it (here, for an address).
        open: Show it in the browser.
        watch: Write it anew until every trial is done or has failed; the page reloads itself.
        every: Seconds between two reports of --watch.
        stream: Where a prepared stream lies, as name=folder, to show images from it; may be repeated.
    """
    import webbrowser

    from rich.console import Console

    import analysis.report as reporting
    from trials.options import named
    from trials.view import progress_bar

    if every < 1:
        raise UserError(f"--every {every} must be at least 1 second.")
    console, streams = Console(), named(stream, "--stream")
    shown = False

    def write(refresh: int | None) -> "Results":
        nonlocal shown
        with progress_bar(console) as progress:
            bar = progress.add_task("reading results", total=1.0)

            def on_step(share: float, text: str) -> None:
                progress.update(bar, completed=share, description=text)

            path, found = reporting.write_report(results, out, streams=streams, refresh=refresh, on_step=on_step)
        for note in found.notes:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        console.print(f"Report of {len(found.trials)} trials: {path.absolute()}", highlight=False, soft_wrap=True)
        if open and not shown:
            shown = webbrowser.open(path.absolute().as_uri()) or True
        return found

    if watch:
        reporting.watch(write, every)
    else:
        write(None)


def list_methods() -> None:
    """List every experiment, every method and ablation of the paper, and the fields of a trial."""
    from dataclasses import fields

    from rich.console import Console
    from rich.table import Table

    from gd_ray.methods import METHODS, TABLES
    from gd_ray.spec import TrialSpec
    from trials.experiments import EXPERIMENTS

    experiments = Table(box=None)
    for column in ("experiment", "trials", "what it shows"):
        experiments.add_column(column, justify="right" if column == "trials" else "left")
    for experiment in EXPERIMENTS.values():
        experiments.add_row(experiment.name, str(len(experiment.specs())), experiment.about)
    Console(width=160).print(experiments, "")

    table = Table(box=None)
    for column in (
        "method",
        "title",
        "previous model",
        "teacher",
        "Q",
        "balancing",
        "fine-tuned",
        "external",
        "tables",
    ):
        table.add_column(column)
    for method in METHODS.values():
        external = f"{method.previous_sampling} + {method.ood_sampling}" if method.external else "-"
        places = ", ".join(str(number) for number, rows in TABLES.items() if method.name in rows)
        table.add_row(
            method.name,
            method.title,
            method.previous,
            method.teacher,
            "yes" if method.ensemble else "-",
            method.balancing,
            method.fine_tuned,
            external,
            places,
        )
    Console(width=160).print(table, "")

    values = ", ".join(f"{f.name}={'none' if f.default is None else f.default}" for f in fields(TrialSpec))
    text = f"Fields of a trial, for --set, --where and YAML, with the paper's values: {values}."
    Console(width=120, highlight=False).print(text, markup=False)


_AFTER_A_STOP = {
    "run": "; the same command goes on where it was",
    "demo": "; the same command goes on where it was",
    "prepare": "; what was not finished is removed, and the same command makes it anew",
}
"""What a command that was interrupted has left."""


def main() -> None:
    """Class-incremental learning with unlabeled data in the wild (ICCV 2019), as seeded trials."""
    arguments = sys.argv[1:]
    try:
        if arguments[:1] == ["prepare"] and arguments[1:2] and arguments[1] in _PREPARED:
            tyro.cli(_PREPARED[arguments[1]], prog=f"gd-ray prepare {arguments[1]}", args=arguments[2:])
            return
        tyro.extras.subcommand_cli_from_dict(
            {
                "demo": demo,
                "list": list_methods,
                "plan": plan,
                "run": run,
                "prepare": prepare,
                "status": status,
                "report": report,
            },
            prog="gd-ray",
            description="Reproduce and extend 'Overcoming Catastrophic Forgetting with Unlabeled Data in the Wild'.",
        )
    except UserError as error:
        print(f"gd-ray: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print(f"gd-ray: stopped{_AFTER_A_STOP.get(arguments[0] if arguments else '', '')}.", file=sys.stderr)
        sys.exit(130)
