"""Objectives: (model, micro-batch) -> Loss(sum, count, metrics); one file per family."""
