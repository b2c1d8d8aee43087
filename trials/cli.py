"""The command line, `gd-ray`. Torch and Ray are imported only by the commands that need them."""

import os
import shlex
import shutil
import sys
from contextlib import redirect_stdout
from itertools import takewhile
from typing import TYPE_CHECKING

import tyro

from gd_ray.errors import UserError, unknown_name
from trials.folder_commands import convert, export, log, pack
from trials.interruption import RESUME, interruptible
from trials.resources import Cluster
from trials.sampled import sampled
from trials.selection import Plugins, Trials, load_files

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.table import Table

    from analysis import Results


def demo() -> None:
    """Compare five methods on the embedded glyphs data: a few minutes on two cores, nothing to download.

    Drawn characters are learned task by task. Oracle keeps all data, Baseline only a coreset; E2E and GD distill the
    previous model; GD+ext also samples unlabeled characters from a stream, scored by Ray Data. The chart shows the
    average incremental accuracy (ACC, higher is better) and the average forgetting (FGT, lower is better). It equals
    'gd-ray run demo --scorers 1 --results results/demo --storage storage/demo', then 'gd-ray report results/demo'.
    """
    from analysis.summary import forgetting_chart

    print(_DEMO, flush=True)
    left = _run(Trials("demo", results="results/demo"), Cluster(storage="storage/demo", scorers=1), forgetting_chart)
    if left:
        sys.exit(1)
    report("results/demo")
    folder = os.path.dirname(sys.executable)
    print("\nNext:" if shutil.which("gd-ray") else f"\nNext, after 'export PATH={shlex.quote(folder)}:$PATH':")
    print(_AFTER_DEMO)


_DEMO = """\
Five methods learn 15 drawn characters in three tasks of five, one by one.
GD+ext also samples a stream of 6000 other characters, scored by Ray Data."""
_AFTER_DEMO = """\
  gd-ray report results/demo --open                         # in your browser
  gd-ray list                                               # every method
  gd-ray run demo --set seed=0,1,2 --results results/demo   # two more seeds"""


def run(trials: tyro.conf.OmitArgPrefixes[Trials], cluster: tyro.conf.OmitArgPrefixes[Cluster]) -> None:
    """Run an experiment on Ray: every trial that is not finished, as many at once as fit.

    After any interruption, run the same command to resume: finished trials are skipped, others continue after their
    last stage. Results are Parquet files under --results, readable while the experiment runs. Examples:

        gd-ray run demo
        gd-ray run table1 --where dataset=cifar100 --address auto --stream tinyimages=/streams/tiny
        gd-ray run table1 --where method=gd+ext --where task_size=10 --set ood_ratio=0.5,0.6
        gd-ray run grid.yaml --plugin my_methods.py

    On clusters, with the templates in the folder that 'gd-ray list' names last; the first lines of each have more:

        sbatch --array=0-7 --gpus-per-task=1 slurm-array.sbatch table1    (Slurm: runs that share the trials)
        sbatch --nodes=4 --gpus-per-node=8 slurm-ray.sbatch table1        (Slurm: one Ray over whole nodes)
        kubectl create -f rayjob.yaml                                     (Kubernetes with KubeRay)
        ray up ray-up.yaml                                                (machines behind ssh)
        gd-ray run table1 --results s3://bucket/results --storage s3://bucket/storage

    In a Slurm job, a run takes the CPUs and GPUs of its task. Whoever reaches a Ray without a token runs any code in
    your name: the templates make one.
    """
    from analysis.summary import accuracy_table

    left = _run(trials, cluster, accuracy_table)
    print(f"'gd-ray report {trials.results} --open' shows tables, figures and statistics.")
    sys.exit(1 if left else 0)


