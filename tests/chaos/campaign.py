"""Chaos: runs of a tiny experiment, each hit by one fault of a seeded plan and repeated until it ends. `make chaos`.

Every row and every weight must equal those of an undisturbed run; no file, process or traceback may be left. A row for
each run is added to runs.csv in the folder of the campaign, which has the results of runs that failed as well. Runs
that are there already are not repeated, so that the same command with more runs continues a campaign.

    make chaos RUNS=100 SEED=0
    make chaos RUNS=8 FAULTS=trial,scorer FOLDER=/tmp/chaos
"""

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from gd_ray.rows import git_revision
from tests.chaos.compare import differences, leftovers
from tests.chaos.faults import PLACES, inject
from tests.chaos.outcomes import Outcome, add_outcome, read_outcomes, table
from tests.chaos.places import OWN, Place
from tests.chaos.plan import LASTS, ROOT, Run, plan
from tests.chaos.processes import adopt_orphans, descendants, kill, orphans_reaped, wait_until_gone

GRID = """\
{method: [baseline, gd, gd+ext], dataset: glyphs, num_classes: 6, task_size: 2, train_per_class: 8, test_per_class: 4,
coreset_size: 8, stream: 'glyphs:600', window: 200, batch_size: 8, epoch_factor: 0.01, network: wrn-10-1, dropout: 0.0,
learning_rate: 0.05}
"""
COMMAND = ("gd-ray", "run", "grid.yaml", "--scorers", "1", "--keep-models", "all")
FOLDERS = ("--results", "data/results", "--storage", "data/storage")
ATTEMPTS = 5
HANGS_AFTER_S = 900.0
GONE_WITHIN_S = 90.0
"""Agents of Ray wait a minute for a GCS that died."""
NOISE = ("Traceback", "(raylet", "*** ", "Aborted", "Segmentation")
"""What a person should not see in the output of a command."""


class Attempt:
    """One start of the command, as a person would start it in a terminal."""

    def __init__(self, place: Place, number: int) -> None:
        self.out = place.folder / f"attempt-{number}.out"
        command = [*place.command, *COMMAND, *FOLDERS, *place.options]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                command,
                cwd=place.folder,
                env=place.environment,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # a background job ignores it
            )
        OWN.add(self.process.pid)
        self.started = time.monotonic()

    def wait(self, seconds: float) -> int | None:
        """Wait for its exit code; None if it does not end in time."""
        try:
            return self.process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return None

    @property
    def lines(self) -> list[str]:
        return [line.rstrip() for line in self.out.read_text(errors="replace").splitlines() if line.strip()]


def undisturbed(folder: Path, revision: str) -> tuple[Path, float]:
    """Run the command without a fault, once for each revision; return its data and its seconds."""
    kept = folder / f"undisturbed-{revision[:10]}"
    if not (kept / "seconds").exists():
        place = new_place(folder, Place)
        attempt = Attempt(place, 1)
        if code := attempt.wait(2 * HANGS_AFTER_S):
            sys.exit(f"the undisturbed run ended with code {code}: {attempt.lines}")
        seconds = time.monotonic() - attempt.started
        if left := wait_until_gone(set(), GONE_WITHIN_S):
            sys.exit(f"the undisturbed run left {len(left)} processes: {left}")
        place.close()
        shutil.rmtree(kept, ignore_errors=True)
        place.folder.rename(kept)
        (kept / "seconds").write_text(str(seconds))
    return kept / "data", float((kept / "seconds").read_text())


def new_place(folder: Path, kind: type[Place]) -> Place:
    """Make the folder of a run. All have the same path, for it is a part of what they write."""
    shutil.rmtree(folder / "run", ignore_errors=True)
    place = kind(folder / "run")
    (place.folder / "grid.yaml").write_text(GRID)
    return place


