"""Running a stage: its process, workers, store, key, files and the Ray cluster."""
