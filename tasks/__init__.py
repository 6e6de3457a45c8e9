"""Prefect tasks around stages: retry, reuse, lineage, gates and promotion."""
