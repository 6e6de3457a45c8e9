"""Under ZeRO 3 no process of a training stage has a whole model between loading and saving."""

from __future__ import annotations

from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from stages.attempt import Attempt
from stages.catalog import find_stage
from stages.contract import Context
from stages.files import read_jsonl, write_jsonl
from stages.runtime.metric_files import FileSink, NullSink
from tests.training_core.two_processes import together
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.models import hub

pytest.importorskip("deepspeed")
pytestmark = pytest.mark.slow

CAFE = {"name": "cafe", "size": 21}
HELDOUT = {"name": "cafe", "split": "heldout", "size": 7}
EVALUATED = {"eval_every_steps": 2}
BEST = {  # the first evaluation, because the loss falls
    **EVALUATED,
    "best_metric": {"metric": "heldout_loss", "better": "max"},
    "export": "best",
}
RUNS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "sft": ("sft", BEST, {}),
    "reward_model": ("reward_model", EVALUATED, {}),
    "process_reward": ("process_reward", EVALUATED, {}),
    "dpo": ("dpo", EVALUATED, {}),
    "dpo_adapter": ("dpo", EVALUATED, {"model": {"lora": {"rank": 4, "alpha": 8}}}),
    "kto": ("kto", EVALUATED, {}),
    "distillation": ("distillation", EVALUATED, {}),
}
"""Name of the run -> stage, settings of `training`, other settings."""


def config_of(start: Path, name: str, engine: dict[str, Any]) -> Any:
    stage, training, settings = RUNS[name]
    data, heldout = CAFE, HELDOUT
    if stage == "process_reward":
        data = heldout = {"name": "files", "path": str(start / "steps.jsonl")}
    plain = {"epochs": 1, "batch_size": 5, "max_tokens": 64, "micro_batch_tokens": 128}
    optimizer = {"learning_rate": 3e-3}
    return find_stage(stage).config.model_validate(
        {
            "data": data,
            "eval_data": heldout,
            **settings,
            "training": {**plain, "optimizer": optimizer, **training, "engine": engine},
        }
    )


def run(
    start: Path, folder: Path, name: str, engine: dict[str, Any], dist_info: DistInfo
) -> dict[str, float]:
    """Run one stage on this rank, and return its metrics."""
    attempt = Attempt(folder / name / "a1")
    attempt.directory.mkdir(parents=True, exist_ok=True)
    sink = FileSink(attempt, name) if dist_info.is_first else NullSink()
    inputs = dict.fromkeys(("policy", "reference"), start / "policy")
    if "adapter" not in name:
        inputs["reference"] = start / "other"
    context = Context(attempt, sink, dist_info=dist_info)
    given = inputs | {"teacher": start / "other"}
    module = import_module(f"stages.{RUNS[name][0]}")
    result = module.run(config_of(start, name, engine), given, context)
    return dict(result.metrics)


def divided(start: Path, folder: Path, dist_info: DistInfo) -> dict[str, dict[str, float]]:
    """Run every stage on this rank; a gathering of whole weights fails."""
    from training_core.engine.deepspeed_weights import TwinWeights

    def refuse(*_: object) -> None:
        raise AssertionError("all weights were gathered")

    TwinWeights.gathered = TwinWeights.fill = refuse  # this process ends with this function
    engine = {"name": "deepspeed", "zero_stage": 3}
    return {name: run(start, folder, name, engine, dist_info) for name in RUNS}


@pytest.fixture(scope="module")
def start(make_policy, tokenizer, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("start")
    for name, seed in (("policy", 0), ("other", 1)):
        hub.save(make_policy(seed=seed), tokenizer, folder / name)
    drinks = ("tea", "coffee", "cake")
    rows = [
        {
            "prompt": f"one {drinks[i % 3]} please",
            "completions": [f"one {drinks[i % 3]} .", f"two {drinks[i * i % 3]} ."],
            "labels": [1, int(i * i % 3 == i % 3)],
        }
        for i in range(21)
    ]
    write_jsonl(folder / "steps.jsonl", rows)
    return folder


@pytest.fixture(scope="module")
def of_two(start) -> list[dict[str, dict[str, float]]]:
    """Metrics of every run, by rank."""
    return together(2, start / "two", partial(divided, start, start / "two"))


@pytest.mark.parametrize("name", RUNS)
def test_two_ranks_with_divided_weights_make_the_model_of_one(start, of_two, name):
    engine = {"name": "torch"}
    alone = run(start, start / "one", name, engine, SINGLE_PROCESS)
    assert of_two[0][name] == pytest.approx(alone, rel=2e-3, abs=2e-4)
    assert of_two[1][name] == pytest.approx(alone, rel=2e-3, abs=2e-4)
    curves = [
        [line["metrics"] for line in read_jsonl(start / size / name / "a1/metrics.jsonl")]
        for size in ("one", "two")
    ]
    assert len(curves[0]) == len(curves[1]) > 4
    for mine, other in zip(*curves, strict=True):
        assert mine == pytest.approx(other, rel=2e-3, abs=2e-4, nan_ok=True)
    expected, found = (
        load_file(start / size / name / "a1/artifact/model.safetensors") for size in ("one", "two")
    )
    assert expected.keys() == found.keys()
    for weight in expected:
        torch.testing.assert_close(found[weight], expected[weight], rtol=1e-3, atol=1e-3)
