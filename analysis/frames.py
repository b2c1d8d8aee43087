"""DataFrames of trials from the store's rows: known columns, younger fields filled, conditions applied."""

from collections.abc import Sequence
from dataclasses import MISSING, fields
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from analysis.curves import METRICS
from gd_ray.errors import unknown_name
from gd_ray.methods import Method
from gd_ray.spec import TrialSpec
from gd_ray.store import Filters

DEFAULTS: dict[str, Any] = {f.name: f.default for f in fields(TrialSpec)}
SPEC = tuple(DEFAULTS)
"""The fields of a trial that decide its result."""
_IDENTITY = ("method", "dataset", "task_size", "seed")
_METHOD_DEFAULTS = {f"method_{f.name}": f.default for f in fields(Method) if f.name not in ("name", "title")}
METHOD = tuple(_METHOD_DEFAULTS)
_FILLED = {**DEFAULTS, **_METHOD_DEFAULTS, "method": MISSING, "method_options": "{}"}
VERSIONS = (
    *("host", "device", "threads", "cpu_model", "gpu", "driver", "cuda", "cudnn", "arithmetic"),
    *("python", "torch", "ray", "numpy", "git_revision"),
)
TRIAL_COLUMNS = (
    *("trial_id", *SPEC, "method_title", *METHOD, *METRICS, "final_accuracy", "seconds", *VERSIONS),
    *("peak_memory", "data_digest", "stream_digest", "old_trial_id"),
)


def to_frame(table: pa.Table) -> pd.DataFrame:
    """Return the rows of a table; text becomes categories."""
    frame: pd.DataFrame = table.to_pandas(strings_to_categorical=True, split_blocks=True, self_destruct=True)
    return frame


def trial_frame(table: pa.Table, filters: Filters | None) -> pd.DataFrame:
    """Return the trials for which all conditions hold, by trial_id."""
    trials = with_defaults(with_columns(to_frame(table), TRIAL_COLUMNS))
    if filters:
        for name, _, _ in filters:
            if name not in trials:
                raise unknown_name("column of a filter", name, trials.columns)
        columns = trials[list({name for name, _, _ in filters})]
        rows = pa.Table.from_pandas(columns.assign(row=np.arange(len(trials))), preserve_index=False)
        trials = trials.iloc[rows.filter(pq.filters_to_expression([list(filters)]))["row"].to_numpy()]
    trials = trials.sort_values("trial_id", key=lambda ids: ids.astype(str), ignore_index=True)
    return trials.assign(collapsed=_collapsed(trials))


def spec_frame(trials: pd.DataFrame, planned: pd.DataFrame) -> pd.DataFrame:
    """Return the fields of finished and of planned trials, by trial_id."""
    columns = ["trial_id", *SPEC, "method_title", *METHOD]
    frames = [with_columns(frame, columns)[columns].astype("object") for frame in (trials, planned)]
    frame = pd.concat([part for part in frames if len(part)] or frames[:1]).drop_duplicates("trial_id")
    frame = with_defaults(frame.set_index("trial_id").infer_objects())
    return frame.astype({"method": "category", "dataset": "category"})


def with_fields(frame: pd.DataFrame, specs: pd.DataFrame) -> pd.DataFrame:
    """Add the fields that distinguish trials: method, data set, task size, seed, and all others that vary."""
    names = [name for name in SPEC if name in _IDENTITY or specs[name].nunique(dropna=False) > 1]
    if frame.empty:
        return with_columns(frame, names)
    ids = frame["trial_id"].astype("category").cat
    own = specs.reindex(ids.categories)
    codes = ids.codes.to_numpy()
    return frame.assign(**{name: own[name].take(codes).array for name in names})


def with_columns(frame: pd.DataFrame, columns: Sequence[str]) -> pd.DataFrame:
    """Add empty columns for those that a frame lacks."""
    missing = {name: pd.Series(index=frame.index, dtype="object") for name in columns if name not in frame}
    return frame.assign(**missing) if missing else frame


def with_defaults(frame: pd.DataFrame) -> pd.DataFrame:
    """Fill fields that are younger than a trial with their default, which is what the trial had."""
    filled = {}
    for name, default in _FILLED.items():
        if name in frame and default not in (None, MISSING) and frame[name].isna().any():
            column = frame[name].astype("object").fillna(default)
            filled[name] = column.astype("category" if isinstance(default, str) else type(default))
    return frame.assign(**filled) if filled else frame


def _collapsed(trials: pd.DataFrame) -> NDArray[np.bool_]:
    """Mark trials whose last model is no better than guessing, or whose metrics are not finite."""
    guessing = trials["final_accuracy"].to_numpy(float) <= 1 / trials["num_classes"].to_numpy(float)
    finite = np.isfinite(trials[list(METRICS)].to_numpy(float)).all(axis=1)
    collapsed: NDArray[np.bool_] = guessing | ~finite
    return collapsed
