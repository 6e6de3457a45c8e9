"""Sizes of models and of their training: parameters, memory, FLOPs. Imports no torch."""
