"""Memory of the rollout engine that shares the GPU of a worker."""

from __future__ import annotations

from stages.configs.block import StageConfig
from stages.configs.placement_config import ApartConfig
from stages.configs.sampling_config import RolloutConfig
from stages.sizes.stage_size import GIB, Roles
from training_core.models.options import LoadOptions
from training_core.sizes import sampler
from training_core.sizes.decoder import Decoder
from training_core.sizes.model_use import ModelUse
from training_core.sizes.training_memory import Parts


def sampler_of(
    config: StageConfig,
    rollouts: RolloutConfig,
    decoder: Decoder,
    options: LoadOptions,
    rows: int,
) -> Roles:
    """Return the sampler, if it shares the worker's GPU; `auto` counts as vLLM.

    Args:
        config: has the GPUs.
        rollouts: engine and limits.
        decoder: shapes of the policy.
        options: dtype of the policy.
        rows: sequences that are sampled at once.
    """
    if isinstance(rollouts.placement, ApartConfig):
        return {}
    return {"sampler": _engine(config, rollouts, decoder, options, rows)}


def _engine(
    config: StageConfig,
    rollouts: RolloutConfig,
    decoder: Decoder,
    options: LoadOptions,
    rows: int,
) -> Parts:
    if rollouts.engine == "transformers":
        return sampler.transformers(
            decoder,
            ModelUse(decoder, options=options).dtype_bytes,
            rows=rows,
            max_tokens=rollouts.max_tokens,
            max_response_tokens=rollouts.max_response_tokens,
        )
    if not config.resources.num_gpus:
        return sampler.vllm_on_cpu(decoder)
    gpu_bytes = (config.resources.gpu_memory_gib or 0.0) * GIB
    return sampler.vllm(decoder, gpu_bytes, rollouts.gpu_memory_fraction)
