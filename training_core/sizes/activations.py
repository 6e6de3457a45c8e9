"""Memory of activations: what the backward pass needs, and what one layer needs while it runs.

The formulas count the tensors that autograd saves in transformers' Llama with a fused attention
kernel, which stores no [T, T] scores. Symbols: T tokens of a micro-batch with padding, H hidden
width, Q and K widths of all queries and of all keys, F intermediate width, V vocabulary, b bytes
per number (4 in float32, 2 in bfloat16). All results are in bytes.

Source:
    The method of counting is that of Korthikanti et al. 2022, section 4,
    https://arxiv.org/abs/2205.05198, whose layer is GPT's.
"""

from __future__ import annotations

from training_core.sizes.model_use import FLOAT, ModelUse, adapted

KEPT_BYTES = 256 * 2**20
"""Softmax that the loss keeps for its backward pass, at most (`logprobs.KEEP_MIB`)."""
CHUNK_BYTES = {True: 256 * 2**20, False: 2 * 2**20}
"""Logits of a chunk of the loss on a GPU, and on a CPU (`logprobs.CHUNK_MIB`)."""
CHUNK_POSITIONS = 256
"""Smallest chunk (`logprobs.CHUNK_POSITIONS`)."""
SAME_INPUT = {"k_proj": "q_proj", "v_proj": "q_proj", "up_proj": "gate_proj"}
"""Matrix of a layer -> another one with the same input."""


def saved_by_a_layer(use: ModelUse, tokens: int, *, mask_width: int = 0) -> float:
    """Return what the backward pass of one layer needs.

        two norms       2 T (4 H + b H + b H)    input in float32, normalised, output; Gemma 2 has 4
        attention       T (b Q + 2 b K + b Q + 4 heads)    queries, keys, values, output, log-sums
        feed-forward    4 T b F                  gate, its SiLU, up, their product

    With a mask, keys and values are repeated to the width of the queries, and each layer saves the
    mask, T b times the tokens of a row. With an adapter, norms
    and inputs of frozen matrices are not saved, but each adapter saves its input in float32. A
    frozen layer is counted like a trained one: layers before it are usually trained.

    Args:
        use: the model.
        tokens: T.
        mask_width: tokens of a row if attention gets a mask, e.g. since pairs share their prompt;
            0: it gets none.
    """
    d, b = use.decoder, use.dtype_bytes
    heads = d.heads * FLOAT
    keys = d.q_width if mask_width else d.kv_width
    number = 4 if d.has_output_norms else 2
    attention = b * (2 * d.q_width + 2 * keys + mask_width) + heads
    if use.options.lora is None:
        norms = number * (FLOAT + 2 * b) * d.hidden
        if d.has_qk_norm:
            norms += (FLOAT + b) * (d.q_width + d.kv_width)
        return tokens * (norms + attention + _feed_forward(use))
    norms = number * FLOAT * d.hidden
    return tokens * (norms + attention + _adapter_inputs(use) + 3 * b * d.intermediate)


def _feed_forward(use: ModelUse) -> float:
    d, b = use.decoder, use.dtype_bytes
    if not d.experts:
        return 4 * b * d.intermediate
    # each expert of a token saves its copy of the input and its output, which the router weighs
    return d.active_experts * b * (4 * d.intermediate + 2 * d.hidden)


def _adapter_inputs(use: ModelUse) -> float:
    """Return bytes per token: inputs in float32, and the narrow outputs of A.

    In bfloat16 each adapter converts its own copy; in float32 those of one input share it.
    """
    lora = use.options.lora
    assert lora is not None
    chosen = [w for w in use.decoder.of_a_layer if len(w.shape) > 1 and adapted(w, lora)]
    if use.dtype_bytes < FLOAT:
        inputs = sum(w.shape[-1] for w in chosen)
    else:
        names = {w.name.split(".")[4]: w.shape[-1] for w in chosen}
        inputs = sum({SAME_INPUT.get(name, name): width for name, width in names.items()}.values())
    return FLOAT * (inputs + lora.rank * len(chosen))


