"""Estimates of training memory against what torch really holds.

    python -m benchmarks sizes [small] [large] [workers] [--threads 2]

`tensors` is the largest number of bytes in tensors that are alive. Small models: two real optimizer
steps of two micro-batches each, on the CPU. Llama 3 8B: two steps with fake tensors, which have
shapes but no memory, with the chunks and the optimizer kernel of a GPU; for them transformers makes
an attention mask. Two workers: DeepSpeed on
the CPU, with its buffers of 500 million elements. The error is estimate / measured - 1. Prints a
Markdown table of each part.
"""

from __future__ import annotations

import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from tests.training_core.sizes.measuring import (
    TensorBytes,
    measured_peak,
    model_of,
    sharded_peak,
)
from tests.training_core.sizes.published_shapes import LLAMA_3_8B
from tests.training_core.two_processes import together
from training_core.algorithms import logprobs
from training_core.engine import torch_engine
from training_core.engine.optimizers import OPTIMIZERS
from training_core.engine.torch_engine import TorchEngine
from training_core.models.options import LoadOptions, LoraOptions
from training_core.models.parts import backbone, output_head, scalar_head
from training_core.sizes.decoder import HeadKind
from training_core.sizes.decoder_config import decoder_of
from training_core.sizes.model_use import ModelUse, Sharding
from training_core.sizes.training_memory import MicroBatchSize, phases

BF16: dict[str, Any] = {"dtype": "bfloat16"}
SMALL = {
    "model_type": "llama",
    "hidden_size": 256,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "intermediate_size": 768,
    "vocab_size": 8000,
}
WIDE = {**SMALL, "hidden_size": 512, "num_hidden_layers": 4, "intermediate_size": 1536}
QWEN = {**SMALL, "model_type": "qwen2", "tie_word_embeddings": True, "vocab_size": 32000}
LORA = LoraOptions(rank=16)

PHASES = ("backward pass", "optimizer step")

Case = tuple[str, dict[str, Any], ModelUse, int, int]
"""Name of the model, its config.json, how it is trained, rows, tokens per row."""


def cases() -> list[Case]:
    """Return the small cases."""

    def case(
        name: str, fields: dict[str, Any], options: LoadOptions, rows: int, tokens: int, **how: Any
    ) -> Case:
        use = ModelUse(decoder_of(fields, name), options=options, is_on_gpu=False, **how)
        return name, fields, use, rows, tokens

    plain, half = LoadOptions(), LoadOptions(**BF16)
    return [
        case("llama 8.8M", SMALL, plain, 4, 256),
        case("llama 8.8M", SMALL, LoadOptions(gradient_checkpointing=True), 4, 256),
        case("llama 8.8M", SMALL, half, 4, 256),
        case("llama 8.8M", SMALL, plain, 4, 256, head="score"),
        case("llama 8.8M", SMALL, plain, 4, 256, optimizer="muon"),
        case("llama 8.8M", SMALL, LoadOptions(**BF16, lora=LORA), 4, 256),
        case("llama 20.8M", WIDE, plain, 2, 512),
        case("llama 20.8M", WIDE, LoadOptions(**BF16, gradient_checkpointing=True), 2, 512),
        case("qwen 12.9M", QWEN, plain, 2, 256),
    ]


def large_cases() -> list[Case]:
    """Return the cases with the shapes of Llama 3 8B."""
    found = []
    kinds: list[tuple[HeadKind, int, LoadOptions]] = [
        ("lm_head", 4, LoadOptions(**BF16, gradient_checkpointing=True)),
        ("lm_head", 4, LoadOptions(**BF16)),
        ("lm_head", 1, LoadOptions()),
        ("score", 4, LoadOptions(**BF16, gradient_checkpointing=True)),
    ]
    for head, rows, options in kinds:
        use = ModelUse(decoder_of(LLAMA_3_8B, "8B"), head, options)
        found.append(("Llama 3 8B", LLAMA_3_8B, use, rows, 2048))
    return found


def run(arguments: Namespace) -> None:
    """Measure and print."""
    torch.set_num_threads(arguments.threads)
    for part in arguments.parts or PARTS:
        PARTS[part]()


def _small() -> None:
    print("| model | how | tokens | estimate, MiB | tensors, MiB | error |")
    print("|---|---|---|---|---|---|")
    for name, fields, use, rows, tokens in cases():
        estimate = estimated(use, rows, tokens)
        tensors = measured_peak(fields, use, rows=rows, tokens=tokens)
        numbers = f"{_mib(estimate)} | {_mib(tensors)} | {_error(estimate, tensors)}"
        print(f"| {name} | {_how(use)} | {rows * tokens:,} | {numbers} |", flush=True)


