"""How safely: Prefect tasks for retry, reuse, lineage, gates and promotion."""
