"""From Parquet results to tables, figures and statistics."""
