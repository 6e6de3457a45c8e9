"""A network so small that many runs of `fit` can be compared bit by bit."""

from dataclasses import dataclass

import torch
from torch import nn

from stages.attempt import Attempt
from stages.configs.training_config import (
    TrainingConfig,
)
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink
from stages.training.fit import fit
from stages.training.trained_model import TrainedModel
from training_core.types import Loss

TOTAL = 12


class Wave(nn.Module):
    """A small network with a random part, so that every random number counts."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.dropout = nn.Dropout(0.3)

    def forward(self, x):
        for layer in self.layers:
            x = self.dropout(torch.tanh(layer(x)))
        return x


def wave():
    torch.manual_seed(3)
    return Wave()


def squares(model, x):
    return Loss((model(x) - 1.0).square().sum(), float(len(x)))


def batch_of(step):
    generator = torch.Generator().manual_seed(step)
    return [torch.randn(n, 4, generator=generator) for n in (3, 1)]


def training(**changes):
    settings = {
        "epochs": 1, "batch_size": 1, "save_every_steps": 2, "optimizer": {"learning_rate": 0.05},
        **changes,
    }  # fmt: skip
    return TrainingConfig.model_validate(settings)


EVERYTHING = {
    "optimizer": {"name": "muon", "learning_rate": 0.05, "schedule": "wsd", "min_ratio": 0.1},
    "ema_decay": 0.8,
    "eval_every_steps": 3,
    "best_metric": {"metric": "distance", "better": "min"},
    "export": "best",
}


def context_of(folder, **changes):
    folder.mkdir(parents=True, exist_ok=True)
    return Context(Attempt(folder), FileSink(Attempt(folder), "sft"), **changes)


def distance(model):
    """Measures the model with random numbers of its own."""

    def evaluate():
        assert not model.training
        assert not torch.is_grad_enabled()
        noise = torch.rand(())
        first = model.layers[0].weight
        return {"distance": float((first - 0.2).square().sum()), "noise": float(noise)}

    return evaluate


def run(folder, settings, *, evaluate=distance, **changes):
    model = wave()
    torch.manual_seed(11)
    context = context_of(folder, **changes)
    trained = TrainedModel(model, TOTAL, settings, context)
    fit(trained, squares, batch_of, evaluate=evaluate(model) if evaluate else None)
    return model.state_dict()


def curve(folder):
    return [(line["step"], line["metrics"]) for line in read_jsonl(folder / "metrics.jsonl")]


def assert_same(found, expected):
    for name, weight in expected.items():
        assert torch.equal(found[name], weight), name


@dataclass
class StopAt:
    """Asks to stop after so many questions, which come once per step."""

    left: int

    def __call__(self):
        self.left -= 1
        return self.left <= 0
