"""Engines: a model with its optimizer; they run the backward pass and the step."""
