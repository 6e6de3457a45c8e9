"""Engines hold a model with its optimizer, and make the backward pass and the step."""
