"""The policy's loss in reinforcement learning, forward and backward, for `loss_memory`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import partial

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from training_core.algorithms.aggregation import SumAndCount, token_mean
from training_core.algorithms.policy_losses import ppo_clip
from training_core.algorithms.policy_tokens import PolicyTokens
from training_core.data.batching import collate
from training_core.objectives.reinforcement import policy_objective
from training_core.types import Example, Experience, Loss, mean_of

ROWS, PROMPT_TOKENS, LAYERS, HEADS = 2, 64, 2, 4
CLIP = partial(ppo_clip, clip_low=0.2, clip_high=0.2)


def prepared_update(way: str, size: tuple[int, int, int]) -> Callable[[], Mapping[str, float]]:
    """Make a model and a micro-batch, and return the function to measure.

    Args:
        way: `naive` or `ratchet`.
        size: vocabulary, tokens per response, hidden size.
    """
    vocabulary, tokens, hidden = size
    torch.manual_seed(0)
    model = _model(vocabulary, hidden, PROMPT_TOKENS + tokens)
    objective = {"naive": _naive, "ratchet": policy_objective(CLIP, _aggregate, temperature=1.0)}
    _backward(objective[way], model, _experience(64, 8))  # warms up
    experience = _experience(vocabulary, tokens)
    return lambda: _backward(objective[way], model, experience)


def _backward(
    objective: Callable[[nn.Module, Experience], Loss], model: nn.Module, experience: Experience
) -> Mapping[str, float]:
    model.zero_grad()
    loss = objective(model, experience)
    (loss.total / loss.count).backward()
    gradients = [p.grad.norm() for p in model.parameters() if p.grad is not None]
    entropy = loss.metrics["entropy"].value
    norm = float(torch.stack(gradients).norm())
    return {"loss": float(loss.total) / loss.count, "entropy": entropy, "grad_norm": norm}


def _naive(model: nn.Module, experience: Experience) -> Loss:
    """Compute the logits of all tokens at once."""
    batch, mask = experience.batch, experience.batch.loss_mask
    logits = model(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits[:, :-1]
    everything = logits.log_softmax(-1)
    chosen = everything.gather(-1, batch.input_ids[:, 1:, None])[..., 0]
    logprobs = nn.functional.pad(chosen, (1, 0)).masked_fill(~mask, 0.0)
    with torch.no_grad():
        entropy = -(everything.exp() * everything).sum(-1)
    tokens = PolicyTokens(logprobs, experience.old_logprobs, experience.advantages, mask)
    return Loss(*_aggregate(CLIP(tokens)[0], mask), {"entropy": mean_of(entropy, mask[:, 1:])})


def _aggregate(losses: Tensor, mask: Tensor) -> SumAndCount:
    return token_mean(losses, mask, 0)


def _experience(vocabulary: int, tokens: int) -> Experience:
    """Make responses of random tokens, whose old log-probabilities are those of chance."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1, vocabulary, (ROWS, PROMPT_TOKENS + tokens), generator=generator)
    mask = (0,) * PROMPT_TOKENS + (1,) * tokens
    batch = collate([Example(tuple(row), mask) for row in ids.tolist()], 0)
    advantages = torch.randn(ids.shape, generator=generator)
    old_logprobs = -math.log(vocabulary) * batch.loss_mask
    zeros = torch.zeros(ids.shape)
    return Experience(batch, old_logprobs, advantages, zeros, zeros)


def _model(vocabulary: int, hidden: int, max_tokens: int) -> nn.Module:
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        max_position_embeddings=max_tokens,
    )
    return LlamaForCausalLM(config)
