"""From Parquet results to tables, figures, statistics and a report. Needs neither torch nor Ray."""

from analysis.results import Results, load

__all__ = ["Results", "load"]
