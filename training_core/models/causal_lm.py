"""Policies and references: log-probabilities of given tokens.

Shapes: B rows, T tokens, N trained tokens, S sequences.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from training_core.algorithms.logprobs import token_logprobs
from training_core.data.layout import visible
from training_core.models.parts import backbone, output_head, unwrapped
from training_core.types import Batch, Layout


def hidden_states(model: nn.Module, batch: Batch) -> Tensor:
    """Run the body of a Hugging Face model.

    Positions count only attended tokens, so that padding does not change them.

    Returns:
        [B, T, H].
    """
    if batch.layout is None and _needs_no_mask(model, batch.attention_mask):
        attention = positions = None
    elif batch.layout is None:
        attention = batch.attention_mask.long()
        positions = (attention.cumsum(dim=1) - 1).clamp(min=0)
    else:
        attention = _attention_of(batch.layout, model)
        positions = batch.layout.positions
    output = backbone(model)(
        input_ids=batch.input_ids,
        attention_mask=attention,
        position_ids=positions,
        use_cache=False,
    )
    return output.last_hidden_state


def _needs_no_mask(model: nn.Module, attended: Tensor) -> bool:
    """Tell whether causal attention already excludes all padding, i.e. padding is on the right.

    Without a mask, scaled_dot_product_attention computes only the lower triangle, in about half the
    time. Flash kernels skip the padding if they get the mask.
    """
    is_on_the_right = (attended[:, :-1] >= attended[:, 1:]).all()
    return _attention_kernel(model) == "sdpa" and bool(is_on_the_right)


def _attention_of(layout: Layout, model: nn.Module) -> Tensor | None:
    if _attention_kernel(model).startswith("flash"):
        return None  # one row; the kernel finds the documents from the positions
    mask = visible(layout)
    if _attention_kernel(model) == "eager":  # it adds its mask to the scores
        dtype = unwrapped(model).dtype
        return (~mask).to(dtype).mul(torch.finfo(dtype).min)
    return mask


def _attention_kernel(model: nn.Module) -> str:
    return str(unwrapped(model).config.get_text_config()._attn_implementation)


def packs_rows(model: nn.Module) -> bool:
    """Tell whether sequences are packed into one row without padding.

    This saves time with attention kernels that separate sequences by their lengths
    (FlashAttention's varlen kernels). With a mask it would cost more time than it saves.
    """
    return _attention_kernel(model).startswith("flash")


def can_branch(model: nn.Module) -> bool:
    """Tell whether an attention mask can separate several sequences in one row.

    This does not work with sliding windows, recurrent layers, or kernels without masks.
    """
    config = unwrapped(model).config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    window = getattr(config, "sliding_window", None) if not hasattr(config, "layer_types") else None
    is_local = "local" in getattr(config, "attention_layers", ())  # GPT-Neo's name for a window
    takes_mask = _attention_kernel(model) in {"sdpa", "eager"}
    return kinds == {"full_attention"} and not window and not is_local and takes_mask


def logprobs_and_entropy(
    model: nn.Module, batch: Batch, *, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Log-probability of each trained token, and entropy of the distribution, in nats.

    Args:
        model: a causal language model.
        batch: [B, T].
        temperature: temperature of the distribution.

    Returns:
        logprobs [B, T] and entropy [B, T]; zero where `loss_mask` is not set.
    """
    hidden = hidden_states(model, batch)
    head = output_head(model)
    logprobs, entropy = token_logprobs(
        hidden.flatten(0, 1).index_select(0, predicting(batch)),
        replace(head, temperature=head.temperature * temperature),
        batch.input_ids[batch.loss_mask],
    )
    return _spread(logprobs, batch.loss_mask), _spread(entropy, batch.loss_mask)


def predicting(batch: Batch) -> Tensor:
    """Return the positions [N] in the flattened batch whose outputs predict the trained tokens."""
    rows, columns = batch.loss_mask.nonzero(as_tuple=True)
    before = columns - 1 if batch.layout is None else batch.layout.predictors[rows, columns]
    return rows * batch.loss_mask.shape[1] + before


def logprobs(model: nn.Module, batch: Batch, *, temperature: float = 1.0) -> Tensor:
    """Only the log-probabilities [B, T]; see `logprobs_and_entropy`."""
    return logprobs_and_entropy(model, batch, temperature=temperature)[0]


def sequence_logprobs(model: nn.Module, batch: Batch) -> Tensor:
    """Summed log-probability [S] of each sequence's trained tokens."""
    return batch.sequence_sums(logprobs(model, batch))


def _spread(values: Tensor, mask: Tensor) -> Tensor:
    zeros = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
    return zeros.masked_scatter(mask, values)
