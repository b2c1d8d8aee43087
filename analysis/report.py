"""The report: one HTML file that tells what was run, how it compares with the paper, and how sure one can be."""

import html
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from analysis import page
from analysis.curves import accuracy_matrix
from analysis.drawing import Picture, ordered
from analysis.figures import all_pictures
from analysis.formats import Cell, Grid, frame_grid, grids, signed, to_csv, to_html, to_latex, to_markdown
from analysis.published import dataset_title
from analysis.results import SPEC, Results, load
from analysis.settings import Setting, mixed_note, settings, uses_external
from analysis.streams import FindStream, stream_finder
from analysis.tables import MARGIN, Table, all_tables, gap_closed, metric_title
from gd_ray.errors import UserError

DRILLED = 200
"""Trials whose stages are in the page; those of the others are one call of `accuracy_matrix` away."""
Step = Callable[[float, str], None]
"""Told the share done and what comes next."""


def _silent(_: float, __: str) -> None:
    """Tells nobody."""


def write_report(
    address: str,
    out: str | None = None,
    *,
    streams: Mapping[str, str] | None = None,
    refresh: int | None = None,
    on_step: Step = _silent,
) -> tuple[Path, Results]:
    """Writes the report, and its tables and figures as files beside it; gives back its path and what it shows."""
    target = _target(address, out)
    on_step(0.0, "reading results")
    results = load(address)
    on_step(0.3, "tables")
    found = settings(results)
    tables = all_tables(found)
    _write_files(target.parent / "tables", _table_files(found, tables))
    on_step(0.4, "figures")
    pictures = _pictures(results, found, stream_finder(results, streams or {}))
    drawn: list[str] = []
    files: dict[str, bytes] = {}
    for k, (name, shown) in enumerate(pictures.items()):
        on_step(0.5 + 0.4 * k / len(pictures), name)
        images = page.rendered(shown.figure)
        files |= {f"{name}.{kind}": content for kind, content in images.items()}
        drawn.append(page.picture(shown, images))
    _write_files(target.parent / "figures", files)
    on_step(0.9, "page")
    text = build_page(results, found, tables, "".join(drawn), refresh)
    temporary = target.with_name(f".{target.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(target)
    on_step(1.0, "done")
    return target, results


def _pictures(results: Results, found: list[Setting], finder: FindStream) -> dict[str, Picture]:
    """Every figure of every setting by the name of its file."""
    return {
        f"setting{k + 1}-{shown.name}" if len(found) > 1 else shown.name: shown
        for k, setting in enumerate(found)
        for shown in all_pictures(results, setting, finder)
    }


def _target(address: str, out: str | None) -> Path:
    """Beside the results; in the working directory where they are in an object store."""
    target = Path(out) if out else Path("report.html") if "://" in address else Path(address, "report.html")
    if not out and "://" not in address and not Path(address).is_dir():
        raise UserError(f"results {address!r} is no folder; give the folder that 'gd-ray run --results' wrote to.")
    try:
        for folder in ("tables", "figures"):
            (target.parent / folder).mkdir(parents=True, exist_ok=True)
        probe = target.with_name(f".{target.name}.tmp")
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"report {str(target)!r} cannot be written with its tables and figures ({error.strerror}: "
            f"{error.filename!r}); name another file with --out."
        ) from error
    return target


def watch(write: Callable[[int | None], Results], seconds: int) -> None:
    """Writes the report again and again until every trial of the ledgers is done or has failed.

    `write` is given the seconds after which the page reloads itself; the last page does not.
    """
    while not is_over(write(seconds)):
        time.sleep(seconds)
    write(None)


def is_over(results: Results) -> bool:
    return not results.expected["state"].isin(["started", "waiting"]).any()


def _table_files(found: list[Setting], tables: list[Table]) -> dict[str, bytes]:
    files = {}
    for table in tables:
        prefix = f"setting{found.index(table.setting) + 1}-" if len(found) > 1 else ""
        name = f"{prefix}table-{table.layout.key}"
        parts = grids(table)
        files[f"{name}.csv"] = to_csv(table).encode()
        files[f"{name}.md"] = "\n".join(to_markdown(part) for part in parts).encode()
        files[f"{name}.tex"] = "\n".join(to_latex(part) for part in parts).encode()
    return files


