"""From prompts to rollouts, for all stages that sample from a policy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from transformers import PreTrainedConfig, PreTrainedModel, PreTrainedTokenizerBase

from stages import datasets
from stages.batches.unknown_tokens import count_unknown, require_known
from stages.configs.data_config import DataConfig
from stages.configs.placement_config import ApartConfig, ColocatedConfig, InlineConfig
from stages.configs.sampling_config import RolloutConfig, TruncatedRolloutConfig
from stages.contract import Cluster, Context
from stages.datasets import PromptRow
from stages.training.engines import best_device
from training_core.data.chat import encode_prompts
from training_core.dist_info import DistInfo
from training_core.errors import ConfigError, DataError, StoppedError
from training_core.models.causal_lm import logprobs
from training_core.models.offloading import FrozenWeights
from training_core.models.sharding import is_divided
from training_core.rollout.engine import (
    RolloutEngine,
    Sampling,
    logprob_gap,
    require_same_policy,
)
from training_core.rollout.engine_spec import EngineSpec
from training_core.rollout.local_engines import LocalHost
from training_core.rollout.sampling import RolloutRequest
from training_core.rollout.separate_engines import SeparateEngines
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.rollout.vllm_engine import require_whole_heads, why_not
from training_core.rollout.weight_sending import WeightSender
from training_core.types import Prompt, Rollout

log = logging.getLogger(__name__)

PROBES = 16
"""Rollouts whose log-probabilities the trainer's model recomputes after an engine is opened."""

PROGRESS_EVERY = 64
"""Rollouts between two reports of the progress."""


def load_prompts(
    data: DataConfig, tokenizer: PreTrainedTokenizerBase, rollouts: RolloutConfig
) -> list[Prompt]:
    """Load and tokenise prompts; see `encode_rows`."""
    return encode_rows(datasets.prompts(data), tokenizer, rollouts)


def encode_rows(
    rows: Sequence[PromptRow], tokenizer: PreTrainedTokenizerBase, rollouts: RolloutConfig
) -> list[Prompt]:
    """Tokenise prompts; the id of each is the number of its row, for every tokenizer.

    Prompts that leave no room for a response are dropped, and the log states how many.

    Raises:
        DataError: if none is left, or too many of their tokens are unknown.
    """
    prompts = encode_prompts(
        tokenizer,
        [str(i) for i in range(1, len(rows) + 1)],
        [row.prompt for row in rows],
        [row.columns for row in rows],
        names=datasets.row_names(rows),
    )
    room = rollouts.max_tokens - rollouts.max_response_tokens
    kept = [p for p in prompts if len(p.input_ids) <= room]
    if len(kept) < len(prompts):
        log.warning(
            "%d of %d prompts are longer than %d tokens and were dropped",
            len(prompts) - len(kept),
            len(prompts),
            room,
        )
    if not kept:
        raise DataError(
            f"no prompt fits into max_tokens - max_response_tokens = {room} tokens; "
            "raise max_tokens"
        )
    sequences = (prompt.input_ids for prompt in kept)
    require_known(count_unknown(tokenizer, rows, sequences), rollouts.unknown_limit)
    return kept


def sampling_of(rollouts: RolloutConfig) -> Sampling:
    """Build the sampling parameters that a config describes."""
    whole = Sampling(
        max_response_tokens=rollouts.max_response_tokens,
        temperature=rollouts.temperature,
        stop=rollouts.stop,
        stop_tokens=rollouts.stop_tokens,
    )
    if not isinstance(rollouts, TruncatedRolloutConfig):
        return whole
    return replace(whole, top_p=rollouts.top_p, top_k=rollouts.top_k, min_p=rollouts.min_p)


def open_engine(
    rollouts: RolloutConfig,
    directory: Path,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    cluster: Cluster | None = None,
) -> RolloutEngine:
    """Open the rollout engine for the policy in `directory`; the log states which one, and why.

    Args:
        rollouts: the configured engine and limits.
        directory: Hugging Face directory of the policy.
        policy: the same policy, loaded.
        tokenizer: its tokenizer.
        cluster: where engines that are apart are started; None: on this machine.

    Raises:
        ConfigError: if the config names vLLM and it cannot run here, or cannot divide the model.
    """
    kind = engine_kind(rollouts, policy.config)
    placement = rollouts.placement
    spec = EngineSpec(
        kind=kind,
        directory=directory,
        tokenizer=tokenizer,
        dtype=policy.dtype,
        device=best_device().type,
        max_tokens=rollouts.max_tokens,
        gpu_memory_fraction=rollouts.gpu_memory_fraction,
    )
    if spec.kind == "transformers" and isinstance(placement, InlineConfig):
        if any(map(is_divided, policy.parameters())):
            raise ConfigError(
                "frozen_models.shard keeps a part of the policy on the GPU, and the rollout engine "
                "would copy all of it; set rollouts.placement: {name: colocated}, or use vllm"
            )
        return TransformersEngine(policy, tokenizer, best_device())
    if isinstance(placement, ColocatedConfig):
        return _colocated(replace(spec, sleeps=placement.sleep), placement)
    if isinstance(placement, ApartConfig):
        require_whole_heads(policy.config, placement.tensor_parallel_size)
        return _apart(spec, placement, cluster)
    return spec.open()


