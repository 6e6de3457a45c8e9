"""Losses, data, models, the training loop, rollout engines and rewards.

Needs torch, transformers and safetensors only.
"""
