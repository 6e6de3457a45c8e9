"""Checks before the first step of a stage, on the user's own model and rows."""