def engine_kind(
    rollouts: RolloutConfig, model: PreTrainedConfig
) -> Literal["vllm", "transformers"]:
    """Return the engine that samples from a model with this config; the log states it, and why.

    Raises:
        ConfigError: if the config names vLLM and it cannot run the model here.
    """
    reason = "configured" if rollouts.engine == "transformers" else why_not(model)
    if reason is None:
        log.info("rollouts come from vLLM")
        return "vllm"
    if rollouts.engine == "vllm":
        raise ConfigError(f"rollouts.engine is vllm, but {reason}; choose auto or transformers")
    log.warning("rollouts come from transformers, which is slower than vLLM: %s", reason)
    return "transformers"


def _colocated(spec: EngineSpec, placement: ColocatedConfig) -> RolloutEngine:
    host = LocalHost(placement.engines, silence_seconds=placement.silence_seconds)
    return SeparateEngines(spec, host, placement.engines)


def _apart(spec: EngineSpec, placement: ApartConfig, cluster: Cluster | None) -> RolloutEngine:
    """Open engines on the cluster, or on this machine if there is none."""
    spec = replace(
        spec,
        device="cuda" if placement.num_gpus and torch.cuda.is_available() else "cpu",
        tensor_parallel_size=placement.tensor_parallel_size,
    )
    if cluster is not None:
        host = cluster.engine_host(placement)
    else:
        log.warning("without a Ray job, engines that are apart are processes of this machine")
        host = LocalHost(
            placement.engines,
            silence_seconds=placement.silence_seconds,
            gpus=int(placement.num_gpus),
        )
    weights = WeightSender(
        placement.weights,
        parts=placement.tensor_parallel_size if spec.kind == "vllm" else 1,
        host=host.address,
        timeout_seconds=placement.silence_seconds,
    )
    return SeparateEngines(spec, host, placement.engines, weights=weights)


def placed_beside_ranks(rollouts: RolloutConfig, dist_info: DistInfo) -> RolloutConfig:
    """Return the config with which one of several workers opens its engines.

    vLLM has ranks of its own, which would be those of the stage in its process, so it is colocated
    there instead of inline.
    """
    is_inline = isinstance(rollouts.placement, InlineConfig)
    if dist_info.is_single_process or not is_inline or rollouts.engine == "transformers":
        return rollouts
    return rollouts.model_copy(update={"placement": ColocatedConfig()})


def verify_engine(
    engine: RolloutEngine,
    policy: FrozenWeights,
    some: Sequence[Rollout],
    rollouts: RolloutConfig,
    pad_id: int,
) -> None:
    """Recompute some rollouts' log-probabilities with `policy` and stop if they differ.

    If the sampling is truncated or greedy, the engine samples responses to the same prompts again
    from the full distribution: the smallest rounding decides which tokens a truncation leaves.

    Raises:
        MismatchError: if the engine samples from another policy.
    """
    probes = some[:PROBES]
    temperature = rollouts.temperature or 1.0
    if not sampling_of(rollouts).is_whole:
        whole = Sampling(rollouts.max_response_tokens, temperature)
        probes = engine.generate([r.prompt for r in probes], whole, seeds=range(len(probes)))
    ours = partial(policy.compute, partial(logprobs, temperature=temperature))
    with policy.at_work():
        gap = logprob_gap(probes, ours, pad_id=pad_id, device=policy.device)
    require_same_policy(gap, limit=rollouts.logprob_gap_limit, engine=engine)
    log.info("the engine's log-probabilities equal the policy's: mean gap %.1e nats", gap.mean)


def sample_groups(
    engine: RolloutEngine,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    *,
    group_size: int,
    seed: int,
    context: Context | None = None,
) -> list[list[Rollout]]:
    """Sample `group_size` responses per prompt.

    Returns:
        One group per prompt, in order. A response depends on its own seed, not on when it is
        sampled.

    Raises:
        StoppedError: if the stage shall stop.
    """
    count = len(prompts) * group_size
    engine.submit(
        [
            RolloutRequest(str(i), prompts[i // group_size], sampling, seed * 1_000_003 + i)
            for i in range(count)
        ]
    )
    rollouts: dict[str, Rollout] = {}
    for name, rollout in engine.finished():
        rollouts[name] = rollout
        done = len(rollouts) // group_size
        if context and context.should_stop():
            raise StoppedError(f"stopped after about {done} of {len(prompts)} prompts")
        if context and (len(rollouts) % PROGRESS_EVERY == 0 or len(rollouts) == count):
            context.sink.progress(done, len(prompts), "prompts sampled")
    flat = [rollouts[str(i)] for i in range(count)]
    return [flat[i : i + group_size] for i in range(0, count, group_size)]
