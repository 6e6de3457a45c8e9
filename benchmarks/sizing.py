"""Memory of a GPU in common steps, by the estimate of `ratchet plan`. Nothing is measured.

    python -m benchmarks sizing [--gpu-gib 79]

Prints the tables of `docs/sizing.md`. Shapes are those in the config.json of the models. All models
are in bfloat16 with gradient checkpointing, 2,048 tokens per row, 8,192 per micro-batch.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterator, Mapping
from typing import Any

from stages.catalog import STAGES
from stages.sizes.estimates import size_of
from stages.sizes.stage_size import GIB
from training_core.sizes.decoder import Decoder

Fields = Mapping[str, Any]

MODELS = {
    "Qwen2.5 0.5B": Decoder(896, 24, 14, 2, 64, 4864, 151936, is_tied=True, has_qkv_bias=True),
    "Qwen2.5 1.5B": Decoder(1536, 28, 12, 2, 128, 8960, 151936, is_tied=True, has_qkv_bias=True),
    "Qwen2.5 7B": Decoder(3584, 28, 28, 4, 128, 18944, 152064, has_qkv_bias=True),
    "Llama 3 8B": Decoder(4096, 32, 32, 8, 128, 14336, 128256),
    "Llama 3 70B": Decoder(8192, 80, 64, 8, 128, 28672, 128256),
}
MODEL = {"dtype": "bfloat16", "gradient_checkpointing": True}
LORA = {**MODEL, "lora": {"rank": 16}}
QLORA = {**MODEL, "lora": {"rank": 16, "load_in_4bit": True}}
TOKENS = {"max_tokens": 2048, "micro_batch_tokens": 8192}
PROMPTS = {"prompts": {"name": "files", "path": "prompts.jsonl"}}
FROZEN = {"dtype": "bfloat16", "offload": True}
GRPO = {"advantage": {"name": "grpo"}, "group_size": 8, "kl_coef": 0.0}


def _zero(stage: int, **options: bool) -> Fields:
    return {"name": "deepspeed", "zero_stage": stage, **options}


def _trained(model: Fields, engine: Fields | None = None) -> Fields:
    return {"model": model, "training": TOKENS if engine is None else {**TOKENS, "engine": engine}}


def _ppo(model: Fields, engine: Fields | None = None, **fields: Any) -> Fields:
    sampler = {"max_response_tokens": 1024, "max_tokens": 2048, "gpu_memory_fraction": 0.3}
    engines = {} if engine is None else {"engine": engine}
    common = {"model": model, "frozen_models": FROZEN, "rollouts": sampler, **PROMPTS}
    return {**common, **engines, **fields}


TRAINING: Mapping[tuple[str, int], tuple[str, Fields]] = {
    ("SFT", 1): ("sft", _trained(MODEL)),
    ("SFT with LoRA", 1): ("sft", _trained(LORA)),
    ("SFT with QLoRA", 1): ("sft", _trained(QLORA)),
    ("SFT, ZeRO 2", 8): ("sft", _trained(MODEL, _zero(2))),
    ("SFT, ZeRO 3", 8): ("sft", _trained(MODEL, _zero(3))),
    ("SFT, ZeRO 3, optimizer offloaded", 32): (
        "sft",
        _trained(MODEL, _zero(3, offload_optimizer=True)),
    ),
    ("reward model, ZeRO 2", 8): ("reward_model", _trained(MODEL, _zero(2))),
    ("DPO with LoRA", 1): ("dpo", _trained(LORA)),
    ("DPO, ZeRO 2", 8): ("dpo", _trained(MODEL, _zero(2))),
    ("DPO, ZeRO 3, optimizer offloaded", 32): (
        "dpo",
        _trained(MODEL, _zero(3, offload_optimizer=True)),
    ),
}
REINFORCEMENT: Mapping[tuple[str, int], tuple[str, Fields]] = {
    ("GRPO with LoRA", 1): ("ppo", _ppo(LORA, **GRPO)),
    ("GRPO", 1): ("ppo", _ppo(MODEL, **GRPO)),
    ("GRPO, ZeRO 2", 8): ("ppo", _ppo(MODEL, _zero(2), **GRPO)),
    ("PPO, ZeRO 2, optimizer offloaded", 8): (
        "ppo",
        _ppo(MODEL, _zero(2, offload_optimizer=True)),
    ),
    ("PPO, ZeRO 3, optimizer offloaded", 8): (
        "ppo",
        _ppo(MODEL, _zero(3, offload_optimizer=True)),
    ),
}


def run(arguments: Namespace) -> None:
    """Print both tables."""
    for cases in (TRAINING, REINFORCEMENT):
        print("\n".join(table(cases, arguments.gpu_gib)), end="\n\n")


def table(cases: Mapping[tuple[str, int], tuple[str, Fields]], gpu_gib: float) -> Iterator[str]:
    """Yield the lines of a table: GiB that a GPU holds where the step needs most."""
    yield f"| step | GPUs | {' | '.join(MODELS)} |"
    yield f"|---|---|{'---|' * len(MODELS)}"
    for (name, gpus), (stage, fields) in cases.items():
        resources = {"num_workers": gpus, "num_gpus": 1, "gpu_memory_gib": gpu_gib}
        config = STAGES[stage].config.model_validate({**fields, "resources": resources})
        sizes = (size_of(config, decoder) for decoder in MODELS.values())
        cells = (f"{size.together.total / GIB:.1f}" for size in sizes if size is not None)
        yield f"| {name} | {gpus} | {' | '.join(cells)} |"