def of_a_running_layer(use: ModelUse, tokens: int) -> float:
    """Return the gradients of activations while the backward pass is in one layer.

    T b (2 F + 2 H): of gate and up beside what is saved, of the output and of the residual.
    """
    d = use.decoder
    width = d.intermediate * max(1, d.active_experts)
    return tokens * use.dtype_bytes * (2 * width + 2 * d.hidden)


def saved_by_layers(use: ModelUse, tokens: int, *, mask_width: int = 0) -> float:
    """Return what all layers save: L saved_by_a_layer, or L T b H with gradient checkpointing."""
    layers = use.decoder.layers
    if use.options.gradient_checkpointing:
        return layers * tokens * use.dtype_bytes * use.decoder.hidden
    return layers * saved_by_a_layer(use, tokens, mask_width=mask_width)


def of_the_end(use: ModelUse, tokens: int, trained_tokens: int) -> float:
    """Return the peak of the last norm and the loss, beside what the layers save.

        T (4 H + b H)                  last norm
        + 4 T H                        with a head of one output: its input in float32
        + 2 b H trained tokens         their hidden states, and the gradient of these
        + 4 V trained tokens           softmax, if at most 256 MiB
        + c 4 R V                      c chunks of R positions; see `_chunks`
        + 4 V H, or 6 V H if b = 2     gradient of the output layer, and the product of a chunk

    There are never logits of all tokens.
    """
    d, b = use.decoder, use.dtype_bytes
    last = tokens * (FLOAT + b) * d.hidden
    if use.head == "score":
        return last + tokens * FLOAT * d.hidden
    softmax = trained_tokens * d.vocabulary * FLOAT
    is_kept = softmax <= KEPT_BYTES
    output = d.vocabulary * d.hidden
    gradient = 0
    if use.options.lora is None:
        gradient = output * (FLOAT + (b if use.has_masters else 0))
    forward, backward = _chunks(use, trained_tokens, is_kept=is_kept)
    states = 2 * trained_tokens * b * d.hidden
    return last + states + softmax * is_kept + max(forward, backward + gradient)


def _chunks(use: ModelUse, trained_tokens: int, *, is_kept: bool) -> tuple[float, float]:
    """Return the bytes of chunks in forward and backward pass, beside the kept softmax.

    The forward pass holds logits, their log-softmax, and both of the chunk before; the backward
    pass holds logits, softmax, and the softmax before. One chunk has none before, and what is kept
    does not count twice.
    """
    row = use.decoder.vocabulary * FLOAT
    rows = max(CHUNK_POSITIONS, CHUNK_BYTES[use.is_on_gpu] // max(1, row))
    if trained_tokens <= rows:
        size = trained_tokens * row
        return size * (2 - is_kept), size * 2 * (not is_kept)
    return rows * row * (4 - 2 * is_kept), rows * row * 3 * (not is_kept)


def without_gradient(use: ModelUse, tokens: int, trained_tokens: int) -> float:
    """Return the peak of a forward pass without gradients: one layer, or the loss.

    T b (2 H + 3 F): the residual and its norm; SiLU, up and their product.
    """
    d, b = use.decoder, use.dtype_bytes
    width = d.intermediate * max(1, d.active_experts)
    layer = tokens * b * (2 * d.hidden + 3 * width)
    if use.head == "score":
        return layer
    chunks, _ = _chunks(use, trained_tokens, is_kept=False)
    return max(layer, (tokens + trained_tokens) * b * d.hidden + chunks)


def peak(use: ModelUse, tokens: int, trained_tokens: int, *, mask_width: int = 0) -> float:
    """Return the largest memory of activations in forward and backward pass.

    What the layers save, and the larger of: the end of the model, or one layer in the backward
    pass. With gradient checkpointing that layer is computed again first.

    Args:
        use: the model.
        tokens: tokens of the micro-batch with padding.
        trained_tokens: those with a loss.
        mask_width: see `saved_by_a_layer`.
    """
    layer = of_a_running_layer(use, tokens)
    if use.options.gradient_checkpointing:
        layer += saved_by_a_layer(use, tokens, mask_width=mask_width)
    end = of_the_end(use, tokens, trained_tokens)
    return saved_by_layers(use, tokens, mask_width=mask_width) + max(layer, end)