def _run(trials: Trials, cluster: Cluster, show: "Callable[[str, str], Table]") -> int:
    """Run, show what is finished, and return the number of the other trials."""
    from rich.console import Console

    from gd_ray.naming import counted, trial_names
    from gd_ray.storage import without_credentials
    from gd_ray.store import finished
    from trials.runner import run_experiment

    name, specs, _ = trials.specs(cluster.data, cluster.stream)
    console = Console(file=sys.stdout)
    names = dict(zip((spec.trial_id for spec in specs), trial_names([spec.flat() for spec in specs]), strict=True))
    command = without_credentials(shlex.join(["gd-ray", *sys.argv[1:]]))
    connected = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    # Ray prints tracebacks and logs of its servers; what concerns a trial is in its log.
    with interruptible(), open(os.devnull, "w") as nowhere, redirect_stdout(nowhere):
        failures = run_experiment(name, specs, trials.results, cluster, console, command)
        if "ray" in sys.modules and not connected:  # until then it prints what servers of the cluster have to say
            sys.modules["ray"].shutdown()
    for failure in failures:
        text = f"Failed: {names[failure.spec.trial_id]}: {failure.error} (log: {failure.log})"
        console.print(text, markup=False, soft_wrap=True)
    left = {spec.trial_id for spec in specs} - finished(trials.results)
    if len(left) < len(specs):
        console.print(show(trials.results, name))
    if left:
        verb = "is" if len(left) == 1 else "are"
        console.print(f"{counted(len(left), 'trial')} {verb} not finished; run the same command to resume.")
    return len(left)


