"""Results as DataFrames, in one call, also while an experiment still runs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.counts import COUNTS, concatenated, stages_from_counts
from analysis.curves import METRICS, accuracy_matrix, curves
from analysis.files import Filters, once, read_json_files, read_ledgers, read_tables, trial_files
from analysis.trial_file import TrialFile
from gd_ray.errors import UserError, unknown_name
from gd_ray.methods import Method
from gd_ray.spec import YOUNGER_FIELDS, TrialSpec

SPEC = tuple(spec_field.name for spec_field in fields(TrialSpec))
"""The fields of a trial that decide its result."""
METHOD = tuple(f"method_{f.name}" for f in fields(Method) if f.name not in ("name", "title"))
_MACHINE = ("seconds", "status", "device", "threads", "host", "python", "torch", "ray", "numpy", "git_revision")
_INPUTS = {"data_digest": ["dataset", "train_per_class", "test_per_class"], "stream_digest": ["stream"]}
"""Digests of the images that a trial learned from, and the fields that only name them (glyphs are drawn by number)."""
TRIAL_COLUMNS = (
    "trial_id",
    *SPEC,
    "method_title",
    *METHOD,
    *METRICS,
    "final_accuracy",
    *_MACHINE,
    *_INPUTS,
    "experiment",
)
STAGE_COLUMNS = ("stage", "task", "hits", "total", "classes_of_task", "classes_seen")
"""What every metric needs. The other columns of the stages (sizes, seconds, losses) are read when asked for."""
_IDENTITY = ("method", "dataset", "task_size", "seed")


@dataclass(frozen=True)
class Results:
    """What a results folder holds. Frames are never changed by what reads them."""

    address: str
    trials: pd.DataFrame
    """A row per finished trial: its whole spec, ACC and FGT in [0, 1], where it ran, and whether it collapsed."""
    experiments: dict[str, tuple[str, ...]]
    """The trials whose files each experiment holds, or that its ledger names."""
    expected: pd.DataFrame
    """A row per trial of the ledgers: what was started into this folder, and its state."""
    storage: tuple[str, ...]
    """The storage folders that the ledgers name."""
    class_names: dict[str, tuple[str, ...]]
    """Of each data set, where the results tell them."""
    counts: pd.DataFrame
    """The hits and totals that the rows of finished trials hold; the stages of these need no other file."""
    stage_files: tuple[TrialFile, ...]
    stage_columns: tuple[str, ...] | None
    """The columns of the stages to read; None for all."""
    unreadable: tuple[TrialFile, ...] = ()
    """Files of trials that cannot be read. Stage files of trials whose counts are known are not even looked at."""
    met_unreadable: dict[TrialFile, None] = field(default_factory=dict)
    """Files that `rows` could not read so far."""
    commands: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """What was typed to run each experiment, where its ledger tells."""

    @cached_property
    def stages(self) -> pd.DataFrame:
        """A row per (trial, stage, task), of unfinished trials too; read at the first use."""
        return self._stages_and_unreadable[0]

    @cached_property
    def _stages_and_unreadable(self) -> tuple[pd.DataFrame, list[TrialFile]]:
        files, known = self.stage_files, pd.DataFrame()
        if self.stage_columns is not None and set(self.stage_columns) <= set(STAGE_COLUMNS) and len(self.counts):
            told = set(self.counts["trial_id"])
            files = tuple(file for file in files if file.trial_id not in told)
            known = stages_from_counts(self.counts)[["trial_id", "experiment", *self.stage_columns]]
        stages, unreadable = read_tables(self.address, files, self.stage_columns)
        for name in self.stage_columns or ():
            if len(stages) and name not in stages and name not in STAGE_COLUMNS:
                every = read_tables(self.address, files[:1])[0].columns
                raise unknown_name("column of the stages", name, every)
        stages = _with_columns(concatenated(known, stages), ("trial_id", *(self.stage_columns or STAGE_COLUMNS)))
        unfinished = set(self.unfinished)
        others = [file for file in self.stage_files if file.trial_id in unfinished]
        return _with_identity(stages, self.trials, read_tables(self.address, others, _IDENTITY)[0]), unreadable

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader should know of these results, in sentences."""
        unreadable = dict.fromkeys([*self.unreadable, *self._stages_and_unreadable[1], *self.met_unreadable])
        return tuple(_notes(self.trials, len(self.unfinished), self.expected, list(unreadable)))

    @cached_property
    def confusions(self) -> pd.DataFrame:
        """(trial, stage, true class, predicted class, count) of all trials; read at the first use."""
        return self.rows("confusions")

    @cached_property
    def samples(self) -> pd.DataFrame:
        """What Algorithm 2 chose, in all trials; read at the first use."""
        return self.rows("samples")

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Accuracy, ACC and both FGT of every trial after every stage, from the counts."""
        return curves(self.stages)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Trials that have stages but are not finished."""
        done = set(self.trials["trial_id"].to_numpy())
        return tuple(file.trial_id for file in self.stage_files if file.trial_id not in done)

    def accuracy_matrix(self, trial_id: str) -> NDArray[np.float64]:
        """accuracy[s, r] of a trial: after stage s+1 on task r+1, NaN where the task was not yet learned."""
        rows = self.stages[self.stages["trial_id"] == trial_id]
        if rows.empty:
            raise UserError(f"trial {trial_id!r} is not in results {self.address!r}; take an id of results.trials.")
        return accuracy_matrix(rows)

    def rows(
        self,
        kind: str,
        trials: Sequence[str] | None = None,
        filters: Filters | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Rows of 'stages', 'confusions' or 'samples', of some trials only; no other file is opened."""
        known = {trial for ids in self.experiments.values() for trial in ids}
        wanted = known if trials is None else set(trials)
        finished = dict(zip(self.trials["trial_id"].astype(str), self.trials["experiment"].astype(str), strict=True))
        files = [file for file in once(trial_files(self.address, kind), finished) if file.trial_id in wanted]
        frame, unreadable = read_tables(self.address, files, columns, filters)
        self.met_unreadable.update(dict.fromkeys(unreadable))
        return frame


def load(
    path: str,
    *,
    experiment: str | None = None,
    filters: Filters | None = None,
    stage_columns: Sequence[str] | None = STAGE_COLUMNS,
) -> Results:
    """Everything in a results folder, local or an address such as s3://bucket/results.

    `filters` are conditions on the trials, such as [("method", "in", ["gd", "gd+ext"])]; stages, confusions and
    samples of other trials are then not read at all. `stage_columns` names columns of the stages to read besides those
    that every metric needs; None reads them all.
    """
    address = str(path)
    found = trial_files(address, "trials", experiment)
    of_stages = trial_files(address, "stages", experiment)
    ledgers = read_ledgers(address)
    if not found and not of_stages:
        names = sorted({file.experiment for file in trial_files(address, "stages")} | set(ledgers))
        if not names:
            raise UserError(
                f"results {address!r} holds no results; give the folder that 'gd-ray run --results' wrote to."
            )
        if experiment is not None and experiment not in ledgers:
            raise UserError(f"experiment {experiment!r} is not in results {address!r}; it holds: {', '.join(names)}.")
    rows = once(found)
    done = {file.trial_id: file.experiment for file in rows}
    started = {file.trial_id for file in of_stages}
    trials, unreadable = read_tables(address, rows, filters=filters)
    trials, counts = _without_counts(_with_younger(_with_columns(trials, (*TRIAL_COLUMNS, *COUNTS))))
    if filters is not None:
        kept = set(trials["trial_id"])
        found = [file for file in found if file.trial_id in kept]
        of_stages = [file for file in of_stages if file.trial_id in kept]
    stage_files = tuple(once(of_stages, done))
    experiments: dict[str, list[str]] = {}
    for file in [*found, *of_stages]:
        experiments.setdefault(file.experiment, []).append(file.trial_id)
    ledgers = {name: ledgers[name] for name in ledgers if experiment in (None, name)}
    return Results(
        address=address,
        trials=trials.assign(collapsed=_collapsed(trials, _final_accuracy(address, trials, stage_files))),
        experiments={name: tuple(dict.fromkeys(ids)) for name, ids in experiments.items()},
        expected=_expected(address, ledgers, set(done) - {file.trial_id for file in unreadable}, started),
        storage=tuple(
            dict.fromkeys(str(run["storage"]) for runs in ledgers.values() for run in runs if "storage" in run)
        ),
        class_names={
            name: tuple(map(str, content.get("names", ())))
            for name, content in read_json_files(address, "classes").items()
        },
        counts=counts,
        stage_files=stage_files,
        stage_columns=None if stage_columns is None else tuple(dict.fromkeys([*STAGE_COLUMNS, *stage_columns])),
        unreadable=tuple(unreadable),
        commands={
            name: tuple(dict.fromkeys(str(run["command"]) for run in runs if run.get("command")))
            for name, runs in ledgers.items()
        },
    )


def _with_columns(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """The frame with every column that the rest of this package reads; what an older version lacks is missing."""
    missing = {name: pd.Series(index=frame.index, dtype="object") for name in columns if name not in frame}
    return frame.assign(**missing) if missing else frame


def _with_younger(trials: pd.DataFrame) -> pd.DataFrame:
    """Fields that some trials are too old to have, with the value they had then."""
    filled = {name: trials[name].astype("object").fillna(old) for name, old in YOUNGER_FIELDS.items()}
    return trials.assign(**{name: column.astype("category") for name, column in filled.items()})


def _without_counts(trials: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The trials, and the counts of those that are young enough to tell them."""
    told = trials.loc[trials["hits"].notna(), ["trial_id", "experiment", "task_size", *COUNTS]]
    return trials.drop(columns=list(COUNTS)), told


def _with_identity(stages: pd.DataFrame, trials: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """The stages with each trial's method, data set, task size and seed, taken from rows that have them."""
    if stages.empty or "method" in stages:
        return _with_columns(stages, _IDENTITY)
    known = [frame[["trial_id", *_IDENTITY]] for frame in (trials, others) if len(frame)]
    rows = pd.concat([frame.astype({"trial_id": str, "method": str, "dataset": str}) for frame in known])
    ids = stages["trial_id"].cat
    rows = rows.drop_duplicates("trial_id").set_index("trial_id").reindex(ids.categories)
    rows = rows.astype({"method": "category", "dataset": "category", "task_size": "int32", "seed": "int64"})
    return stages.assign(**{name: rows[name].take(ids.codes.to_numpy()).array for name in _IDENTITY})


def _final_accuracy(address: str, trials: pd.DataFrame, stages: Sequence[TrialFile]) -> NDArray[np.float64]:
    """Of each trial over all classes after its last stage; from the stages of trials that are too old to tell it."""
    told: NDArray[np.float64] = trials["final_accuracy"].to_numpy(float, copy=True)
    silent = np.isnan(told)
    if silent.any():
        names = set(trials["trial_id"][silent])
        rows = read_tables(address, [file for file in stages if file.trial_id in names], STAGE_COLUMNS)[0]
        if len(rows):
            last = rows[rows["stage"] == rows.groupby("trial_id", observed=True)["stage"].transform("max")]
            sums = last.groupby("trial_id", observed=True)[["hits", "total"]].sum()
            told[silent] = (sums["hits"] / sums["total"]).reindex(trials["trial_id"][silent]).to_numpy()
    return told


def _collapsed(trials: pd.DataFrame, final_accuracy: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Trials whose last model is no better than guessing, or whose metrics are no numbers."""
    guessing = final_accuracy <= 1 / trials["num_classes"].to_numpy(float)
    finite = np.isfinite(trials[list(METRICS)].to_numpy(float)).all(axis=1)
    collapsed: NDArray[np.bool_] = guessing | ~finite
    return collapsed


def _expected(
    address: str, ledgers: dict[str, list[dict[str, Any]]], done: set[str], started: set[str]
) -> pd.DataFrame:
    """The trials of the ledgers with their state: done, failed, started or waiting."""
    columns = ["experiment", "trial_id", "method", "dataset", "task_size", "seed", "stages", "state", "error", "log"]
    known = {
        (name, row["trial_id"]): {"experiment": name, **{key: row.get(key) for key in columns[1:7]}}
        for name, runs in ledgers.items()
        for run in runs
        for row in run.get("trials", [])
        if isinstance(row, dict) and "trial_id" in row
    }
    rows = list(known.values())
    failures = read_json_files(address, "failures")
    for row in rows:
        failure = failures.get(str(row["trial_id"]), {})
        row["error"], row["log"] = failure.get("error"), failure.get("log")
        if row["trial_id"] in done:
            row["state"], row["error"], row["log"] = "done", None, None
        elif failure:
            row["state"] = "failed"
        else:
            row["state"] = "started" if row["trial_id"] in started else "waiting"
    return pd.DataFrame(rows, columns=columns)


def _notes(trials: pd.DataFrame, running: int, expected: pd.DataFrame, unreadable: list[TrialFile]) -> list[str]:
    notes = []
    if unreadable:
        notes.append(unreadable_note(unreadable))
    if running:
        notes.append(
            f"{_trials(running)} not finished: the stages so far are among the stages and trials, but not in "
            f"tables, figures and statistics."
        )
    waiting = int((expected["state"] == "waiting").sum())
    if waiting:
        notes.append(f"{_trials(waiting)} not started yet.")
    failed = int((expected["state"] == "failed").sum())
    if failed:
        notes.append(f"{counted(failed, 'trial')} failed; the same command goes on after the last stage.")
    for digest, names in _INPUTS.items():
        kinds = trials.groupby(names, observed=True, dropna=False)[digest].nunique()
        several = kinds[kinds > 1].groupby(names[0], observed=True).max()
        notes += [
            f"Trials of {names[0]} {value!s} learned from different images under that name ({number} kinds, see "
            f"{digest}): they should not be averaged."
            for value, number in several.items()
        ]
    unknown = sorted(set(trials.columns) - {*TRIAL_COLUMNS, "collapsed"})
    if unknown:
        notes.append(
            f"The trials have columns that this version does not know, so that it cannot tell whether they matter: "
            f"{', '.join(unknown)}. They are kept in the frames and used nowhere."
        )
    needed = [name for name in (*SPEC, *METRICS) if name not in ("train_per_class", "test_per_class")]
    lacking = [name for name in needed if len(trials) and trials[name].isna().all()]
    if lacking:
        notes.append(f"The trials lack the columns {', '.join(lacking)}; what needs them is left out.")
    return notes


def unreadable_note(files: Sequence[TrialFile]) -> str:
    names = ", ".join(file.path for file in files[:3]) + (", …" if len(files) > 3 else "")
    return (
        f"{counted(len(files), 'file')} cannot be read and {'is' if len(files) == 1 else 'are'} left out: {names}. "
        f"Delete what cannot be read and run the same command again."
    )


def _trials(number: int) -> str:
    return "1 trial is" if number == 1 else f"{number} trials are"


def counted(number: int, noun: str) -> str:
    """A number with its noun."""
    return f"1 {noun}" if number == 1 else f"{number} {noun}s"
