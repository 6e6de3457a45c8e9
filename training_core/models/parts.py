"""The parts of a Hugging Face model: body, output layer, scalar head, trained parameters.

All other code gets the parts from here. The functions work for plain models, models with an adapter
inside, models wrapped by peft, and classifiers. This module does not import peft.

Shapes: B sequences, T tokens, H hidden, V vocabulary.
"""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn

from training_core.algorithms.logprobs import Head
from training_core.errors import ConfigError, DataError
from training_core.models.language_model import LanguageModel

SCALAR_HEADS = ("score", "classifier")
"""Attribute names of the output layer of classifiers in transformers."""


def unwrapped(model: nn.Module) -> LanguageModel:
    """Return the transformers model inside a `peft.PeftModel`, or the model itself."""
    get_base_model = getattr(model, "get_base_model", None)
    return cast("LanguageModel", model if get_base_model is None else get_base_model())


def backbone(model: nn.Module) -> nn.Module:
    """Return the transformer body, which maps token ids to hidden states [B, T, H].

    Args:
        model: a causal language model or sequence classifier of transformers, plain, with an
            adapter inside, or wrapped by peft. Adapters stay active in the result.
    """
    return unwrapped(model).base_model


def output_head(model: nn.Module) -> Head:
    """Return how the hidden states of a causal language model become logits.

    Gemma caps its logits, and Cohere and Granite scale them. Without these operations every
    log-probability would be wrong without an error, so `require_known_head` compares the result
    with the model's own logits.

    Returns:
        The output layer at sampling temperature 1. For another temperature t use
        `replace(head, temperature=head.temperature * t)`: a model that scales its logits by s has
        `temperature` 1/s here.

    Raises:
        ConfigError: if the model has no output layer.
    """
    inner = unwrapped(model)
    layer = inner.get_output_embeddings()
    if layer is None:
        raise ConfigError(
            f"expected a causal language model, found {type(inner).__name__} without output "
            "embeddings; it has no log-probabilities"
        )
    if hasattr(layer, "base_layer"):
        raise ConfigError(
            f"the output layer of {type(inner).__name__} has an adapter, but log-probabilities "
            "use only its weight; use adapters only in layers of the body"
        )
    return Head(
        layer.weight,
        getattr(layer, "bias", None),
        softcap=getattr(inner.config.get_text_config(), "final_logit_softcapping", None),
        temperature=1 / _logit_scale(inner),
    )


def head_weights(model: nn.Module) -> list[nn.Parameter]:
    """Return the weights between hidden states and outputs; they may be shared with embeddings."""
    inner = unwrapped(model)
    body = {id(weight) for weight in backbone(inner).parameters()}
    layer = inner.get_output_embeddings()
    shared = [] if layer is None else [w for w in layer.parameters() if id(w) in body]
    return [*shared, *(w for w in inner.parameters() if id(w) not in body)]


def _logit_scale(model: LanguageModel) -> float:
    if (scale := getattr(model, "logit_scale", None)) is not None:  # Cohere
        return float(scale)
    if model.config.model_type.startswith("granite"):
        return 1 / float(getattr(model.config, "logits_scaling", 1.0))
    return 1.0


@torch.no_grad()
def require_known_head(model: nn.Module) -> None:
    """Check with a few tokens that `backbone` and `output_head` give the model's own logits.

    Raises:
        ConfigError: if they do not. The architecture then changes its logits in an unknown way, and
            every log-probability would be wrong.
        DataError: if a weight is NaN or infinite.
    """
    inner = unwrapped(model)
    vocabulary = inner.config.get_text_config().vocab_size
    ids = torch.arange(1, 7, device=inner.device)[None] * 7919 % vocabulary
    was_training = inner.training
    inner.eval()
    own = inner(input_ids=ids, use_cache=False).logits[0].float()
    hidden = backbone(inner)(input_ids=ids, use_cache=False).last_hidden_state
    found = output_head(inner).logits(hidden[0]).float()
    inner.train(was_training)
    if not own.isfinite().all():
        require_finite(inner)
    tolerance = 1e-4 if inner.dtype in (torch.float32, torch.float64) else 0.05
    gap = float((own - found).abs().max())
    if not gap <= tolerance * max(1.0, float(own.abs().max())):
        raise ConfigError(
            f"{type(inner).__name__} changes its logits in a way that Ratchet does not support: "
            f"they differ by {gap:.3g} from those of its output layer; use another architecture, "
            "or add this one to training_core.models.parts.output_head"
        )


