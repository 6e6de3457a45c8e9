"""Estimates of a stage before it runs: memory per GPU, tokens and FLOPs. Imports no torch."""
