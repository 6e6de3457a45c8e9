"""Rehearse a preset on this machine with tiny models and a few rows, through every step."""
