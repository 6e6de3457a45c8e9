"""Memory of a GPU while a model is trained: phases of a step, and what is held in each.

Symbols: N weights, P trained ones, b bytes of a weight (4 in float32, 2 in bfloat16), d workers
that ZeRO divides state by. All results are in bytes.

Source:
    ZeRO: Rajbhandari et al. 2020, section 3.1, https://arxiv.org/abs/1910.02054. Where the engines
    hold something else than the paper (e.g. gradients in float32), the engines count.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields, replace

from training_core.sizes import activations
from training_core.sizes.model_use import FLOAT, Elements, ModelUse, elements_of

MOMENTS = 2
"""Moments of AdamW; Muon has one for its matrices."""
ADAMW_TEMPORARIES = 2
"""Temporary tensors of AdamW on a CPU, each as large as the largest weight."""
MUON_TEMPORARIES = 3
"""The same for Muon's Newton-Schulz iterations."""
BUCKET = 500_000_000
"""Elements that DeepSpeed reduces at once (`reduce_bucket_size`); the buffer is in float32."""
EXCHANGED = 2**25
"""Elements that plain torch sums over workers at once (`distributed.BUCKET_ELEMENTS`); two such
buffers are alive, the last one and the next."""
LIVE = 1_000_000_000
"""Elements that ZeRO 3 keeps gathered at once (`stage3_max_live_parameters`)."""
PARTITIONED = 3
WHOLE_WEIGHTS = "whole weights"
"""Name of a phase; see `phases`."""
SUB_GROUP = 1_000_000_000
"""Elements that ZeRO 3 updates at once (`sub_group_size`)."""


@dataclass(frozen=True)
class Parts:
    """Bytes on one GPU, by what they hold.

    Attributes:
        weights: weights, with what ZeRO 3 has gathered, or with a whole copy.
        gradients: gradients, and buffers for their exchange.
        optimizer: masters in float32, moments, and temporary tensors of the step.
        activations: of the forward and the backward pass.
        kv_cache: keys and values of the sampler, with its own overhead.
        host: CPU memory of offloaded state; not part of `total`.
    """

    weights: float = 0.0
    gradients: float = 0.0
    optimizer: float = 0.0
    activations: float = 0.0
    kv_cache: float = 0.0
    host: float = 0.0

    def __add__(self, other: Parts) -> Parts:
        """Add up part by part."""
        names = [field.name for field in fields(Parts)]
        return Parts(*(getattr(self, name) + getattr(other, name) for name in names))

    @property
    def on_gpu(self) -> dict[str, float]:
        """The parts on the GPU, by name."""
        return {f.name: getattr(self, f.name) for f in fields(Parts) if f.name != "host"}

    @property
    def total(self) -> float:
        """Sum of the parts on the GPU."""
        return sum(self.on_gpu.values())


@dataclass(frozen=True)
class MicroBatchSize:
    """The largest micro-batch of a worker.

    Attributes:
        tokens: its tokens with padding.
        trained_tokens: those with a loss, at most.
        mask_width: tokens of a row if attention gets a mask, e.g. since pairs share their prompt.
    """

    tokens: int
    trained_tokens: int
    mask_width: int = 0


def resting(use: ModelUse) -> Parts:
    """Return what a model holds between two steps; a model that is not trained has only weights.

    Plain torch, and ZeRO 0:

        weights b N, gradients none, optimizer 8 P, 4 P of masters if b = 2, 4 P of an average

    ZeRO 1 and 2 divide the optimizer by d, and have masters for b = 4, too. ZeRO 3 also divides the
    weights, and has masters only for b = 2; it always holds gradients, 4 P / d, and the buffer of
    their exchange. Offloaded parts are in CPU memory, with gradients of 4 P / d. An average of the
    weights is not divided.
    """
    elements = elements_of(use)
    if use.optimizer is None:
        return Parts(weights=elements.weight_bytes)
    sharding, stage = use.sharding, use.sharding.zero_stage or 0
    has_masters = use.has_masters or stage in (1, 2)
    parts = sharding.data_parallel if stage else 1
    state = (_moments(use, elements) + FLOAT * elements.trained * has_masters) / parts
    weights, gradients = elements.weight_bytes, 0.0
    if stage == PARTITIONED:
        weights, gradients = weights / parts, FLOAT * elements.trained / parts
    divided = Parts(weights=weights, gradients=gradients, optimizer=state)
    if sharding.offload_optimizer:
        host = state + FLOAT * elements.trained / parts
        divided = replace(divided, gradients=0.0, optimizer=0.0, host=host)
    if sharding.offload_parameters:
        divided = replace(divided, weights=0.0, host=divided.host + weights)
    average = Parts(optimizer=FLOAT * elements.trained * use.has_average)
    bucket = Parts(gradients=FLOAT * BUCKET * (stage == PARTITIONED))
    return divided + average + bucket


