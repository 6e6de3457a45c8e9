"""Hugging Face models: load, make, save, and ask them for log-probabilities, scores and values."""
