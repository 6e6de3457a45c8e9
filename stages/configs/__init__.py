"""Pieces of configuration that several stages share, one module per subject."""
