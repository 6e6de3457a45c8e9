"""Random rows for the benchmark `gpu`, with the tokens and model FLOPs that they have."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu_models import Case
from training_core.data.layout import row_length
from training_core.types import Example

Ids = tuple[int, ...]


def random_rows(case: Case, vocabulary: int, seed: int) -> list[tuple[Example, ...]]:
    """Generate one batch: groups of one or two sequences.

    Both have the same prompt. For KTO, the second response belongs to another prompt.
    """
    drawn = random_groups(case, vocabulary, seed, num_prompts=case.batch_size, num_responses=2)
    prompts, responses = zip(*drawn, strict=True)
    if case.method == "sft":
        return [(_example(p, r[0]),) for p, r in drawn]
    if case.method == "kto":
        others = [responses[-1], *responses[:-1]]
        return [
            (_example(p, r[0]), _example(p, o[0]))
            for p, r, o in zip(prompts, responses, others, strict=True)
        ]
    return [(_example(p, r[0]), _example(p, r[1])) for p, r in drawn]


def random_groups(
    case: Case, vocabulary: int, seed: int, *, num_prompts: int, num_responses: int
) -> list[tuple[Ids, list[Ids]]]:
    """Generate prompts and responses: about a third and two thirds of `max_tokens`, at most."""
    draw = random.Random(seed)

    def ids(share: float) -> Ids:
        size = min(1.0, draw.lognormvariate(-1.0, 0.6)) * share * case.max_tokens
        return tuple(draw.randrange(1, vocabulary) for _ in range(max(2, int(size))))

    prompts = [ids(1 / 3) for _ in range(num_prompts)]
    return [(prompt, [ids(2 / 3) for _ in range(num_responses)]) for prompt in prompts]


def _example(prompt: Ids, response: Ids) -> Example:
    return Example(prompt + response, (0,) * len(prompt) + (1,) * len(response))


def count_tokens(method: str, groups: Sequence[tuple[Example, ...]]) -> int:
    """Count the tokens of the trained sequences, without padding."""
    return sum(len(e) for group in groups for e in _trained(method, group))


def _trained(method: str, group: tuple[Example, ...]) -> tuple[Example, ...]:
    return group[:1] if method == "kto" else group


def count_flops(
    method: str, config: Any, groups: Sequence[tuple[Example, ...]], shares: bool
) -> float:
    """Return the model FLOPs of one step; see the docstring of `benchmarks.gpu`."""
    has_head = method != "reward model"
    trained = sum(_forward(config, _trained(method, g), shares, has_head) for g in groups)
    if method == "dpo":
        return 4 * trained
    if method == "generate":
        return trained
    if method == "grpo":
        return 5 * trained
    if method == "ppo":
        return 5 * trained + 4 * sum(_forward(config, g, shares, has_head=False) for g in groups)
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
        prompt = total - row_length(group)  # the second copy of the prompt is not computed
        total, seen = total - prompt, seen - prompt * (prompt + 1) / 2
    trained = sum(sum(e.loss_mask) for e in group) if has_head else 0
    # Two products (queries with keys, weights with values) of 2 H per attended token.
    scores = 4 * layers * hidden * seen
    return 2 * body * total + 2 * config.vocab_size * hidden * trained + scores
