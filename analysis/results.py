"""Results as DataFrames, in one call, also while an experiment still runs."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analysis.curves import accuracy_matrix, curves
from analysis.frames import TRIAL_COLUMNS, spec_frame, to_frame, trial_frame, with_columns, with_fields
from gd_ray import store
from gd_ray.errors import UserError, unknown_name
from gd_ray.naming import counted, trial_names
from gd_ray.store import Filters

STAGE_COLUMNS = ("stage", "task", "hits", "total", "classes_of_task", "classes_seen")
"""What every metric needs. Other columns of the stages (sizes, seconds, losses) are read on request."""
_STATE_COLUMNS = ("experiment", "trial_id", "state", "detail")
_DIGESTS = {"data_digest": ["dataset", "train_per_class", "test_per_class"], "stream_digest": ["stream"]}
"""Digests of the images that a trial learned from, and the fields that refer to them (glyphs are drawn by number)."""


@dataclass(frozen=True)
class Results:
    """The content of a results folder. Every frame has the column trial_id, and all but trials and specs, which have
    every field, also method, data set, task size, seed and all other fields that vary: group by those as well."""

    address: str
    trials: pd.DataFrame
    """A row per finished trial: its whole spec, ACC and FGT in [0, 1], where it ran, and whether it collapsed."""
    experiments: dict[str, tuple[str, ...]]
    """The trials of each experiment, finished or not."""
    states: pd.DataFrame
    """A row per trial of each experiment: waiting, running, done or failed, and the stage or error."""
    specs: pd.DataFrame
    """The fields of every known trial, finished or not, by trial_id."""
    storage: tuple[str, ...]
    """The storage folders of the runs."""
    commands: dict[str, tuple[str, ...]]
    """The command lines that ran each experiment."""
    class_names: dict[str, tuple[str, ...]]
    """The names of each data set's classes."""
    stage_columns: tuple[str, ...] | None
    """The columns of the stages to read; None for all."""
    selected: frozenset[str] | None
    """The trials whose stages, confusions and samples are read; None for all."""
    unreadable: dict[str, None] = field(default_factory=dict)
    """Files that could not be read so far."""

    @cached_property
    def stages(self) -> pd.DataFrame:
        """A row per (trial, stage, task), of unfinished trials too, with the spec fields that vary."""
        frame = self.rows("stages", columns=self.stage_columns)
        for name in self.stage_columns or ():
            if len(frame) and name not in frame:
                known = self.rows("stages", [str(frame["trial_id"].iloc[0])]).columns
                raise unknown_name("column of the stages", name, known)
        frame = with_columns(frame, ("trial_id", *(self.stage_columns or STAGE_COLUMNS)))
        return with_fields(frame, self.specs)

    @cached_property
    def names(self) -> dict[str, str]:
        """A name for every known trial, from its method, its seed and the fields that vary here."""
        return dict(zip(self.specs.index, trial_names(self.specs.to_dict("records")), strict=True))  # type: ignore[arg-type]

    @cached_property
    def curves(self) -> pd.DataFrame:
        """Accuracy, ACC and both FGT of every trial after every stage, from the counts."""
        return with_fields(curves(self.stages), self.specs)

    @cached_property
    def confusions(self) -> pd.DataFrame:
        """(trial, stage, true class, predicted class, count) of all trials; read at the first use."""
        return with_fields(self.rows("confusions"), self.specs)

    @cached_property
    def samples(self) -> pd.DataFrame:
        """The images that each stage sampled from its stream; read at the first use."""
        return with_fields(self.rows("samples"), self.specs)

    @property
    def unfinished(self) -> tuple[str, ...]:
        """Trials that have stages but are not finished."""
        done = set(self.trials["trial_id"].astype(str))
        return tuple(trial for trial in self.stages["trial_id"].unique() if trial not in done)

    def accuracy_matrix(self, trial_id: str) -> NDArray[np.float64]:
        """Return accuracy[s, r] of a trial: after stage s+1 on task r+1, NaN for tasks not yet learned."""
        rows = self.stages[self.stages["trial_id"] == trial_id]
        if rows.empty:
            raise UserError(f"trial {trial_id!r} is not in results {self.address!r}; take an id of results.trials.")
        return accuracy_matrix(rows)

    def rows(
        self,
        kind: str,
        trials: Collection[str] | None = None,
        filters: Filters | None = None,
        columns: Sequence[str] | None = None,
    ) -> pd.DataFrame:
        """Read rows of 'stages', 'confusions' or 'samples', of some trials only; text becomes categories."""
        wanted = self.selected if trials is None else trials
        table, unreadable = store.read_rows(self.address, kind, wanted, columns=columns, filters=filters)
        self.unreadable.update(dict.fromkeys(unreadable))
        return to_frame(table)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences on what is missing, unfinished or not comparable in these results."""
        counts = self.states.drop_duplicates("trial_id")["state"].value_counts()
        notes = [unreadable_note(list(self.unreadable))] if self.unreadable else []
        open_now = [f"{counts[state]} {state}" for state in ("running", "waiting") if state in counts]
        notes += [f"Trials not finished yet: {', '.join(open_now)}."] if open_now else []
        for state in ("stopped", "failed"):
            if state in counts:
                what = f"{counted(counts[state], 'trial')} {state}"
                notes.append(f"{what}; run the same command to resume after the last stage.")
        if self.unfinished:
            notes.append(
                f"Stages of {counted(len(self.unfinished), 'unfinished trial')} are among the stages and trials, but "
                f"not in tables, figures and statistics."
            )
        for digest, names in _DIGESTS.items():
            kinds = self.trials.groupby(names, observed=True, dropna=False)[digest].nunique()
            several = kinds[kinds > 1].groupby(names[0], observed=True).max()
            notes += [
                f"Trials of {names[0]} {value!s} learned from different images under that name ({number} kinds, see "
                f"{digest}): do not average them."
                for value, number in several.items()
            ]
        if unknown := sorted(set(self.trials.columns) - {*TRIAL_COLUMNS, "collapsed"}):
            notes.append(
                f"Columns of the trials that this version does not know and does not use: {', '.join(unknown)}."
            )
        return tuple(notes)


def load(
    path: str,
    *,
    experiment: str | None = None,
    filters: Filters | None = None,
    stage_columns: Sequence[str] | None = STAGE_COLUMNS,
) -> Results:
    """Load a results folder, local or an address such as s3://bucket/results.

    `filters` are conditions on the trials, such as [("method", "in", ["gd", "gd+ext"])]; stages, confusions and
    samples of other trials are then not read at all. `stage_columns` names columns of the stages to read besides those
    that every metric needs; None reads them all.
    """
    address = str(path)
    selections = store.read_selections(address)
    names = sorted({selection.experiment for selection in selections})
    if experiment is not None:
        selections = [selection for selection in selections if selection.experiment == experiment]
        if names and not selections:
            raise UserError(f"experiment {experiment!r} is not in results {address!r}; it holds: {', '.join(names)}.")
    experiments = {
        name: tuple(dict.fromkeys(str(row["trial_id"]) for s in selections if s.experiment == name for row in s.trials))
        for name in dict.fromkeys(selection.experiment for selection in selections)
    }
    selected = None if experiment is None else frozenset(experiments.get(experiment, ()))
    table, unreadable = store.read_rows(address, "trials", selected)
    trials = trial_frame(table, filters)
    if filters is not None:
        selected = frozenset(trials["trial_id"].astype(str))
    if not (names or unreadable or len(trials) or filters or len(store.read_rows(address, "stages", columns=[])[0])):
        raise UserError(f"results {address!r} holds no results; give the folder that 'gd-ray run --results' wrote to.")
    states = store.trial_states(address, selections)
    specs = spec_frame(trials, pd.DataFrame([row for selection in selections for row in selection.trials]))
    return Results(
        address=address,
        trials=trials,
        experiments=experiments,
        states=with_fields(pd.DataFrame(map(vars, states), columns=_STATE_COLUMNS), specs),
        specs=specs,
        storage=tuple(dict.fromkeys(selection.storage for selection in selections if selection.storage)),
        commands={
            name: tuple(dict.fromkeys(s.command for s in selections if s.experiment == name and s.command))
            for name in experiments
        },
        class_names=store.read_class_names(address),
        stage_columns=None if stage_columns is None else tuple(dict.fromkeys([*STAGE_COLUMNS, *stage_columns])),
        selected=selected,
        unreadable=dict.fromkeys(unreadable),
    )


def unreadable_note(files: Sequence[str]) -> str:
    """Return the note on files that cannot be read."""
    names = ", ".join(files[:3]) + (", …" if len(files) > 3 else "")
    return (
        f"{counted(len(files), 'file')} cannot be read and {'is' if len(files) == 1 else 'are'} left out: {names}. "
        f"Restore what cannot be read from a copy, or delete the trial's files and run the same command again."
    )
