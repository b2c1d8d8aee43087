"""The report: one HTML file, and its tables and figures as files beside it."""

from analysis.report.write import is_over, watch, write_report

__all__ = ["is_over", "watch", "write_report"]
