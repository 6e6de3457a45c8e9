"""FLOPs of models. A multiplication with an addition counts as two.

Symbols: W weights in the matrices of the layers that a token uses, L layers, Q width of all
queries, H hidden width, V vocabulary, n tokens of a sequence.

Source:
    Chowdhery et al. 2022 (PaLM), appendix B, https://arxiv.org/abs/2204.02311, but with the causal
    half of attention, and logits only of trained tokens, as Ratchet computes them.
"""

from __future__ import annotations

from dataclasses import dataclass

from training_core.sizes.decoder import Decoder, HeadKind

BACKWARD = 2
"""Passes that the backward pass costs: gradients of the inputs, and of the weights."""


@dataclass(frozen=True)
class Sequence:
    """A sequence.

    Attributes:
        tokens: n, prompt and response together.
        trained_tokens: tokens with a logit.
    """

    tokens: int
    trained_tokens: int


def forward(decoder: Decoder, sequence: Sequence, head: HeadKind = "lm_head") -> float:
    """Return the FLOPs of the forward pass of one sequence.

        2 W n                    the matrices of the layers
        + 4 L Q n (n + 1) / 2    scores and weighted values of the tokens that each token sees
        + 2 V H trained tokens   the output layer; nothing with a head of one output

    Sampling costs the same with a cache of keys and values: each token is computed once.
    """
    return _body(decoder, sequence.tokens) + _logits(decoder, sequence, head)


def training(
    decoder: Decoder,
    sequence: Sequence,
    head: HeadKind = "lm_head",
    *,
    has_adapter: bool = False,
    is_checkpointed: bool = False,
) -> float:
    """Return the FLOPs of forward and backward pass of one sequence.

        3 forward                          two for the backward pass
        + the layers' forward pass         with gradient checkpointing; torch stops before the last
                                           matrix, since nothing after it is saved
        + the output layer's forward pass  since the chunked loss computes logits again

    Frozen matrices below an adapter need no gradient, so that the backward pass of the layers'
    matrices costs one pass instead of two. The adapter itself is not counted.

    Args:
        decoder: shapes of the model.
        sequence: the sequence.
        head: logits, or one number.
        has_adapter: whether all weights are frozen except an adapter.
        is_checkpointed: whether the backward pass computes activations again.
    """
    body, logits = _body(decoder, sequence.tokens), _logits(decoder, sequence, head)
    backward = BACKWARD * body
    again = logits
    if has_adapter:
        backward -= 2.0 * decoder.active_body * sequence.tokens
        logits -= logits / (1 + BACKWARD)  # no gradient of the output layer
    if is_checkpointed:
        last = 0 if decoder.experts else decoder.layers * decoder.intermediate * decoder.hidden
        again += body - 2.0 * last * sequence.tokens
    return body + backward + (1 + BACKWARD) * logits + again


def _body(decoder: Decoder, tokens: int) -> float:
    seen = tokens * (tokens + 1) / 2
    return 2.0 * decoder.active_body * tokens + 4.0 * decoder.layers * decoder.q_width * seen


def _logits(decoder: Decoder, sequence: Sequence, head: HeadKind) -> float:
    if head == "score":
        return 0.0
    return 2.0 * decoder.vocabulary * decoder.hidden * sequence.trained_tokens
