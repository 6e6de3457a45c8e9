"""Training on one GPU: tokens per second, model FLOPs utilisation, peak memory.

    python benchmarks/gpu.py [--shapes 0.5B,1.5B] [--precision bf16] [--micro-batch-tokens 16384]
    python benchmarks/gpu.py --device cpu --tiny        # every line once, on any machine

Needs torch, transformers and this repository (`PYTHONPATH=.`), nothing else. Models have Qwen2.5's
shapes and random weights, rows have random tokens and ragged lengths (a third prompt, two thirds
response), and each method makes the steps that its stage makes, the reference's forward passes
included.

Tokens are those of the rows, padding not counted; a prompt that two responses share counts for
each. Model FLOPs are what the mathematics needs and no more, with N the parameters of the body, V
the vocabulary, H the hidden size, L the layers, and a shared prompt once:

    forward = 2 N tokens + 2 V H trained + 4 L H (sum over tokens of how many each one sees)
    step    = 3 forward, and of DPO and KTO 1 more for the reference; KTO's mismatched responses
              cost 1 under the policy and 1 under the reference

Utilisation is model FLOPs per second over the dense bf16 peak of the device (`PEAK_TFLOPS`).
"""

from __future__ import annotations

import argparse
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM, Qwen2ForSequenceClassification

from training_core.algorithms.preference_losses import PREFERENCE_LOSSES, implicit_rewards
from training_core.algorithms.reward_losses import bradley_terry
from training_core.algorithms.unpaired_losses import kto, mismatched_kl
from training_core.data.batching import collate, cut_by_tokens
from training_core.data.layout import collate_packed, collate_shared, row_length
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import Objective, train_steps
from training_core.models.causal_lm import can_branch, sequence_logprobs
from training_core.objectives.preference import PairBatch, pairwise_reward, preference
from training_core.objectives.supervised import supervised
from training_core.objectives.unpaired import UnpairedBatch, unpaired
from training_core.types import Batch, Example, Loss

PEAK_TFLOPS = {
    "H100 PCIe": 756,
    "H100": 989,
    "H200": 989,
    "B200": 2250,
    "A100": 312,
    "L40S": 362,
    "L4": 121,
    "A10": 125,
    "RTX 4090": 165,
}
"""Dense bf16 of the device whose name contains the key, by its maker's data sheet."""
SHAPES = {  # hidden, layers, heads, key-value heads, intermediate, vocabulary
    "tiny": (64, 2, 4, 2, 128, 512),
    "0.5B": (896, 24, 14, 2, 4864, 151936),
    "1.5B": (1536, 28, 12, 2, 8960, 151936),
}
METHODS = ("sft", "reward model", "dpo", "kto")
BETA = 0.1


@dataclass(frozen=True)
class Setting:
    """How rows become micro-batches.

    Attributes:
        device: where they go.
        budget_tokens: padded tokens of a micro-batch.
        packs: whether a micro-batch is one row, as flash kernels take it.
        shares: whether a pair's prompt stands once.
        vocabulary: of the model.
    """

    device: torch.device
    budget_tokens: int
    packs: bool
    shares: bool
    vocabulary: int

    def cut(self, groups: Sequence[tuple[Example, ...]]) -> Iterator[tuple[list[int], Batch]]:
        """Yield the numbers of some groups, and their sequences, first members first."""
        shares = self.shares and len(groups[0]) > 1
        lengths = [row_length(g) if shares else len(g) * max(map(len, g)) for g in groups]
        for members in cut_by_tokens(lengths, self.budget_tokens):
            some = [groups[i] for i in members]
            if shares:
                yield members, collate_shared(some, 0, self.device)
                continue
            flat = [example for side in zip(*some, strict=True) for example in side]
            packed = collate_packed([flat], 0, self.device) if self.packs else None
            yield members, packed or collate(flat, 0, self.device)

    def measured(self, model: Any, groups: Sequence[tuple[Example, ...]]) -> Tensor:
        """Log-probabilities [number of groups, members] of all sequences, without gradient."""
        found = torch.zeros(len(groups), len(groups[0]), device=self.device)
        with torch.no_grad():
            for members, batch in self.cut(groups):
                sums = sequence_logprobs(model, batch).float()
                found[members] = sums.reshape(len(groups[0]), -1).T
        return found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", default="0.5B,1.5B")
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--precision", choices=("bf16", "autocast", "fp32"), default="bf16")
    parser.add_argument("--attention", default="sdpa", help="or flash_attention_2: packed rows")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-tokens", type=int, default=1024)
    parser.add_argument("--micro-batch-tokens", type=int, default=16384)
    parser.add_argument("--steps", type=int, default=8, help="timed, after two")
    parser.add_argument("--tiny", action="store_true", help="a tiny model, short rows, two steps")
    arguments = parser.parse_args()
    if arguments.tiny:
        arguments.shapes, arguments.steps = "tiny", 2
        arguments.batch_size, arguments.max_tokens, arguments.micro_batch_tokens = 8, 64, 256
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}, {arguments.precision}, {arguments.attention}\n")
    print("| method | model | parameters | tokens/s | s per step [min, max] | MFU | peak GiB |")
    print("|---|---|---|---|---|---|---|")
    for shape in arguments.shapes.split(","):
        for method in arguments.methods.split(","):
            print(_line(method, shape, device, arguments), flush=True)


