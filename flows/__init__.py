"""What order: Prefect flows, presets and the `ratchet` command line."""
