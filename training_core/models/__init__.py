"""Hugging Face models: load, create, save, and compute log-probabilities, scores and values."""
