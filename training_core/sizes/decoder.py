"""Shapes of a decoder in the style of Llama: names and sizes of its weights, without torch.

Llama, Mistral, Gemma, Qwen2 and Qwen3 have these layers, and Mixtral and Qwen3-MoE have them with
experts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Literal

HeadKind = Literal["lm_head", "score"]
"""`lm_head` gives one logit per word of the vocabulary; `score` gives one number."""

MATRIX = 2


@dataclass(frozen=True)
class Weight:
    """One parameter.

    Attributes:
        name: as in transformers, e.g. `model.layers.0.mlp.up_proj.weight`.
        shape: a matrix has (outputs, inputs); stacked experts have the number of experts before.
        active_share: share of the weight that a token uses; less than 1 only for experts.
    """

    name: str
    shape: tuple[int, ...]
    active_share: float = 1.0

    @property
    def size(self) -> int:
        """Number of its elements."""
        return prod(self.shape)

    @property
    def layer(self) -> str | None:
        """Number of its layer as text; None outside of the layers."""
        return self.name.split(".")[2] if self.name.startswith("model.layers.") else None


@dataclass(frozen=True)
class Decoder:
    """Shapes of a decoder.

    Attributes:
        hidden: width H of the hidden states.
        layers: number of layers.
        heads: attention heads.
        kv_heads: key-value heads; fewer than `heads` with grouped queries.
        head_size: width of a head.
        intermediate: width of the feed-forward part, or of one expert.
        vocabulary: number V of token ids.
        is_tied: whether the output layer is the embedding.
        has_qkv_bias: whether queries, keys and values have biases.
        has_output_bias: whether the attention's output has a bias.
        has_mlp_bias: whether the feed-forward part has biases.
        has_qk_norm: whether queries and keys are normalised per head.
        has_output_norms: whether the outputs of attention and of feed-forward part are normalised.
        experts: number of experts in a layer; 0: none.
        active_experts: experts that a token uses.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_size: int
    intermediate: int
    vocabulary: int
    is_tied: bool = False
    has_qkv_bias: bool = False
    has_output_bias: bool = False
    has_mlp_bias: bool = False
    has_qk_norm: bool = False
    has_output_norms: bool = False
    experts: int = 0
    active_experts: int = 0

    @property
    def q_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_size

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token; the values have the same width."""
        return self.kv_heads * self.head_size

    @cached_property
    def of_a_layer(self) -> tuple[Weight, ...]:
        """The weights of one layer; their names are those of layer 0."""
        start = "model.layers.0."
        return tuple(Weight(f"{start}{w.name}", w.shape, w.active_share) for w in self._layer())

    def weights(self, head: HeadKind = "lm_head") -> Iterator[Weight]:
        """Yield every parameter once; a tied output layer has the name of the embedding."""
        yield Weight("model.embed_tokens.weight", (self.vocabulary, self.hidden))
        for number in range(self.layers):
            for weight in self._layer():
                name = f"model.layers.{number}.{weight.name}"
                yield Weight(name, weight.shape, weight.active_share)
        yield Weight("model.norm.weight", (self.hidden,))
        if head == "score":
            yield Weight("score.weight", (1, self.hidden))
        elif not self.is_tied:
            yield Weight("lm_head.weight", (self.vocabulary, self.hidden))

    def parameters(self, head: HeadKind = "lm_head") -> int:
        """Return the number of all parameters."""
        return sum(weight.size for weight in self.weights(head))

    def beside_layers(self, head: HeadKind = "lm_head") -> int:
        """Return the number of parameters in no layer: embedding, last norm and head."""
        return self.parameters(head) - self.layers * self.layer

    @property
    def layer(self) -> int:
        """Number of parameters of a layer."""
        return sum(weight.size for weight in self.of_a_layer)

    @property
    def largest(self) -> int:
        """Number of elements of the largest weight."""
        return max(weight.size for weight in self.weights())

    @property
    def active_body(self) -> int:
        """Weights in the matrices of all layers that a token is multiplied with."""
        active = (w.size * w.active_share for w in self.of_a_layer if len(w.shape) >= MATRIX)
        return round(self.layers * sum(active))

    def _layer(self) -> Iterator[Weight]:
        yield from self._attention()
        yield from self._feed_forward()
        yield Weight("input_layernorm.weight", (self.hidden,))
        yield Weight("post_attention_layernorm.weight", (self.hidden,))
        if self.has_output_norms:
            yield Weight("pre_feedforward_layernorm.weight", (self.hidden,))
            yield Weight("post_feedforward_layernorm.weight", (self.hidden,))

    def _attention(self) -> Iterator[Weight]:
        sides = {"q_proj": self.q_width, "k_proj": self.kv_width, "v_proj": self.kv_width}
        for name, width in sides.items():
            yield Weight(f"self_attn.{name}.weight", (width, self.hidden))
            if self.has_qkv_bias:
                yield Weight(f"self_attn.{name}.bias", (width,))
        yield Weight("self_attn.o_proj.weight", (self.hidden, self.q_width))
        if self.has_output_bias:
            yield Weight("self_attn.o_proj.bias", (self.hidden,))
        if self.has_qk_norm:
            yield Weight("self_attn.q_norm.weight", (self.head_size,))
            yield Weight("self_attn.k_norm.weight", (self.head_size,))

    def _feed_forward(self) -> Iterator[Weight]:
        if self.experts:
            share = self.active_experts / self.experts
            wide, narrow = 2 * self.intermediate, self.intermediate
            yield Weight("mlp.gate.weight", (self.experts, self.hidden))
            yield Weight("mlp.experts.gate_up_proj", (self.experts, wide, self.hidden), share)
            yield Weight("mlp.experts.down_proj", (self.experts, self.hidden, narrow), share)
            return
        for name in ("gate_proj", "up_proj"):
            yield Weight(f"mlp.{name}.weight", (self.intermediate, self.hidden))
            if self.has_mlp_bias:
                yield Weight(f"mlp.{name}.bias", (self.intermediate,))
        yield Weight("mlp.down_proj.weight", (self.hidden, self.intermediate))
        if self.has_mlp_bias:
            yield Weight("mlp.down_proj.bias", (self.hidden,))
