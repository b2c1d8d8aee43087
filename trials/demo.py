"""The embedded default: a small comparison on glyphs, from images to a table, in a few minutes."""

from time import perf_counter

from rich.console import Console
from rich.progress import Progress, TaskID
from rich.table import Table

from gd_ray.data.glyphs import load_glyphs, wild_glyphs
from gd_ray.methods import METHODS
from gd_ray.progress import Report
from gd_ray.spec import TrialSpec
from gd_ray.trial import TrialResult, run_trial
from gd_ray.wild.stream import MemoryStream
from trials.cost import StepCost, trial_cost
from trials.view import progress_bar

DEMO_METHODS = ("oracle", "baseline", "e2e", "gd", "gd+ext")
STREAM_IMAGES = 6000


def demo_spec(method: str, seed: int) -> TrialSpec:
    """Nine characters in tasks of three, with a small network and a tenth of the paper's epochs."""
    return TrialSpec(
        method=method,
        seed=seed,
        dataset="glyphs",
        stream="glyphs",
        num_classes=9,
        task_size=3,
        train_per_class=100,
        test_per_class=100,
        coreset_size=45,
        window=STREAM_IMAGES // 3,
        depth=10,
        width=1,
        dropout=0.0,
        batch_size=16,
        epoch_factor=0.1,
        learning_rate=0.05,
    )


def run_demo(seeds: int) -> None:
    """Runs the grid, trial after trial, and prints its table."""
    console = Console()
    started = perf_counter()
    specs = [demo_spec(method, seed) for seed in range(seeds) for method in DEMO_METHODS]
    console.print(f"Drawing glyphs: {specs[0].num_classes} classes to learn, {STREAM_IMAGES} wild images.")
    data, stream = load_glyphs(100, 100), MemoryStream(wild_glyphs(STREAM_IMAGES))
    costs = {spec: trial_cost(spec, 100, 100) for spec in specs}
    results = []
    with progress_bar(console) as progress:
        bar = progress.add_task("", total=sum(step.work for cost in costs.values() for step in cost))
        for spec in specs:
            done = progress.tasks[0].completed
            results.append(run_trial(spec, data, stream, on_progress=_meter(progress, bar, spec, costs[spec])))
            progress.update(bar, completed=done + sum(step.work for step in costs[spec]))
            if not console.is_terminal:
                console.print(f"{spec.rules.title}, seed {spec.seed}: done after {perf_counter() - started:.0f} s")
    console.print(_table(results))
    console.print(f"{len(results)} trials in {perf_counter() - started:.0f} s.")


def _meter(progress: Progress, bar: TaskID, spec: TrialSpec, cost: list[StepCost]) -> Report:
    """Moves the bar by the work that a trial's steps stand for."""
    start, before, work = progress.tasks[0].completed, 0.0, {}
    for step in cost:
        work[step.stage, step.step] = (before, step.work)
        before += step.work

    def report(stage: int, step: str, done: int, total: int) -> None:
        text = f"{spec.rules.title}, seed {spec.seed}: stage {stage} of {spec.num_tasks}, {step}"
        earlier, this = work[stage, step]
        progress.update(bar, completed=start + earlier + this * done / total, description=text)

    return report


def _table(results: list[TrialResult]) -> Table:
    table = Table(title="Glyphs: mean over seeds, in %", title_justify="left")
    for column in ("method", "ACC ↑", "FGT ↓", "trials"):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name in DEMO_METHODS:
        rows = [result for result in results if result.spec.rules.name == name]
        acc, fgt = (sum(getattr(row, metric) for row in rows) / len(rows) for metric in ("acc", "fgt"))
        table.add_row(METHODS[name].title, f"{100 * acc:.1f}", f"{100 * fgt:.1f}", str(len(rows)))
    return table