@torch.no_grad()
def require_finite(model: nn.Module) -> None:
    """Check that every weight is a finite number.

    Raises:
        DataError: if one is not; the message names its tensor.
    """
    for name, weight in model.named_parameters():
        if weight.is_floating_point() and not weight.isfinite().all():
            raise DataError(
                f"the model's tensor {name} has values that are NaN or infinite, so its file is "
                "damaged or its training has failed; use another copy or an earlier checkpoint"
            )


def scalar_head(model: nn.Module, *, outputs: int = 1) -> nn.Linear:
    """Return the output layer of a reward model or critic, or of a process reward model.

    Args:
        model: a sequence or token classifier whose head uses the hidden states directly.
        outputs: expected number of outputs.

    Raises:
        ConfigError: if there is no head, it has another number of outputs, or there are layers
            between body and head (pooling, a dense layer), as in classifiers of encoders.
    """
    inner = unwrapped(model)
    body = backbone(inner)
    others = {name: m for name, m in inner.named_children() if m is not body and _has_weights(m)}
    if len(others) != 1 or next(iter(others)) not in SCALAR_HEADS or _has_pooler(body):
        raise ConfigError(
            f"expected a body and one linear layer called {' or '.join(SCALAR_HEADS)}, found "
            f"{type(inner).__name__} with {sorted(others)}"
            f"{' and a pooler' if _has_pooler(body) else ''}; a reward model or critic uses the "
            "last token's hidden state; start from a causal language model"
        )
    name, head = others.popitem()
    head = getattr(head, "base_layer", head)
    if not isinstance(head, nn.Linear) or head.out_features != outputs:
        raise ConfigError(
            f"expected `{name}` of {type(inner).__name__} to be a linear layer with "
            f"{outputs} output{'s'[: outputs - 1]}, found {head}; load it with num_labels={outputs}"
        )
    return head


def head_outputs(head: nn.Linear, hidden: Tensor) -> Tensor:
    """Apply a scalar head in at least single precision.

    In bfloat16 scores would be rounded to 3 digits, and small updates of the head would be lost.

    Args:
        head: from `scalar_head`.
        hidden: [..., H].

    Returns:
        [...] for one output, [..., outputs] for more; float32, or float64 for a float64 model.
    """
    wide = torch.promote_types(hidden.dtype, torch.float32)
    bias = None if head.bias is None else head.bias.to(wide)
    return nn.functional.linear(hidden.to(wide), head.weight.to(wide), bias).squeeze(-1)


def store_head_like_body(model: nn.Module) -> None:
    """Store a trained scalar head in the dtype of the body, in place, as ZeRO 3 needs it.

    `head_outputs` computes in single precision as before, and the optimizer has a master of the
    head, as of the body. So only the head's weights are rounded, not its outputs and its updates.
    An adapter is in single precision, like the head beside it; then nothing is changed.
    """
    inner = unwrapped(model)
    for name in SCALAR_HEADS:
        head = getattr(inner, name, None)
        if isinstance(head, nn.Linear) and not has_adapter(model):
            head.to(next(backbone(model).parameters()).dtype)


def _has_weights(module: nn.Module) -> bool:
    return next(module.parameters(), None) is not None


def _has_pooler(body: nn.Module) -> bool:
    return getattr(body, "pooler", None) is not None


def has_adapter(model: nn.Module) -> bool:
    """Return whether `model` has a peft adapter."""
    return getattr(unwrapped(model), "peft_config", None) is not None


class TrainedPart(nn.Module):
    """A module with only the trained parameters of a model, which are shared with the model.

    A checkpoint of this module contains the adapter (or the parameters that are not frozen) without
    the base. Loading the checkpoint changes the model itself. If everything is trained, it contains
    all parameters. Buffers are left out, because language models of transformers compute them.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        for name, parameter in model.named_parameters():
            if parameter.requires_grad:
                self.register_parameter(name.replace(".", "/"), parameter)
