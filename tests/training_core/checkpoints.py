"""Small checkpoints: of one layer whose weights are the number of the step."""

import torch
from torch import nn

from training_core import checkpoint


def model_of(value):
    """Large enough that its bytes do not fit into one disk block."""
    model = nn.Linear(64, 64)
    nn.init.constant_(model.weight, value)
    return model


def save(root, step, keep=2, **settings):
    state = {"engines": {"m": torch.full((3,), float(step))}, "note": "x", "nested": {"n": [1, 2]}}
    model = {"model": model_of(float(step))}
    return checkpoint.save(root, step, model, state, keep=keep, **settings)


def steps_below(*roots):
    return [c.step for c in checkpoint.complete_checkpoints(roots)]


def weight_of(found):
    model = model_of(0.0)
    state = checkpoint.load(found, {"model": model})
    return model.weight[0, 0].item(), state
