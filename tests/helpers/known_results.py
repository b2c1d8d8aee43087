"""Results whose every statistic is known in closed form, and their tables."""

import analysis
from analysis.aggregate import settings
from analysis.tables import all_tables
from gd_ray.spec import TrialSpec
from tests.helpers.made import made_spec, write_made

# Right of 100 after stage 2 on task 1 and on task 2; task 1 just learned has 90. So ACC is their mean, FGT by the
# text half of what task 1 lost, and FGT as released half of that. Seed s adds s to both.
LEVELS = {"oracle": (80, 90), "baseline": (30, 90), "gd": (50, 80), "gd+ext": (60, 80)}


def write_known(folder, method, seed, level, **changes):
    old, new = level
    spec = made_spec(method, seed, **changes)
    return write_made(str(folder), "x", spec, lambda s, r: 90 if s == 1 else (old if r == 1 else new) + seed)


def tables_of(folder):
    return {table.layout.key: table for table in all_tables(settings(analysis.load(str(folder))))}


def cell(table, method, metric):
    return table.frame[(table.frame["method"] == method) & (table.frame["metric"] == metric)].iloc[0]


def papers(method, seed, hits, **changes):
    """A trial of the paper's settings, and its right test images."""
    return TrialSpec(method=method, seed=seed, task_size=20, **changes), lambda s, r: hits
