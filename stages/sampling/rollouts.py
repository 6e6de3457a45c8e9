"""From prompts to rollouts, for all stages that sample from a policy."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from transformers import PreTrainedModel, PreTrainedTokenizerBase

from stages import datasets
from stages.configs.data_config import DataConfig
from stages.configs.sampling_config import RolloutConfig
from stages.contract import Context
from training_core.data.chat import encode_prompts
from training_core.errors import ConfigError, DataError, StoppedError
from training_core.rollout.engine import (
    RolloutEngine,
    Sampling,
    logprob_gap,
    require_same_policy,
)
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.rollout.vllm_engine import VllmEngine, why_not
from training_core.types import Prompt, Rollout

log = logging.getLogger(__name__)

PROBES = 16
"""Rollouts whose log-probabilities the trainer's model recomputes after an engine is opened."""


def load_prompts(
    data: DataConfig, tokenizer: PreTrainedTokenizerBase, rollouts: RolloutConfig
) -> list[Prompt]:
    """Load and tokenise prompts.

    Prompts that leave no room for a response are dropped, and the log states how many.

    Raises:
        DataError: if none is left.
    """
    rows = datasets.prompts(data)
    names = [str(i) for i in range(1, len(rows) + 1)]
    prompts = encode_prompts(
        tokenizer, names, [row.prompt for row in rows], [row.columns for row in rows]
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
    return kept


def sampling_of(rollouts: RolloutConfig) -> Sampling:
    """Build the sampling parameters that a config describes."""
    return Sampling(
        max_response_tokens=rollouts.max_response_tokens, temperature=rollouts.temperature
    )


def open_engine(
    rollouts: RolloutConfig,
    directory: Path,
    policy: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
) -> RolloutEngine:
    """Open the rollout engine for the policy in `directory`; the log states which one, and why.

    Args:
        rollouts: the configured engine and limits.
        directory: Hugging Face directory of the policy.
        policy: the same policy, loaded.
        tokenizer: its tokenizer.

    Raises:
        ConfigError: if the config names vLLM and it cannot run here.
    """
    reason = "configured" if rollouts.engine == "transformers" else why_not(policy.config)
    if reason is None:
        log.info("rollouts come from vLLM")
        return VllmEngine(
            directory,
            tokenizer,
            max_tokens=rollouts.max_tokens,
            gpu_memory_fraction=rollouts.gpu_memory_fraction,
        )
    if rollouts.engine == "vllm":
        raise ConfigError(f"rollouts.engine is vllm, but {reason}; choose auto or transformers")
    log.warning("rollouts come from transformers, which is slower than vLLM: %s", reason)
    return TransformersEngine(policy, tokenizer)


def verify_engine(
    engine: RolloutEngine,
    policy: PreTrainedModel,
    some: Sequence[Rollout],
    rollouts: RolloutConfig,
    pad_id: int,
) -> None:
    """Recompute some rollouts' log-probabilities with `policy` and stop if they differ.

    Raises:
        MismatchError: if the engine samples from another policy.
    """
    gap = logprob_gap(policy, some[:PROBES], None, temperature=rollouts.temperature, pad_id=pad_id)
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
    chunk: int = 256,
) -> list[list[Rollout]]:
    """Sample `group_size` responses per prompt.

    Returns:
        One group per prompt, in order. The same seed gives the same rollouts for any chunk size.
    """
    groups: list[list[Rollout]] = []
    per_chunk = max(1, chunk // group_size)
    for start in range(0, len(prompts), per_chunk):
        some = prompts[start : start + per_chunk]
        repeated = [p for p in some for _ in range(group_size)]
        first = start * group_size
        seeds = [seed * 1_000_003 + first + i for i in range(len(repeated))]
        flat = engine.generate(repeated, sampling, seeds=seeds)
        if context and context.should_stop():
            raise StoppedError(f"stopped after {start + len(some)} of {len(prompts)} prompts")
        groups += [flat[i : i + group_size] for i in range(0, len(flat), group_size)]
        if context:
            context.sink.progress(len(groups), len(prompts), "prompts sampled")
    return groups