def _line(method: str, shape: str, device: torch.device, arguments: argparse.Namespace) -> str:
    model = _model(method, shape, device, arguments)
    setting = Setting(
        device,
        arguments.micro_batch_tokens,
        packs=arguments.attention.startswith("flash"),
        shares=can_branch(model),
        vocabulary=model.config.vocab_size,
    )
    total = arguments.steps + 2
    steps = [_rows(method, arguments, setting.vocabulary, seed) for seed in range(total)]
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = list(_seconds(method, model, steps, setting, arguments.precision))[2:]
    counted = steps[2:]
    tokens = sum(_tokens(method, groups) for groups in counted)
    flops = sum(_flops(method, model.config, groups, setting.shares) for groups in counted)
    peak = _peak(device)
    used = f"{flops / sum(seconds) / peak:.1%}" if peak else "unknown device"
    memory = torch.cuda.max_memory_allocated(device) / 2**30 if device.type == "cuda" else math.nan
    size = sum(p.numel() for p in model.parameters()) / 1e6
    spread = f"{median(seconds):.3f} [{min(seconds):.3f}, {max(seconds):.3f}]"
    rate = f"{tokens / sum(seconds):,.0f}"
    return f"| {method} | {shape} | {size:,.1f}M | {rate} | {spread} | {used} | {memory:.1f} |"


def _peak(device: torch.device) -> float | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((t * 1e12 for key, t in PEAK_TFLOPS.items() if key in name), None)


def _model(method: str, shape: str, device: torch.device, arguments: argparse.Namespace) -> Any:
    hidden, layers, heads, kv_heads, intermediate, vocabulary = SHAPES[shape]
    config = Qwen2Config(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=intermediate,
        vocab_size=vocabulary,
        tie_word_embeddings=True,
        max_position_embeddings=32768,
        pad_token_id=0,
    )
    config.num_labels = 1
    config._attn_implementation = arguments.attention
    torch.manual_seed(0)
    dtype = torch.bfloat16 if arguments.precision == "bf16" else torch.float32
    kind: Any = Qwen2ForSequenceClassification if method == "reward model" else Qwen2ForCausalLM
    with torch.device(device):
        model = kind(config).to(dtype)
    if method == "reward model":
        torch.nn.init.zeros_(model.score.weight)
    return model.train()


# ---------------------------------------------------------------------- rows


def _rows(
    method: str, arguments: argparse.Namespace, vocabulary: int, seed: int
) -> list[tuple[Example, ...]]:
    """One batch: groups of one or two responses to a prompt; for KTO the other's is the second."""
    draw = random.Random(seed)

    def ids(share: float) -> tuple[int, ...]:
        size = min(1.0, draw.lognormvariate(-1.0, 0.6)) * share * arguments.max_tokens
        return tuple(draw.randrange(1, vocabulary) for _ in range(max(2, int(size))))

    prompts = [ids(1 / 3) for _ in range(arguments.batch_size)]
    responses = [[ids(2 / 3) for _ in range(2)] for _ in prompts]
    if method == "sft":
        return [(_example(p, r[0]),) for p, r in zip(prompts, responses, strict=True)]
    if method == "kto":
        others = [responses[-1], *responses[:-1]]
        return [
            (_example(p, r[0]), _example(p, o[0]))
            for p, r, o in zip(prompts, responses, others, strict=True)
        ]
    return [(_example(p, r[0]), _example(p, r[1])) for p, r in zip(prompts, responses, strict=True)]


def _example(prompt: tuple[int, ...], response: tuple[int, ...]) -> Example:
    return Example(prompt + response, (0,) * len(prompt) + (1,) * len(response))


