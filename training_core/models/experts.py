"""Mixture of experts: a loss that balances the use of experts.

Shapes: B rows, T tokens, L routed layers, E experts, S sequences.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from training_core.errors import ConfigError
from training_core.models.parts import backbone, unwrapped
from training_core.types import Batch


@dataclass
class Routing:
    """Router logits of the forward passes inside `routing`.

    Attributes:
        top_k: experts per token.
        router_logits: one tuple of L tensors [B * T, E] for each forward pass.
    """

    top_k: int
    router_logits: list[tuple[Tensor, ...]] = field(default_factory=list)


@contextmanager
def routing(model: nn.Module) -> Iterator[Routing]:
    """Record the router logits of every forward pass of the body inside the block.

        with routing(model) as routed:
            values = logprobs(model, batch)
        penalty = sequence_balance(routed, batch)

    Raises:
        ConfigError: if the model has no routers.
    """
    body = backbone(model)
    routed = Routing(_top_k(model))

    def ask(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        return args, {**kwargs, "output_router_logits": True}

    def take(_: Any, __: Any, output: Any) -> None:
        routed.router_logits.append(tuple(output.router_logits))

    with (
        body.register_forward_pre_hook(ask, with_kwargs=True),
        body.register_forward_hook(take),
    ):
        yield routed


def _top_k(model: nn.Module) -> int:
    config = unwrapped(model).config.get_text_config()
    if not hasattr(config, "output_router_logits"):
        raise ConfigError(
            f"moe_aux_loss_coef needs a mixture of experts, found {config.model_type}, which has "
            "no routers; set it to 0"
        )
    return int(config.num_experts_per_tok)


def sequence_balance(routed: Routing, batch: Batch) -> Tensor:
    """Load-balancing loss of each sequence, averaged over the routed layers.

        f_e = share of the sequence's tokens that have e among their top k experts
        P_e = mean over the sequence's tokens of softmax(router logits)_e
        loss = E * sum_e f_e * P_e

    It is k if all experts are used equally, and larger otherwise. The gradient goes through P. The
    usual loss computes f and P over a whole micro-batch, so its gradient depends on how a batch is
    split. If computed for each sequence separately, it does not. An objective adds

        coef * sum_s weight_s * loss_s

    to its sum. The weights add up to the count of the objective (trained tokens of s, or 1/2 for
    each sequence of a pair).

    Args:
        routed: router logits of exactly one forward pass of `batch`.
        batch: [B, T], with a layout or without.

    Returns:
        [S], float32, in the order of the batch's sequences.

    Source:
        Fedus et al. 2021, https://arxiv.org/abs/2101.03961, eq. 4 to 6, per layer (transformers
        pools all layers into one f and P); over each sequence as in DeepSeek-V3,
        https://arxiv.org/abs/2412.19437, eq. 17 to 20.
    """
    (layers,) = routed.router_logits
    losses = [_layer_balance(logits.float(), routed.top_k, batch) for logits in layers]
    return torch.stack(losses).mean(dim=0)


def _layer_balance(logits: Tensor, top_k: int, batch: Batch) -> Tensor:
    num_experts = logits.shape[-1]
    probabilities = logits.softmax(dim=-1).reshape(*batch.input_ids.shape, num_experts)
    chosen = torch.zeros_like(probabilities).scatter(
        -1, probabilities.topk(top_k, dim=-1).indices, 1.0
    )
    used, meant, tokens = (
        _sums(x, batch)
        for x in (chosen.detach(), probabilities, torch.ones_like(probabilities[..., :1]))
    )
    return num_experts * (used / tokens * (meant / tokens)).sum(dim=-1)


def _sums(values: Tensor, batch: Batch) -> Tensor:
    """Sum `values` [B, T, E] over each sequence, including its shared beginning: [S, E]."""
    if batch.layout is None:
        return (values * batch.attention_mask[..., None]).sum(dim=1)
    layout = batch.layout
    own = layout.sequences >= 0
    sums = values.new_zeros(batch.num_sequences, values.shape[-1])
    sums = sums.index_add(0, layout.sequences[own], values[own])
    # A shared beginning belongs to every branch of its document.
    rows, columns = batch.ends()
    in_trunk = (layout.documents >= 0) & ~own
    same_document = layout.documents[rows] == layout.documents[rows, columns][:, None]
    trunk_tokens = (in_trunk[rows] & same_document).to(values.dtype)
    return sums + torch.einsum("st,ste->se", trunk_tokens, values[rows])