def _large() -> None:
    print("| model | how | tokens | phase | estimate, GiB | tensors, GiB | error |")
    print("|---|---|---|---|---|---|---|")
    for name, fields, use, rows, tokens in large_cases():
        batch = MicroBatchSize(rows * tokens, rows * (tokens - 1), mask_width=tokens)
        found = dict(phases(use, batch))
        step = found.pop("optimizer step").total
        backward = max(parts.total for parts in found.values())
        measured = fake_peaks(fields, use, rows=rows, tokens=tokens)
        for phase, estimate, tensors in zip(PHASES, (backward, step), measured, strict=True):
            numbers = f"{estimate / 2**30:.1f} | {tensors / 2**30:.1f}"
            how = f"{_how(use)} | {rows * tokens:,} | {phase}"
            print(f"| {name} | {how} | {numbers} | {_error(estimate, tensors)} |", flush=True)


def _workers() -> None:
    print("| workers | how | ZeRO | estimate, MiB | tensors, MiB | error |")
    print("|---|---|---|---|---|---|")
    for use in sharded_cases():
        with tempfile.TemporaryDirectory() as folder:
            rank, _ = together(2, Path(folder), sharded_peak, SMALL, use, 2, 64)
        estimate = estimated(use, 2, 64)
        numbers = f"{_mib(estimate)} | {_mib(rank)} | {_error(estimate, rank)}"
        print(f"| 2 | {_how(use)} | {use.sharding.zero_stage} | {numbers} |", flush=True)


PARTS: dict[str, Callable[[], None]] = {"small": _small, "large": _large, "workers": _workers}


def sharded_cases() -> list[ModelUse]:
    """Return the cases of two workers with DeepSpeed."""
    decoder = decoder_of(SMALL, "it")
    return [
        ModelUse(decoder, options=options, sharding=Sharding(2, stage), is_on_gpu=False)
        for options in (LoadOptions(), LoadOptions(**BF16))
        for stage in (1, 2, 3)
    ]


def estimated(use: ModelUse, rows: int, tokens: int) -> float:
    """Return the estimate of the largest phase."""
    batch = MicroBatchSize(rows * tokens, rows * (tokens - 1))
    return max(parts.total for _, parts in phases(use, batch))


def fake_peaks(
    fields: dict[str, Any], use: ModelUse, *, rows: int, tokens: int
) -> tuple[float, float]:
    """Return the largest numbers of bytes in fake tensors, in plain torch.

    Returns:
        In the backward passes of the second step, which has two micro-batches, and in the step.
    """
    with FakeTensorMode(), TensorBytes() as held, _as_on_a_gpu():
        model = model_of(fields, use)
        settings: dict[str, Any] = {"learning_rate": 1e-4, "schedule": lambda _: 1.0}
        engine = TorchEngine(model, **settings, optimizer=_foreach_adamw)
        ids = torch.randint(1, fields["vocab_size"], (rows, tokens))
        engine.backward(_total(model, ids, use))
        engine.step(1.0)
        held.peak = held.now
        for _ in range(2):
            engine.backward(_total(model, ids, use))
        backward, held.peak = held.peak, held.now
        engine.step(1.0)
        return backward, held.peak


def _total(model: nn.Module, ids: Tensor, use: ModelUse) -> Tensor:
    """Return a loss of all tokens, without the choices that need the values of tensors."""
    hidden = backbone(model)(input_ids=ids, use_cache=False).last_hidden_state
    if use.head == "score":
        return scalar_head(model)(hidden[:, -1].float()).sum()
    before = hidden[:, :-1].flatten(0, 1)
    found, _ = logprobs.token_logprobs(before, output_head(model), ids[:, 1:].flatten())
    return -found.sum()


def _foreach_adamw(model: nn.Module, **settings: Any) -> tuple[torch.optim.Optimizer, ...]:
    (found,) = OPTIMIZERS["adamw"](model, **settings)
    for group in found.param_groups:
        group["foreach"] = True
    return (found,)


@contextmanager
def _as_on_a_gpu() -> Iterator[None]:
    """Use the chunks of a GPU; the norm of fake gradients has no value, so do not ask for it."""
    chunks, clip = dict(logprobs.CHUNK_MIB), torch_engine.sum_and_clip
    logprobs.CHUNK_MIB["cpu"] = logprobs.CHUNK_MIB["cuda"]
    torch_engine.sum_and_clip = lambda *_: 1.0
    try:
        yield
    finally:
        logprobs.CHUNK_MIB.update(chunks)
        torch_engine.sum_and_clip = clip


def _how(use: ModelUse) -> str:
    options = use.options
    words = ["reward model" if use.head == "score" else "policy", options.dtype]
    words += ["checkpointing"] if options.gradient_checkpointing else []
    words += ["adapter"] if options.lora else []
    words += ["muon"] if use.optimizer == "muon" else []
    return ", ".join(words)


def _mib(size: float) -> str:
    return f"{size / 2**20:,.0f}"


def _error(estimate: float, measured: float) -> str:
    return f"{estimate / measured - 1:+.1%}"
