"""The command line, `gd-ray`. Torch and Ray are imported only by the commands that need them."""

import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import tyro

from gd_ray.errors import UserError
from trials.options import Cluster

if TYPE_CHECKING:
    from analysis import Results
    from gd_ray.spec import TrialSpec


def demo() -> None:
    """Compare five methods on the embedded glyphs data: a few minutes on two cores, nothing to download.

    Drawn characters are learned task by task. Oracle keeps all data, Baseline only a coreset; E2E and GD distil the
    previous model; GD+ext also samples unlabeled characters from a stream, scored by Ray Data. The table shows the
    average incremental accuracy (ACC, higher is better) and the average forgetting (FGT, lower is better). It is
    'gd-ray run demo'; its Parquet results are in results/demo, with figures and a report.
    """
    left = _run(Selection("demo", results="results/demo"), Cluster(storage="storage/demo"))
    report("results/demo")
    sys.exit(1 if left else 0)


def prepare(
    source: tyro.conf.Positional[str],
    out: tyro.conf.Positional[str],
    exclude: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    seed: int = 0,
) -> None:
    """Turn any source of images into a wild stream: 32x32, shuffled once, in Parquet shards with a manifest.

    SOURCE is a folder of images (a class per folder, or flat), Hugging Face-style Parquet, WebDataset tars,
    downsampled-ImageNet batches, a tiny_images.bin, or glyphs:N for N drawn characters. OUT is a folder or an address
    such as s3://bucket/stream. Corrupt images are counted and listed in OUT/manifest.json. Example:

        gd-ray prepare /data/imagenet21k /streams/wild --exclude ilsvrc.txt --exclude "aquarium fish"

    Args:
        source: Where the images are.
        out: Where the stream goes.
        exclude: A class to leave out, by its name or WordNet id, or a file with one on each line; may be repeated.
        seed: Of the shuffle.
    """
    from trials.prepare import run_prepare

    run_prepare(source, out, exclude, seed)


@dataclass(frozen=True)
class Selection:
    """Which trials."""

    name: tyro.conf.Positional[str]
    """An experiment from 'gd-ray list', or a YAML file with 'key: [values]' for fields of a trial."""
    set: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Change a field of every trial, as key=value or key=value,value for a grid; may be repeated."""
    where: tyro.conf.UseAppendAction[tuple[str, ...]] = ()
    """Keep only trials whose field has one of the values, as key=value,value; may be repeated."""
    results: str = "results"
    """Folder or address of the Parquet results."""

    def specs(self) -> "tuple[str, list[TrialSpec]]":
        from trials.grid import read_grid, selected, with_settings

        name, specs = read_grid(self.name)
        return name, selected(with_settings(specs, self.set), self.where) if self.where else with_settings(
            specs, self.set
        )


def run(selection: tyro.conf.OmitArgPrefixes[Selection], cluster: tyro.conf.OmitArgPrefixes[Cluster]) -> None:
    """Run an experiment on Ray: every trial that is not finished, as many at once as fit.

    Start it again with the same command after any interruption: finished trials are skipped, others go on after their
    last stage. Results are Parquet files under --results, readable while the experiment runs. Examples:

        gd-ray run demo
        gd-ray run table1 --where dataset=cifar100 --gpus 0.25 --address auto --stream tinyimages=/streams/tiny
        gd-ray run table1 --where method=gd+ext --where task_size=10 --set ood_ratio=0.5,0.6
    """
    left = _run(selection, cluster)
    print(f"'gd-ray report {selection.results} --open' shows tables, figures and statistics.")
    sys.exit(1 if left else 0)


def _run(selection: Selection, cluster: Cluster) -> int:
    """Runs and shows the table of what is finished; gives back how many trials are not."""
    from rich.console import Console

    from trials.results import finished
    from trials.runner import run_experiment
    from trials.summary import accuracy_table

    name, specs = selection.specs()
    console = Console()
    failures = run_experiment(name, specs, selection.results, cluster, console)
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
    """Show how the experiments in a results folder stand: done, running, failed, waiting.

    Args:
        results: The folder that 'gd-ray run --results' writes to.
    """
    from rich.console import Console

    from trials.ledger import read_states
    from trials.summary import status_table

    console = Console()
    states = read_states(results)
    console.print(status_table(states))
    for state in states:
        if state.state in ("running", "failed"):
            text = f"{state.state}: {state.method}, {state.dataset}, seed {state.seed}: {state.detail}"
            console.print(text, markup=False, soft_wrap=True)


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
        watch: Write it anew until every trial is done; the page reloads itself.
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
    """List every experiment, and every method and ablation of the paper with the tables they stand in."""
    from rich.console import Console
    from rich.table import Table

    from gd_ray.methods import METHODS, TABLES
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
    Console(width=160).print(table)


def main() -> None:
    """Class-incremental learning with unlabeled data in the wild (ICCV 2019), as seeded trials."""
    try:
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
        print("gd-ray: stopped.", file=sys.stderr)
        sys.exit(130)
