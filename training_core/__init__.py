"""Losses, data, models, the training loop, rollout engines and rewards; needs torch, transformers and safetensors only."""
