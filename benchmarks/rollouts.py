"""Compare rollout engines: tokens per second of vLLM and of transformers' `generate`.

    python -m benchmarks rollouts [--repeats 5] [--threads 2]

Both sample the same number of tokens from the same random model with the same batch sizes, one
after the other in one process. The model never ends a response, so both do the same work. Prints
one Markdown table: medians, and the ratio of each repeat as median [smallest, largest].
"""

from __future__ import annotations

import tempfile
import time
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from training_core.data.chat import CHAT_TEMPLATES, encode_prompt
from training_core.models import hub, scratch
from training_core.rollout.engine import RolloutEngine, Sampling
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.rollout.vllm_engine import VllmEngine
from training_core.types import Prompt

RESPONSE_TOKENS = 64
BATCHES = (1, 8, 64, 256)


def run(arguments: Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        policy, tokenizer = _make_policy(Path(folder))
        prompts = [_prompt(tokenizer, i) for i in range(max(BATCHES))]
        engines: dict[str, RolloutEngine] = {
            "vllm": VllmEngine(Path(folder), tokenizer, max_tokens=128),
            "transformers": TransformersEngine(policy, tokenizer),
        }
        print("| batch | vLLM tokens/s | transformers tokens/s | ratio |\n|---|---|---|---|")
        for batch in BATCHES:
            print(_row(engines, prompts[:batch], arguments.repeats), flush=True)


def _row(engines: dict[str, RolloutEngine], prompts: list[Prompt], repeats: int) -> str:
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for repeat in range(repeats + 1):
        for name, engine in engines.items():
            rate = _tokens_per_second(engine, prompts, repeat)
            if repeat:  # the first one warms up
                rates[name].append(rate)
    ratios = [a / b for a, b in zip(rates["vllm"], rates["transformers"], strict=True)]
    spread = f"{median(ratios):.2f} [{min(ratios):.2f}, {max(ratios):.2f}]"
    vllm, transformers = (f"{median(rates[name]):,.0f}" for name in ("vllm", "transformers"))
    return f"| {len(prompts)} | {vllm} | {transformers} | {spread} |"


def _tokens_per_second(engine: RolloutEngine, prompts: list[Prompt], seed: int) -> float:
    sampling = Sampling(max_response_tokens=RESPONSE_TOKENS)
    return _timed(
        lambda: engine.generate(
            prompts, sampling, seeds=[seed * 1000 + i for i in range(len(prompts))]
        )
    )


def _timed(generate: Callable[[], Any]) -> float:
    started = time.perf_counter()
    rollouts = generate()
    return sum(len(r.response_ids) for r in rollouts) / (time.perf_counter() - started)


def _make_policy(folder: Path) -> tuple[Any, Any]:
    words = " ".join(f"word{i}" for i in range(2000))
    tokenizer = scratch.make_tokenizer([words], CHAT_TEMPLATES["roles"])
    architecture = scratch.Architecture(
        hidden_size=256, num_layers=4, num_heads=8, intermediate_size=768
    )
    policy = scratch.make_policy(architecture, tokenizer, seed=0)
    with torch.no_grad():  # an end token that is never sampled
        policy.get_input_embeddings().weight[tokenizer.eos_token_id] = 0.0
        policy.get_input_embeddings().weight *= 3
    hub.save(policy, tokenizer, folder)
    return hub.freeze(policy), tokenizer


def _prompt(tokenizer: Any, number: int) -> Prompt:
    return encode_prompt(
        tokenizer, str(number), [{"role": "user", "content": f"word{number} word7 word11"}]
    )