def disturb(run: Run, seed: int, folder: Path, revision: str) -> Outcome | None:
    """Inject the fault into a run, repeat the command until it succeeds, and compare; None if it ended before."""
    expected, usual_s = undisturbed(folder, revision)
    with closing(new_place(folder, PLACES.get(run.fault, Place))) as place:
        known = {process.pid for process in descendants()}  # of the hosts
        moment, started = run.moment * usual_s, time.monotonic()
        attempts = [Attempt(place, 1)]
        hit = inject(run, attempts[0].process, place) if attempts[0].wait(moment) is None else None
        while (code := attempts[-1].wait(HANGS_AFTER_S)) and len(attempts) < ATTEMPTS:
            known |= place.prepare()
            attempts.append(Attempt(place, len(attempts) + 1))
        seconds = time.monotonic() - started
        left = wait_until_gone(known, GONE_WITHIN_S, place.stays)
        kill(*left)
        problems = [f"printed {word!r}" for word in NOISE for attempt in attempts if word in "\n".join(attempt.lines)]
        problems += [f"process left: {process.name}" for process in left]
        if code != 0:
            problems.append("hangs" if code is None else f"ends with code {code}")
        else:
            problems += differences(expected / "results", place.path / "results")
            problems += [f"file left: {name}" for name in leftovers(expected, place.path)]
            problems += [f"file left: tmp/{name}" for name in leftovers(expected.with_name("tmp"), place.tmp)]
        keep_failed(place, run, problems)
    if hit is None:
        (expected.parent / "seconds").write_text(str(seconds))  # this is how long it takes now
        if not problems:
            return None
    last = [attempt.lines[-1] if attempt.lines else "" for attempt in attempts]
    return Outcome(
        seed=seed,
        number=run.number,
        fault=run.fault,
        hit=hit or "nothing",
        moment_s=round(moment, 1),
        attempts=len(attempts),
        seconds=round(seconds, 1),
        undisturbed_s=round(usual_s, 1),
        problems="; ".join(problems),
        seen=" | ".join(last[:-1] or last),
        revision=revision[:10],
    )


@contextmanager
def all_ended() -> Iterator[None]:
    """Leave no process, also when a campaign is interrupted."""
    try:
        yield
    finally:
        kill(*descendants())


def keep_failed(place: Place, run: Run, problems: list[str]) -> None:
    """Copy what a failed run has written, with Ray's logs."""
    if problems:
        kept = place.folder.with_name(f"failed-{run.number}-{run.fault}")
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for path in place.folder.glob("*.out"):
            shutil.copy(path, kept)
        shutil.copytree(place.path, kept / "data")
        for logs in place.ray.rglob("logs"):
            if not logs.parent.is_symlink():
                shutil.copytree(logs, kept / "logs" / logs.parent.name, dirs_exist_ok=True)


def selected_faults(text: str) -> list[str]:
    """Return the faults that were asked for and can be made here; name the others."""
    faults = text.split(",") if text else list(LASTS)
    if unknown := [fault for fault in faults if fault not in LASTS]:
        sys.exit(f"unknown faults {', '.join(unknown)}; choose from {', '.join(LASTS)}.")
    missing = [name for name in ("mount", "ip", "unshare", "nsenter", "slurmctld") if not shutil.which(name)]
    if os.geteuid() != 0 or missing:
        why = f"{', '.join(missing)} not found" if missing else "no root"
        skipped = [fault for fault in faults if fault in ROOT]
        print(f"Skipped, for they need root and Slurm ({why}): {', '.join(skipped) or 'nothing'}.")
        faults = [fault for fault in faults if fault not in ROOT]
    return faults


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=len(LASTS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--faults", default="", help="with commas; all without it")
    parser.add_argument("--folder", type=Path, default=Path("build/chaos"))
    options = parser.parse_args()
    faults, folder = selected_faults(options.faults), options.folder.absolute()
    if os.geteuid() == 0 and "GD_CHAOS_MOUNTS" not in os.environ:  # mounts that end with this process
        os.environ["GD_CHAOS_MOUNTS"] = "1"
        os.execvp("unshare", ["unshare", "--mount", sys.executable, "-m", "tests.chaos.campaign", *sys.argv[1:]])
    folder.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    adopt_orphans()
    file, revision = folder / "runs.csv", git_revision() or "unknown"
    with orphans_reaped(OWN), all_ended():
        done = {(outcome.seed, outcome.number, outcome.fault) for outcome in read_outcomes(file)}
        for run in plan(options.seed, options.runs, faults):
            if (options.seed, run.number, run.fault) not in done:
                outcomes = (disturb(run, options.seed, folder, revision) for _ in range(4))
                if outcome := next(filter(None, outcomes), None):
                    add_outcome(file, outcome)
                print(outcome or f"{run.number} {run.fault}: no row, it always ended before the fault", flush=True)
    rows = read_outcomes(file)
    (folder / "table.md").write_text(table(rows))
    print(table(rows))
    return int(any(row.problems for row in rows))


if __name__ == "__main__":
    sys.exit(main())
