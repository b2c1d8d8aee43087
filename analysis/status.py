"""What is known of each method: what tests check of it, and how much of it has run, counted from trials."""

import pandas as pd

from analysis.aggregate import COMMON, ordered, uses_external
from analysis.evidence import FOLDER as EVIDENCE
from analysis.evidence import result_folders
from analysis.formats import Grid, frame_grid
from analysis.frames import DEFAULTS, trial_frame
from gd_ray import store
from gd_ray.methods import METHODS, second_implementation
from gd_ray.naming import counted
from gd_ray.paper import STREAMS

_ANY_SIZE = ("convention", "precision", "first_task_size")
"""Fields that may differ from the paper's in a trial of full size."""
NOT_YET = "not yet"


def packed_evidence() -> pd.DataFrame:
    """Return the trials that come with gd_ray; one that several of its folders have counts once."""
    folders = [EVIDENCE, *result_folders(EVIDENCE / "more")]
    frames = [trial_frame(store.read_rows(str(own), "trials")[0], None) for own in folders]
    return pd.concat([own for own in frames if len(own)] or frames[:1]).drop_duplicates("trial_id")


def is_full_size(trials: pd.DataFrame) -> "pd.Series[bool]":
    """Return which trials have the paper's data, stream, network and schedule."""
    papers = trials["dataset"].astype(str).map(STREAMS)
    same = (trials["stream"].astype(str) == papers) & (trials["window"] == DEFAULTS["window"])
    full: pd.Series[bool] = papers.notna() & (same | ~uses_external(trials))
    for name in COMMON:
        if name not in _ANY_SIZE:
            full &= trials[name].isna() if DEFAULTS[name] is None else trials[name] == DEFAULTS[name]
    return full


def runs(trials: pd.DataFrame) -> dict[str, str]:
    """Return how much has run of each method: seeds at full size, or else at reduced size."""
    full = is_full_size(trials)
    parts = {"reduced size": trials[~full], "full size": trials[full]}  # the last one counts
    return {
        str(method): f"{size}, {counted(own['seed'].nunique(), 'seed')}"
        for size, part in parts.items()
        for method, own in part.groupby("method", observed=True)
    }


def status_grid(trials: pd.DataFrame) -> Grid:
    """Return the status of the methods of these trials; the packed evidence counts too."""
    run = runs(pd.concat([trials, packed_evidence()]).drop_duplicates("trial_id"))
    rows = [
        (getattr(METHODS.get(name), "title", name), second_implementation(name), run.get(name, NOT_YET))
        for name in ordered(trials["method"].astype(str))
    ]
    header = ("method", "agrees with a second implementation", "run at")
    return frame_grid(pd.DataFrame(rows, columns=header), "Status of the methods, in these trials and gd_ray's own")