def _tokens(method: str, groups: Sequence[tuple[Example, ...]]) -> int:
    return sum(len(e) for group in groups for e in _trained(method, group))


def _trained(method: str, group: tuple[Example, ...]) -> tuple[Example, ...]:
    return group[:1] if method == "kto" else group


def _flops(method: str, config: Any, groups: Sequence[tuple[Example, ...]], shares: bool) -> float:
    """FLOPs of one step; see the head of this file."""
    has_head = method != "reward model"
    trained = sum(_forward(config, _trained(method, g), shares, has_head) for g in groups)
    if method == "dpo":
        return 4 * trained
    if method == "kto":
        mismatched = sum(_forward(config, g[1:], shares, has_head) for g in groups)
        return 3 * trained + mismatched + sum(_forward(config, g, shares, has_head) for g in groups)
    return 3 * trained


def _forward(config: Any, group: tuple[Example, ...], shares: bool, has_head: bool) -> float:
    hidden, layers = config.hidden_size, config.num_hidden_layers
    head_size = hidden // config.num_attention_heads
    attention = 2 * hidden * (config.num_attention_heads + config.num_key_value_heads) * head_size
    body = layers * (attention + 3 * hidden * config.intermediate_size)
    total = sum(map(len, group))
    seen = sum(len(e) * (len(e) + 1) / 2 for e in group)
    if shares and len(group) > 1:
        prompt = total - row_length(group)  # what is saved: the second copy of the prompt
        total, seen = total - prompt, seen - prompt * (prompt + 1) / 2
    trained = sum(sum(e.loss_mask) for e in group) if has_head else 0
    # Scores and their use are two products of 2 H per token that is seen.
    scores = 4 * layers * hidden * seen
    return 2 * body * total + 2 * config.vocab_size * hidden * trained + scores


# --------------------------------------------------------------------- steps


def _seconds(
    method: str,
    model: Any,
    steps: Sequence[Sequence[tuple[Example, ...]]],
    setting: Setting,
    precision: str,
) -> Iterator[float]:
    """Time each optimizer step; the reference is the policy of that moment, which costs as much."""
    objective = _in_precision(_objective(method), setting.device, precision)
    measure = _in_precision(setting.measured, setting.device, precision)
    engine = TorchEngine(model, learning_rate=1e-6, schedule=lambda _: 1.0)
    batches = (_micro_batches(method, model, groups, setting, measure) for groups in steps)
    reports = train_steps(engine, objective, batches)
    for _ in steps:
        _wait(setting.device)
        began = time.perf_counter()
        report = next(reports)
        _wait(setting.device)
        assert math.isfinite(report.loss)
        yield time.perf_counter() - began


def _micro_batches(
    method: str,
    model: Any,
    groups: Sequence[tuple[Example, ...]],
    setting: Setting,
    measure: Callable[..., Tensor],
) -> list[Any]:
    if method == "sft":
        return [batch for _, batch in setting.cut(groups)]
    if method == "reward model":
        return [PairBatch(batch) for _, batch in setting.cut(groups)]
    reference = measure(model, groups)
    if method == "dpo":
        return [
            PairBatch(b, reference[members].T.reshape(-1)) for members, b in setting.cut(groups)
        ]
    mismatched = measure(model, [group[1:] for group in groups])[:, 0]
    baseline = mismatched_kl(mismatched - reference[:, 1])
    is_desirable = torch.arange(len(groups), device=setting.device) % 2 == 0
    return [
        UnpairedBatch(batch, is_desirable[members], reference[members, 0], baseline)
        for members, batch in setting.cut([group[:1] for group in groups])
    ]


def _objective(method: str) -> Objective:
    if method == "sft":
        return supervised
    if method == "reward model":
        return pairwise_reward(partial(bradley_terry, centering_coef=0.0))
    if method == "dpo":
        row = PREFERENCE_LOSSES["dpo"]
        loss = partial(row.function, beta=BETA, label_smoothing=0.0)
        return preference(loss, partial(implicit_rewards, row, beta=BETA))
    return unpaired(
        partial(kto, beta=BETA, desirable_weight=1.0, undesirable_weight=1.0), beta=BETA
    )


def _in_precision(function: Callable[..., Any], device: torch.device, precision: str) -> Any:
    def inside(*arguments: Any) -> Loss | Tensor:
        is_mixed = precision == "autocast"
        with torch.autocast(device.type, torch.bfloat16) if is_mixed else nullcontext():
            return function(*arguments)

    return inside


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