def plan(
    trials: tyro.conf.OmitArgPrefixes[Trials],
    at_once: int | None = None,
    images_per_second: float | None = None,
    measure: tyro.conf.FlagCreatePairsOff[bool] = False,
    data: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
    stream: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Estimate the cost of an experiment without starting it.

    Args:
        trials: Which trials.
        at_once: Trials that will run at the same time; one per CPU, or with --measure per GPU, without it.
        images_per_second: Forward passes of one trial's network per second; without it, as in finished trials.
        measure: Measure them now, on a GPU of this machine or with one thread.
        data: Folder of a data set, as name=folder; data/NAME without it; may be repeated.
        stream: Folder of a prepared stream, as name=folder; streams/NAME without it; may be repeated.
    """
    from trials.cost import print_plan

    name, specs, locations = trials.specs(data, stream)
    print_plan(name, specs, trials.results, locations, at_once, images_per_second, measure=measure)


def prepare() -> None:
    """Make wild streams and training data sets: stream, dataset, imagenet32, cifar100, distances."""
    import trials.prepare

    trials.prepare.main(sys.argv[2:])


def status(results: tyro.conf.Positional[str] = "results") -> None:
    """Show the state of the experiments in a results folder: trials done, running, failed, waiting, and time left.

    Args:
        results: The folder that 'gd-ray run --results' writes to.
    """
    from rich.console import Console

    from gd_ray.store import trial_states
    from trials.console import running_table, state_names, status_table

    console = Console()
    states = trial_states(results)
    if not states:
        raise UserError(f"results {results!r} have no experiment; give the folder that 'gd-ray run' wrote to.")
    console.print(status_table(states))
    if any(state.state == "running" for state in states):
        console.print("", running_table(states))
    names = state_names(states)
    for state in states:
        if state.state == "failed":
            console.print(
                f"failed: {names[state.experiment, state.trial_id]}: {state.detail}", markup=False, soft_wrap=True
            )


def report(
    results: tyro.conf.Positional[str] = "results",
    out: str | None = None,
    open: bool = False,
    watch: bool = False,
    every: int = 10,
    stream: tyro.conf.UseAppendAction[tuple[str, ...]] = (),
) -> None:
    """Write a report of a results folder: one HTML file with tables against the paper, verdicts, figures and trials.

    It reads the results only, also while the experiment runs. Figures (SVG and PNG) and tables (Markdown, LaTeX
    and CSV) are written beside it. Examples:

        gd-ray report results --open
        gd-ray report results --watch
        gd-ray report s3://bucket/results --out report.html --stream tinyimages=/streams/tiny

    Args:
        results: The folder or address that 'gd-ray run --results' writes to.
        out: The HTML file; report.html in the results folder without it (here, for an address).
        open: Show it in the browser.
        watch: Write it again until no trial runs or waits any more; the page reloads itself.
        every: Seconds between two reports of --watch.
        stream: Folder of a prepared stream, as name=folder, to show images from it; may be repeated.
    """
    import webbrowser

    from rich.console import Console

    import analysis.report as reporting
    from gd_ray.naming import counted
    from trials.console import progress_bar
    from trials.resources import parse_folders

    if every < 1:
        raise UserError(f"--every {every} must be at least 1 second.")
    console, streams = Console(), parse_folders(stream, "--stream")
    shown = False

    def write(refresh: int | None) -> "Results":
        nonlocal shown
        with progress_bar(console) as progress:
            bar = progress.add_task("reading results", total=1.0)

            def on_step(share: float, text: str) -> None:
                progress.update(bar, completed=share, description=text)

            path, reported = reporting.write_report(results, out, streams=streams, refresh=refresh, on_step=on_step)
        for note in reported.notes:
            console.print(note, markup=False, highlight=False, soft_wrap=True)
        text = f"Report of {counted(len(reported.trials), 'finished trial')}: {path.absolute()}"
        console.print(text, highlight=False, soft_wrap=True)
        if open and not shown:
            shown = webbrowser.open(path.absolute().as_uri()) or True
        return reported

    if watch:
        reporting.watch(write, every)
        console.print("No trial runs any more: this was the last report.")
    else:
        write(None)


def list_names(plugin: Plugins = ()) -> None:
    """List experiments, methods, learners, networks, data sets, rankings, and the fields of a trial.

    Args:
        plugin: A Python file that adds to them; may be repeated.
    """
    from analysis.status import packed_evidence, runs
    from trials.console import print_names

    load_files(plugin)
    print_names(runs(packed_evidence()))


_AFTER_INTERRUPT = {
    "run": f"; {RESUME}",
    "demo": f"; {RESUME}",
    "prepare": "; unfinished output is removed, run the same command to start again",
    "pack": "; nothing is lost, run the same command to continue",
}


_COMMANDS: "dict[str, Callable[..., None]]" = {
    "demo": demo,
    "list": list_names,
    "plan": plan,
    "run": run,
    "prepare": prepare,
    "status": status,
    "report": report,
    "sampled": sampled,
    "pack": pack,
    "export": export,
    "log": log,
    "convert": convert,
}
_START = f"""\
gd-ray: class-incremental learning with unlabeled data in the wild (ICCV 2019), as seeded trials on Ray.

Start with:
  gd-ray demo                      # five methods on drawn characters: a few minutes, nothing to download
  gd-ray list                      # every experiment, method and field
  gd-ray plan smoke                # what an experiment costs; starts nothing
  gd-ray run smoke                 # runs it, or resumes it
  gd-ray report results --open     # tables against the paper, figures and statistics in your browser

All commands: {", ".join(_COMMANDS)}.
'gd-ray COMMAND --help' explains each of them, with examples."""


def _checked(arguments: list[str]) -> list[str]:
    """Refuse mistakes that the parser would only name; take --results where the folder is a positional argument."""
    command = arguments[0]
    if not command.startswith("-") and command not in _COMMANDS:
        raise unknown_name("command", command, _COMMANDS)
    if command in ("status", "report", "pack"):
        return [word.removeprefix("--results=") for word in arguments if word != "--results"]
    for place, word in enumerate(arguments):
        if command in ("run", "plan") and word in ("--set", "--where"):
            values = list(takewhile(lambda value: not value.startswith("--"), arguments[place + 1 :]))
            if len(values) > 1 and (not arguments[1].startswith("--") or values[1][0].isdigit()):
                fields = all("=" in value for value in values)
                how = f"repeat {word} for each field" if fields else "give several values with commas"
                right = " ".join(f"{word} {value}" for value in values) if fields else f"{word} {','.join(values)}"
                raise UserError(f"{word} {' '.join(values)}: {how}, {right}.")
    return arguments


def _run_command(arguments: list[str]) -> None:
    try:
        checked = _checked(arguments)
        if arguments[0] == "prepare":
            prepare()
            return
        tyro.extras.subcommand_cli_from_dict(
            _COMMANDS,
            args=checked,
            prog="gd-ray",
            description="Reproduce and extend 'Overcoming Catastrophic Forgetting with Unlabeled Data in the Wild'.",
        )
    finally:
        sys.stdout.flush()  # argparse ignores a reader that has left, and Python would complain at its exit


def main() -> None:
    """Class-incremental learning with unlabeled data in the wild (ICCV 2019), as seeded trials."""
    arguments = sys.argv[1:]
    if not arguments:
        print(_START)
        return
    # Ray's own handler prints a C++ stack when SIGTERM comes while Ray starts. Ray reads this when it is imported.
    os.environ.setdefault("RAY_DISABLE_FAILURE_SIGNAL_HANDLER", "1")
    try:
        _run_command(arguments)
    except UserError as error:
        print(f"gd-ray: {error}", file=sys.stderr)
        sys.exit(2)
    except BrokenPipeError:  # the reader, such as head, has left; what is still buffered has to go somewhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(1)
    except KeyboardInterrupt:
        print(f"gd-ray: interrupted{_AFTER_INTERRUPT.get(arguments[0], '')}.", file=sys.stderr)
        sys.exit(130)
