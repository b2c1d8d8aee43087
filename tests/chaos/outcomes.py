"""What each run of a campaign came to: a row of runs.csv, and the table of all of them."""

import csv
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

from tests.chaos.plan import LASTS


@dataclass(frozen=True)
class Outcome:
    """A row of runs.csv."""

    seed: int
    number: int
    fault: str
    hit: str
    moment_s: float
    attempts: int
    seconds: float
    undisturbed_s: float
    problems: str
    seen: str
    revision: str

    @property
    def extra_s(self) -> float:
        """Seconds that the fault cost."""
        return self.seconds - self.undisturbed_s

    def __str__(self) -> str:
        cost = f"{self.attempts} attempts, {self.extra_s:.0f} s more"
        return f"{self.number} {self.fault} at {self.moment_s:.0f} s ({self.hit}): {cost}; {self.problems or 'clean'}"


def read_outcomes(file: Path) -> list[Outcome]:
    if not file.exists():
        return []
    with file.open(newline="") as rows:
        return [
            Outcome(**{name: Outcome.__annotations__[name](value) for name, value in row.items()})
            for row in csv.DictReader(rows)
        ]


def add_outcome(file: Path, outcome: Outcome) -> None:
    with file.open("a", newline="") as rows:
        writer = csv.DictWriter(rows, list(asdict(outcome)))
        if not rows.tell():
            writer.writeheader()
        writer.writerow(asdict(outcome))


def table(outcomes: list[Outcome]) -> str:
    """Return a table in Markdown: for each fault the runs, those without a problem, the seconds that it cost."""
    lines = [
        "| fault | runs | equal and clean | attempts | extra seconds: median, most | what the person saw most often |",
        "| :--- | ---: | ---: | ---: | ---: | :--- |",
    ]
    for fault in LASTS:
        if rows := [outcome for outcome in outcomes if outcome.fault == fault]:
            extra = [row.extra_s for row in rows]
            (seen, _), *_ = Counter(row.seen for row in rows).most_common(1)
            good, attempts = sum(not row.problems for row in rows), sum(row.attempts for row in rows) / len(rows)
            lines.append(
                f"| {fault} | {len(rows)} | {good} | {attempts:.1f} | {median(extra):.0f}, {max(extra):.0f} | {seen} |"
            )
    good = sum(not outcome.problems for outcome in outcomes)
    lines += ["", f"{len(outcomes)} runs, {good} of them equal to an undisturbed run and clean."]
    lines += [f"- {row.number} {row.fault} ({row.hit}): {row.problems}" for row in outcomes if row.problems]
    return "\n".join(lines) + "\n"
