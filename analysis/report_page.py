"""The page of the report: what was run, how it compares with the paper, and how sure one can be."""

import html
from datetime import UTC, datetime
from pathlib import Path

import pandas as pd

from analysis import page
from analysis.drawing import ordered
from analysis.formats import Cell, Grid, frame_grid, grids, signed, to_html
from analysis.published import dataset_title
from analysis.report_trials import failures_section, trials_section, versions_section
from analysis.results import Results
from analysis.settings import Setting, mixed_note, uses_external
from analysis.tables import MARGIN, Table, gap_closed, metric_title


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
        "Trials": trials_section(results),
        "Failures": failures_section(results),
        "Versions and machines": versions_section(results),
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
        "(Student's t below 8 seeds); p comes from flipping signs in every way (above 16 seeds in 10,000 of them) and "
        "is corrected by Holm for the comparisons of a table in one metric at one task size; wins count "
        "seeds on which the first method is better; improvement is the chance that any trial of the first beats "
        "any of the second."
    )
    empty = True

    def of(setting: Setting) -> str:
        return f", setting {found.index(setting) + 1}" if len(found) > 1 else ""

    for table in tables:
        frame = table.comparisons
        if frame.empty or frame["n"].max() < 2:
            continue
        empty = False
        title = f"{table.layout.title}{of(table.setting)}"
        text += page.folded(f"{title}: {len(frame)} comparisons", to_html(_comparison_grid(table, title)))
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
        text += to_html(frame_grid(shown, f"{title}{of(setting)}"))
    if empty:
        return page.notes(["One seed, or nothing to compare: there are no intervals and tests. Run more seeds."])
    return text


def _comparison_grid(table: Table, title: str) -> Grid:
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
    return frame_grid(shown, f"{title}: differences in points, seed by seed")


def _reproduce(results: Results) -> str:
    names = sorted(results.experiments) or sorted(results.expected["experiment"].unique())
    unknown = [name for name in names if not results.commands.get(name)]
    typed = [line for name in names for line in results.commands.get(name, ())]
    lines = [*dict.fromkeys(typed), *(f"gd-ray run {name} --results {results.address}" for name in unknown)]
    recorded = results.trials["git_revision"].dropna().astype(str)
    revisions = recorded.str.removesuffix("-dirty").value_counts()
    first = [f"git checkout {revision}" for revision in revisions.index[:1]]
    text = (
        "The spec of a trial and the images that it names decide its result, and its id is made from the spec. Every "
        "trial's settings are in its row of the trials above and in the Parquet files. The same command goes on after "
        "an interruption."
    )
    if unknown:
        text += (
            f" What was typed for {_listed(unknown)} is not known here: settings that differ from an experiment's own "
            f"need --set."
        )
    if recorded.str.endswith("-dirty").any():
        text += " Some trials ran with files that were changed since their revision (-dirty)."
    if len(revisions) > 1:
        text += f" Trials of {len(revisions)} revisions are here; the one below has the most of them."
    return page.paragraph(text) + page.commands([*first, *lines, f"gd-ray report {results.address}"])