def _moments(use: ModelUse, elements: Elements) -> float:
    if use.optimizer == "muon":
        others = elements.trained - elements.matrices
        return FLOAT * (elements.matrices + MOMENTS * others)
    return FLOAT * MOMENTS * elements.trained


def phases(use: ModelUse, batch: MicroBatchSize) -> Iterator[tuple[str, Parts]]:
    """Yield what a trained model holds in the phases of a step that may be the largest.

    - *backward pass*: gradients of earlier micro-batches, all saved activations, and the larger of
      the loss and one layer.
    - *end of the backward pass* (b = 2): the layers' activations are gone, and the gradients are
      there twice: in bfloat16, and in float32 where they are added up.
    - *optimizer step*: gradients, and AdamW's temporary tensors. On a GPU, torch updates all
      weights at once and needs 4 P bytes for that.
    - *whole weights* (DeepSpeed): a whole copy of the weights beside the divided ones, for
      evaluations, checkpoints and the artifact.
    """
    rest, elements = resting(use), elements_of(use)
    during = rest + _gradients(use, elements)
    peak = activations.peak(use, batch.tokens, batch.trained_tokens, mask_width=batch.mask_width)
    gathered = Parts(weights=_gathered(use, elements))
    yield "backward pass", during + gathered + Parts(activations=peak)
    if use.has_masters and (use.sharding.zero_stage or 0) < 2:  # noqa: PLR2004 - a ZeRO stage
        layer = activations.of_a_running_layer(use, batch.tokens)
        twice = Parts(gradients=use.trained_bytes * elements.trained + 2 * FLOAT * elements.largest)
        yield "end of the backward pass", during + twice + Parts(activations=layer)
    yield "optimizer step", during + Parts(optimizer=_temporaries(use, elements))
    if use.sharding.zero_stage is not None:
        whole = Parts(weights=elements.weight_bytes * use.sharding.tensor_parallel_size)
        running = activations.without_gradient(use, batch.tokens, batch.trained_tokens)
        yield WHOLE_WEIGHTS, rest + whole + Parts(activations=running)


def _gathered(use: ModelUse, elements: Elements) -> float:
    """Return the weights that ZeRO 3 has gathered while a pass runs: b `LIVE`, and the largest."""
    if use.sharding.zero_stage != PARTITIONED:
        return 0.0
    return min(elements.weight_bytes, (LIVE + elements.largest) * use.dtype_bytes)


def _gradients(use: ModelUse, elements: Elements) -> Parts:
    """Return gradients from one micro-batch to the next, beside those in `resting`.

    4 P in float32 in plain torch, ZeRO 0 and 1; 4 P / d in ZeRO 2, twice with b = 4. ZeRO 1 and 2
    have a buffer of `BUCKET` elements: in float32, or in ZeRO 2 with b = 2 in bfloat16, with a copy
    in float32 while it is reduced; ZeRO 3 also has such a copy. From ZeRO 2 on, the largest
    gradient is reduced by itself, in the model's type and in float32.
    """
    sharding, stage = use.sharding, use.sharding.zero_stage or 0
    own = FLOAT * elements.trained
    if stage == 0:
        return Parts(gradients=own)
    if stage == 1:
        return Parts(gradients=own + FLOAT * BUCKET)
    passing = (FLOAT + use.trained_bytes) * elements.largest
    if stage == PARTITIONED:
        return Parts(gradients=passing + FLOAT * min(BUCKET, elements.trained))
    own /= sharding.data_parallel
    bucket = use.trained_bytes * BUCKET
    if use.has_masters:
        bucket += FLOAT * min(BUCKET, elements.trained)
    else:
        own *= 2
    if sharding.offload_optimizer:
        return Parts(gradients=bucket + passing)
    return Parts(gradients=own + bucket + passing)


def _temporaries(use: ModelUse, elements: Elements) -> float:
    sharding, stage = use.sharding, use.sharding.zero_stage or 0
    if stage:
        if sharding.offload_optimizer:
            return 0.0
        own = elements.trained / sharding.data_parallel
        at_once = min(own, SUB_GROUP) if stage == PARTITIONED else own
        return FLOAT * at_once * (2 if use.is_on_gpu else 1 + ADAMW_TEMPORARIES)
    exchanged = 0
    if sharding.workers > 1:
        exchanged = 2 * min(elements.trained, max(EXCHANGED, elements.largest))
    others = elements.trained
    muon = 0
    if use.optimizer == "muon":
        others -= elements.matrices
        muon = MUON_TEMPORARIES * FLOAT * elements.largest
    adamw = others if use.is_on_gpu else ADAMW_TEMPORARIES * elements.largest
    return max(FLOAT * max(adamw, exchanged), muon)
