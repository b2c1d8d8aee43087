"""Write the generated parts of README.md and REPRODUCTION.md from published Parquet: `make evidence`.

It replaces everything between two marks of each file, and nothing else. The findings come from the template
findings.md.j2, which takes every number of a sentence from the trials.
"""

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined

from analysis.evidence import reduced, reduced_more, result_folders
from analysis.evidence.claims import METRICS, Sections, count_verdicts
from analysis.evidence.facts import facts_of
from analysis.figures.style import ReportFigure, render
from analysis.results import Results, load
from gd_ray.errors import UserError

END = "<!-- end -->"


@dataclass(frozen=True)
class Evidence:
    """A folder of results, and what is written about it."""

    folder: str
    """Of its results, or of folders of results: one for each kind of CPU."""
    begin: str
    """The line before its part of a file; END is the line after it."""
    sections: Sections
    """Every trial of its experiment."""
    figures: Callable[[Sequence[Results]], list[ReportFigure]]
    parts: Callable[[Sequence[Results], Path, str, list[str]], dict[str, list[str]]]
    """Takes the results, the folder, a sentence on where they come from and the images; returns the paragraphs of each
    file."""


REDUCED = Evidence(
    "analysis/evidence",
    "<!-- begin: written by 'make evidence' -->",
    reduced.SECTIONS,
    reduced.figures,
    reduced.parts,
)
MORE = Evidence(
    "analysis/evidence/more",
    "<!-- begin: written by 'make evidence' from analysis/evidence/more -->",
    reduced_more.SECTIONS,
    reduced_more.figures,
    reduced_more.parts,
)
"""In folders of their own: trials that both experiments have were computed on two kinds of CPU, under one id."""
PUBLISHED = (REDUCED, MORE)
FINDINGS = "<!-- begin: written by 'make evidence' from analysis/evidence/findings.md.j2 -->"
TEMPLATES = Environment(
    loader=PackageLoader("analysis.evidence", ""), autoescape=False, trim_blocks=True, undefined=StrictUndefined
)


def load_kinds(folder: Path) -> list[Results]:
    """Load the results of each kind of CPU that ran an experiment."""
    return [load(str(own)) for own in result_folders(folder)]


def clock_hours(results: Results) -> float:
    """Return the wall-clock time of all finished trials; a first stage that several share counts once."""
    stages = results.rows("stages", results.trials["trial_id"].astype(str).tolist())
    stages = stages.drop_duplicates(["trial_id", "stage"])
    seconds = stages.filter(like="seconds_").sum(axis=1)
    first = stages["stage"] == 1
    return float(seconds[~first].sum() + seconds[first].drop_duplicates().sum()) / 3600


def intro(results: Sequence[Results], sections: Sections) -> str:
    """Return how much of an experiment there is, and where and how long it ran."""
    trials, rows = pd.concat([own.trials for own in results]), [row for _, rows in sections for row in rows]
    total, done = sum(len(row.seeds) for row in rows), sum(row.of(trials)["seed"].nunique() for row in rows)
    twice = sum(row.of(trials)["seed"].duplicated().sum() for row in rows)
    again = f" ({twice} of them on two kinds of CPU)" if twice else ""
    cpus = " and ".join(sorted(trials["cpu_model"].dropna().astype(str).unique()))
    versions = ", ".join(f"{name} {'/'.join(sorted(map(str, trials[name].unique())))}" for name in ("torch", "ray"))
    place = f"on one core{f' of {cpus}' if cpus else ''} each"
    hours = sum(map(clock_hours, results))
    return f"{done} of {total} trials{again}; {hours:.1f} hours of wall-clock time {place}; {versions}."


def generated_parts(
    evidence: Evidence, results: Sequence[Results], labels: Path, shown: list[ReportFigure]
) -> dict[str, str]:
    """Return the generated part of each file, with its marks."""
    images = [f"![{figure.title}]({evidence.folder}/{figure.name}.svg)" for figure in shown]
    parts = evidence.parts(results, labels, intro(results, evidence.sections), images)
    return {
        file: "\n\n".join(filter(None, (evidence.begin, *map(str.strip, texts), END))) for file, texts in parts.items()
    }


def replace_part(file: str, text: str, begin: str, new: str) -> str:
    """Return a file's text with another generated part."""
    start = text.find(begin)
    end = text.find(END, start)
    if start < 0 or end < 0:
        raise UserError(f"{file} has no place for the evidence; add the lines {begin!r} and {END!r}.")
    return text[:start] + new + text[end + len(END) :]


def write(root: Path, evidence: Evidence) -> None:
    """Write the generated parts about a folder and their figures; nothing if it has no finished trial."""
    folder = root / evidence.folder
    results = load_kinds(folder)
    if not results:
        return
    shown = evidence.figures(results)
    for figure in shown:
        (folder / f"{figure.name}.svg").write_bytes(render(figure.figure)["svg"])
    for file, new in generated_parts(evidence, results, folder, shown).items():
        path = root / file
        path.write_text(replace_part(file, path.read_text(), evidence.begin, new))


def findings(root: Path) -> str:
    """Return the findings with their marks, every number from the trials."""
    folder = root / MORE.folder
    (of_reduced,), of_more = load_kinds(root / REDUCED.folder), load_kinds(folder)
    more_trials = reduced_more.with_measures(of_more, folder)
    text = TEMPLATES.get_template("findings.md.j2").render(
        reduced=facts_of([of_reduced], of_reduced.trials, reduced.SECTIONS, METRICS),
        more=facts_of(of_more, more_trials, reduced_more.SECTIONS, reduced_more.ALL_METRICS),
        tables=count_verdicts(reduced_more.TABLE_CLAIMS, more_trials),
    )
    return f"{FINDINGS}\n\n{text.strip()}\n\n{END}"


def write_findings(root: Path) -> None:
    """Write the findings into REPRODUCTION.md."""
    path = root / "REPRODUCTION.md"
    path.write_text(replace_part(path.name, path.read_text(), FINDINGS, findings(root)))


if __name__ == "__main__":
    top = Path(__file__).parents[2]
    try:
        for published in PUBLISHED:
            write(top, published)
        write_findings(top)
    except UserError as error:
        sys.exit(f"evidence: {error}")