def _write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Writes the files of a report; those of an earlier one that it has no more are removed, and no others."""
    listed = folder / ".written"
    earlier = listed.read_text().splitlines() if listed.exists() else []
    for name in {*earlier} - {*files}:
        (folder / Path(name).name).unlink(missing_ok=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    listed.write_text("\n".join(files))


def build_page(
    results: Results, found: list[Setting], tables: list[Table], figures: str, refresh: int | None = None
) -> str:
    """The page as text, its figures given as drawn."""
    done, total = len(results.trials), max(len(results.trials), results.expected["trial_id"].nunique())
    made = datetime.now(UTC).strftime("%d %B %Y, %H:%M UTC")
    intro = page.paragraph(
        f"Class-incremental learning with unlabeled data in the wild: {done} of {total} trials finished. "
        f"Made on {made} from {results.address}."
    )
    remarks = [*results.notes, *([text] if (text := mixed_note(found)) else [])]
    if not done:
        remarks.append(
            "No trial is finished yet, so that there are no tables and figures; the stages so far are below."
        )
    sections = {
        "What was run": page.notes(remarks) + _what_was_run(results, found),
        "Results": _tables_section(found, tables),
        "Verdicts": _verdicts(tables),
        "How sure": _how_sure(found, tables),
        "Figures": figures,
        "Trials": _trials(results),
        "Failures": _failures(results),
        "Versions and machines": _versions(results),
        "How to reproduce": _reproduce(results),
    }
    footer = page.paragraph(
        "ACC is the accuracy over all classes seen, averaged over stages 2 to the last; FGT is how far the accuracy on "
        "each task fell since it was learned. The paper: Lee, Lee, Shin and Lee, Overcoming Catastrophic Forgetting "
        "with Unlabeled Data in the Wild, ICCV 2019."
    )
    name = Path(results.address.rstrip("/")).name
    return page.page(f"Results: {name}", sections, intro=intro, footer=footer, refresh=refresh)


def _what_was_run(results: Results, found: list[Setting]) -> str:
    rows = []
    states = results.expected.groupby(["experiment", "state"]).size().unstack(fill_value=0)
    finished = set(results.trials["trial_id"])
    for experiment in sorted({*results.experiments, *states.index}):
        counts = states.loc[experiment].to_dict() if experiment in states.index else {}
        ids = results.experiments.get(experiment, ())
        counts.setdefault("done", sum(trial in finished for trial in ids))
        rows.append(
            {"experiment": experiment} | {s: counts.get(s, 0) for s in ("done", "started", "failed", "waiting")}
        )
    text = to_html(frame_grid(pd.DataFrame(rows), "Trials by experiment and state")) if rows else ""
    for k, setting in enumerate(found):
        trials = setting.variants
        titles = dict(zip(trials["method"].astype(str), trials["method_title"].astype(str), strict=True))
        heading = f"Setting {k + 1}" if len(found) > 1 else "Setting"
        entries = {
            "data": _listed(dataset_title(name) for name in trials["dataset"].unique()),
            "streams": _listed(sorted(trials.loc[uses_external(trials), "stream"].unique())) or "none",
            "methods": _listed(titles[name] for name in ordered(titles)),
            "task sizes": _listed(sorted(trials["task_size"].unique())),
            "seeds": _listed(sorted(trials["seed"].unique())),
            "differs from the paper, external data apart, in": setting.differs or "nothing",
            "convention": setting.convention,
        }
        text += f"<h3>{heading}</h3>" + page.definitions(entries) + page.notes(setting.notes)
    return text


def _listed(values: object) -> str:
    return ", ".join(str(value) for value in values)  # type: ignore[attr-defined]


def _tables_section(found: list[Setting], tables: list[Table]) -> str:
    text = ""
    for k, setting in enumerate(found):
        own = [table for table in tables if table.setting is setting]
        if len(found) > 1 and own:
            text += f"<h3>Setting {k + 1}: {html.escape(setting.label)}</h3>"
        text += page.notes(note for table in own for note in table.notes)
        for table in own:
            text += "".join(to_html(part) for part in grids(table))
    if text:
        text = (
            page.paragraph(
                "Best in bold, Oracle apart. † marks cells with collapsed trials. Click a column to sort by it."
            )
            + text
        )
    return text


def _verdicts(tables: list[Table]) -> str:
    frames = [table.frame.assign(convention=table.setting.convention) for table in tables if table.layout.key != "1"]
    cells = pd.concat(frames) if frames else pd.DataFrame()
    cells = cells[cells["verdict"] != ""] if len(cells) else cells
    if cells.empty:
        return page.paragraph(
            "There is nothing to compare with the paper's numbers here: they are for CIFAR-100 and ImageNet with the "
            "paper's settings."
        )
    cells = cells.drop_duplicates(["convention", "dataset", "task_size", "method", "metric"])
    counts = cells["verdict"].value_counts()
    shown = pd.DataFrame(
        {
            "method": cells["title"],
            "data": [dataset_title(name) for name in cells["dataset"]],
            "task size": cells["task_size"],
            "convention": cells["convention"],
            "metric": [metric_title(m, c) for m, c in zip(cells["metric"], cells["convention"], strict=True)],
            "ours": [Cell(f"{v:.1f}", v) for v in cells["mean"]],
            "paper": [Cell(f"{v:.1f}", v) for v in cells["printed"]],
            "difference": [Cell(signed(v, 1), v) for v in cells["difference"]],
            "n": cells["n"],
            "verdict": cells["verdict"],
        }
    )
    return page.paragraph(
        f"{counts.get('reproduced', 0)} cells are reproduced, {counts.get('differs', 0)} differ and "
        f"{counts.get('undecided', 0)} are undecided. Reproduced: the mean lies within {MARGIN:g} point of the printed "
        f"one, shown by two one-sided tests at 5%, the paper's own spread counted. Differs: that is not shown, and a t "
        f"test finds a difference. Undecided: too few seeds to tell."
    ) + to_html(frame_grid(shown, "Each cell against the paper"))


def _how_sure(found: list[Setting], tables: list[Table]) -> str:
    text = page.paragraph(
        "Methods share their seeds, so they are compared seed by seed. The interval is a bootstrap over seeds "
        "(Student's t below 8 seeds); p is exact, from flipping signs, and corrected by Holm within each table; wins "
        "count seeds on which the first method is better; improvement is the chance that any trial of the first beats "
        "any of the second."
    )
    empty = True
    for table in tables:
        frame = table.comparisons
        if frame.empty or frame["n"].max() < 2:
            continue
        empty = False
        text += page.folded(f"{table.layout.title}: {len(frame)} comparisons", to_html(_comparison_grid(table)))
    for setting in found:
        frame, remarks = gap_closed(setting)
        text += page.notes(remarks)
        if frame.empty:
            continue
        empty = False
        titles = setting.trials.set_index("method")["method_title"].to_dict()
        shown = pd.DataFrame(
            {
                "method": [str(titles.get(name, name)) for name in frame["method"]],
                "data": [dataset_title(name) for name in frame["dataset"]],
                "metric": [metric_title(metric, setting.convention) for metric in frame["metric"]],
                "gap closed": [Cell(f"{100 * v:.0f}%", v) for v in frame["iqm"]],
                "95% interval": [
                    Cell("" if pd.isna(low) else f"{100 * low:.0f}% to {100 * high:.0f}%")
                    for low, high in zip(frame["low"], frame["high"], strict=True)
                ],
                "task sizes": frame["settings"],
                "seeds": frame["n"],
            }
        )
        title = "How much of the way from Baseline (0%) to Oracle (100%): interquartile mean over seeds and task sizes"
        text += to_html(frame_grid(shown, title))
    if empty:
        return page.notes(["One seed, or nothing to compare: there are no intervals and tests. Run more seeds."])
    return text


def _comparison_grid(table: Table) -> Grid:
    frame = table.comparisons
    titles = table.frame.set_index("method")["title"].to_dict()
    shown = pd.DataFrame(
        {
            "method": [titles.get(name, name) for name in frame["method"]],
            "against": [titles.get(name, name) for name in frame["against"]],
            "data": [dataset_title(name) for name in frame["dataset"]],
            "task size": frame["task_size"],
            "metric": [metric_title(metric, table.setting.convention) for metric in frame["metric"]],
            "difference": [Cell(signed(v, 1), v) for v in frame["difference"]],
            "95% interval": [
                Cell("" if pd.isna(low) else f"{signed(low, 1)} to {signed(high, 1)}")
                for low, high in zip(frame["low"], frame["high"], strict=True)
            ],
            "p, Holm": frame["p_holm"],
            "wins": [Cell(f"{w} of {n}", w / n) for w, n in zip(frame["wins"], frame["n"], strict=True)],
            "improvement": [Cell(f"{100 * v:.0f}%", v) for v in frame["improvement"]],
            "remark": frame["remark"],
        }
    )
    return frame_grid(shown, f"{table.layout.title}: differences in points, seed by seed")


def _trials(results: Results) -> str:
    trials = results.trials
    rows = pd.DataFrame(
        {
            "trial": trials["trial_id"].astype(str),
            "method": trials["method_title"].astype(str),
            "data": [dataset_title(name) for name in trials["dataset"]],
            "task size": trials["task_size"],
            "seed": trials["seed"],
            "OOD ratio": trials["ood_ratio"].where(uses_external(trials)),
            "ACC": [_percent(value) for value in trials["acc"]],
            "FGT": [_percent(value) for value in trials["fgt_paper"]],
            "FGT as released": [_percent(value) for value in trials["fgt_released"]],
            "state": ["collapsed" if value else "finished" for value in trials["collapsed"]],
            "minutes": [Cell(f"{value / 60:.1f}", value) for value in trials["seconds"].astype(float)],
        }
    )
    open_trials = results.unfinished
    if open_trials:
        rows = pd.concat([rows, _unfinished(results)], ignore_index=True)
    if rows.empty:
        return ""
    rows = rows.astype(object).where(rows.notna(), None)
    text = to_html(frame_grid(rows, f"All {len(rows)} trials"))
    shown = [*trials["trial_id"].astype(str), *map(str, open_trials)][:DRILLED]
    if len(rows) > DRILLED:
        text += page.notes([f"The first {DRILLED} trials are shown stage by stage."])
    stages = results.rows("stages", shown)
    by_trial = dict(list(stages.groupby("trial_id", observed=True))) if len(stages) else {}
    by_id = trials.set_index(trials["trial_id"].astype(str))
    for trial in shown:
        if trial in by_trial:
            text += _drill_down(trial, by_trial[trial], by_id.loc[trial] if trial in by_id.index else None)
    return text


def _unfinished(results: Results) -> pd.DataFrame:
    """Rows of the trials that are still running, or were stopped."""
    curves = results.curves[results.curves["trial_id"].isin(results.unfinished)]
    last = curves.sort_values("stage").groupby("trial_id", observed=True).last()
    known = results.stages.drop_duplicates("trial_id").set_index("trial_id").loc[list(last.index)]
    return pd.DataFrame(
        {
            "trial": last.index.astype(str),
            "method": known["method"].astype(str).to_numpy(),
            "data": known["dataset"].astype(str).to_numpy(),
            "task size": known["task_size"].to_numpy(),
            "seed": known["seed"].to_numpy(),
            "ACC": [_percent(value) for value in last["acc"]],
            "FGT": [_percent(value) for value in last["fgt_paper"]],
            "FGT as released": [_percent(value) for value in last["fgt_released"]],
            "state": [f"after stage {stage}" for stage in last["stage"]],
        }
    )


def _percent(value: object) -> Cell:
    number = float(value)  # type: ignore[arg-type]
    return Cell("" if pd.isna(number) else f"{100 * number:.1f}", None if pd.isna(number) else number)


def _drill_down(trial: str, stages: pd.DataFrame, row: "pd.Series | None") -> str:
    first = stages.iloc[0]
    title = str(row["method_title"]) if row is not None else str(first["method"])
    matrix = accuracy_matrix(stages)
    header = ("after stage", *(f"task {task + 1}" for task in range(len(matrix))))
    cells = tuple((Cell(str(s + 1), s + 1), *(_percent(value) for value in values)) for s, values in enumerate(matrix))
    text = to_html(Grid("Accuracy on each task, in %", header, cells), sortable=False)
    last = stages.drop_duplicates("stage")
    seconds = [name for name in stages.columns if name.startswith("seconds_")]
    shown = pd.DataFrame(
        {
            "stage": last["stage"],
            "labelled": last["labelled_size"],
            "coreset left": last["coreset_size"],
            "external, previous": last["external_previous"],
            "external, OOD": last["external_ood"],
            "mean confidence": last["mean_confidence"],
            "seconds": last[seconds].sum(axis=1).round(1),
        }
    )
    text += to_html(frame_grid(shown, "Stages"), sortable=False)
    if row is not None:
        text += page.definitions({name: _shown(row[name]) for name in SPEC if name in row})
    place = f"{first['dataset']!s}, task size {first['task_size']!s}, seed {first['seed']!s}"
    return page.folded(f"{title}, {place} ({trial})", text)


def _shown(value: object) -> str:
    return "all" if isinstance(value, float) and pd.isna(value) else str(value)


def _failures(results: Results) -> str:
    failed = results.expected[results.expected["state"] == "failed"]
    if failed.empty:
        return page.paragraph("No trial failed.") if len(results.expected) else ""
    names = ["experiment", "method", "dataset", "task_size", "seed", "error", "log"]
    return to_html(frame_grid(failed, "Failed trials", {name: name.replace("_", " ") for name in names}))


def _versions(results: Results) -> str:
    trials = results.trials
    if trials.empty:
        return ""
    names = ["host", "device", "threads", "python", "torch", "ray", "numpy", "git_revision"]
    groups = trials.groupby(names, observed=True, dropna=False)
    rows = groups.agg(trials=("trial_id", "size"), seconds=("seconds", "sum")).reset_index()
    hours = [Cell(f"{value / 3600:.2f}", value) for value in rows["seconds"].astype(float)]
    shown = {name: name.replace("_", " ") for name in [*names, "trials", "hours"]}
    text = to_html(frame_grid(rows.assign(hours=pd.Series(hours, rows.index)), "Where the trials ran", shown))
    return text + (
        page.notes(
            ["Trials of more than one version or machine are here; on a CPU, results may differ in the last bits."]
        )
        if len(rows) > 1
        else ""
    )


def _reproduce(results: Results) -> str:
    names = sorted(results.experiments) or sorted(results.expected["experiment"].unique())
    unknown = [name for name in names if not results.commands.get(name)]
    typed = [line for name in names for line in results.commands.get(name, ())]
    lines = [*dict.fromkeys(typed), *(f"gd-ray run {name} --results {results.address}" for name in unknown)]
    revisions = results.trials["git_revision"].dropna().value_counts()
    first = [f"git checkout {revision}" for revision in revisions.index[:1]]
    text = (
        "The spec of a trial alone decides its result, and its id is made from the spec. Every trial's settings are "
        "in its row of the trials above and in the Parquet files. The same command goes on after an interruption."
    )
    if unknown:
        text += (
            f" What was typed for {_listed(unknown)} is not known here: settings that differ from an experiment's own "
            f"need --set."
        )
    if len(revisions) > 1:
        text += f" Trials of {len(revisions)} revisions are here; the one below has the most of them."
    return page.paragraph(text) + page.commands([*first, *lines, f"gd-ray report {results.address}"])
