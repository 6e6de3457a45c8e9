"""Estimates of PPO, and of stages that only sample."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

from pydantic import BaseModel

from stages.configs.block import StageConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.placement_config import (
    ColocatedConfig,
    InlineConfig,
    InlineScoringConfig,
    gpus_apart,
)
from stages.configs.ppo_config import PpoConfig
from stages.configs.reward_config import (
    ExternalRewardModelRewardConfig,
    RewardModelRewardConfig,
    rewards_in,
)
from stages.configs.sampling_config import GroupSamplingConfig
from stages.sizes.dataset_rows import rows_in
from stages.sizes.frozen_models import FrozenModels, divided_by
from stages.sizes.rollout_engines import sampler_of
from stages.sizes.stage_size import Roles, StageSize, Work, largest_phase, limit_of
from stages.sizes.trained_stages import sharding_of
from training_core.models.options import LoadOptions
from training_core.sizes import flops, sampler
from training_core.sizes.decoder import Decoder, HeadKind
from training_core.sizes.model_use import ModelUse, OptimizerName
from training_core.sizes.training_memory import (
    WHOLE_WEIGHTS,
    MicroBatchSize,
    phases,
    resting,
)

SCORED_TOKENS = 8192
"""Tokens of a micro-batch of a frozen model, where the config has no limit."""
POLICIES_AT_ONCE = 3
"""Policies that an evaluation holds while it loads the next one: baseline, last and next."""


def group_sampling(config: GroupSamplingConfig, decoder: Decoder) -> StageSize:
    """Estimate a stage that samples groups from one policy and scores them."""
    prompts = rows_in(config.prompts)
    sampled = None if prompts is None else prompts * config.group_size
    return _sampled(config, decoder, ("policy",), ("policy",), sampled)


def evaluation(config: EvaluationConfig, decoder: Decoder, policies: int) -> StageSize:
    """Estimate an evaluation of so many policies, the baseline included."""
    prompts = rows_in(config.prompts)
    per_policy = None if prompts is None else prompts * config.responses_per_prompt
    others = [f"policy {n}" for n in range(1, min(policies, POLICIES_AT_ONCE))]
    sampled = None if per_policy is None else per_policy * policies
    return _sampled(config, decoder, ("baseline", *others), ("baseline", *others[-1:]), sampled)


def _sampled(
    config: GroupSamplingConfig | EvaluationConfig,
    decoder: Decoder,
    held: tuple[str, ...],
    compared: tuple[str, ...],
    sampled: int | None,
) -> StageSize:
    """Estimate a stage that only samples.

    Args:
        config: of the stage.
        decoder: shapes of all models.
        held: policies that are in memory at once.
        compared: those of them that compute log-probabilities at once.
        sampled: responses; None: unknown.
    """
    rollouts, options = config.rollouts, config.frozen_models.load_options()
    uses = {role: _use(config, decoder, options) for role in held}
    scorer = _reward_model(config, decoder, options)
    frozen = config.frozen_models
    models = FrozenModels({**uses, **scorer}, frozen.offload, divided_by(frozen))
    idle = sampler_of(config, rollouts, decoder, options, rows=0)
    busy = sampler_of(config, rollouts, decoder, options, sampler.ROWS)
    phase, roles = largest_phase(
        [
            ("sampling", {**models.at_rest(), **busy}),
            ("rewards", {**models.at_work(*scorer, tokens=SCORED_TOKENS), **idle}),
            ("log-probabilities", {**models.at_work(*compared, tokens=SCORED_TOKENS), **idle}),
        ]
    )
    sequence = flops.Sequence(rollouts.max_tokens, rollouts.max_response_tokens)
    scored = flops.forward(decoder, sequence, "score") if scorer else 0.0
    each = flops.forward(decoder, sequence) + scored
    return StageSize(
        workers=config.resources.num_workers,
        num_gpus=config.resources.num_gpus,
        phase=phase,
        roles=roles,
        work=Work(
            tokens_per_step=None if sampled is None else float(sampled * rollouts.max_tokens),
            flops_per_step=None if sampled is None else sampled * each,
            steps=None if sampled is None else 1,
        ),
        limit_gib=limit_of(config.resources),
        gpus_apart=gpus_apart(config),
    )


def ppo(config: PpoConfig, decoder: Decoder) -> StageSize:
    """Estimate PPO: one round samples, scores, and updates policy and critic."""
    phase, roles = largest_phase(ppo_phases(config, decoder))
    return StageSize(
        workers=config.resources.num_workers,
        num_gpus=config.resources.num_gpus,
        phase=phase,
        roles=roles,
        work=_ppo_work(config, decoder),
        limit_gib=limit_of(config.resources),
        gpus_apart=gpus_apart(config),
    )


def ppo_phases(config: PpoConfig, decoder: Decoder) -> Iterator[tuple[str, Roles]]:
    """Yield the phases of a round, with what each model holds in them."""
    trained = _trained(config, decoder)
    rows = math.ceil(config.prompts_per_step * config.group_size / config.resources.num_workers)
    models = _frozen_models_of_ppo(config, decoder)
    rest = {**{role: resting(use) for role, use in trained.items()}, **models.at_rest()}
    tokens = config.rollouts.max_tokens
    each = max(tokens, min(config.micro_batch_tokens, rows * tokens))
    batch = MicroBatchSize(each, each)
    sampled_in = trained["policy"].options
    busy = sampler_of(config, config.rollouts, decoder, sampled_in, rows)
    yield "sampling", {**rest, **busy}
    idle = _idle_sampler(config, decoder, sampled_in)
    for role in models.uses:
        yield f"{role}: forward pass", {**rest, **models.at_work(role, tokens=each), **idle}
    for role, use in trained.items():
        for name, parts in phases(use, batch):
            if name != WHOLE_WEIGHTS or _gathers_all(config):
                yield f"{role}: {name}", {**rest, **idle, role: parts}


def _gathers_all(config: PpoConfig) -> bool:
    """Whether whole weights are gathered beside the divided ones.

    ZeRO 3 computes layer by layer, and sends a few weights at a time; but an average of the weights
    and the transformers engine in the same process take them whole.
    """
    rollouts = config.rollouts
    copies = rollouts.engine == "transformers" and isinstance(rollouts.placement, InlineConfig)
    return not config.engine.divides_weights or copies or config.ema_decay is not None


def _frozen_models_of_ppo(config: PpoConfig, decoder: Decoder) -> FrozenModels:
    uses: dict[str, ModelUse] = {}
    if isinstance(config.scoring, InlineScoringConfig):
        options = config.frozen_models.load_options()
        uses |= _reward_model(config, decoder, options)
        if _has_model(_judge(config)):
            uses["judge"] = _use(config, decoder, options, head="score")
    if config.kl_coef and config.model.lora is None:
        options = config.model.untrained().load_options(seed=config.seed)
        uses["reference"] = _use(config, decoder, options)
    frozen = config.frozen_models
    return FrozenModels(uses, frozen.offload, divided_by(frozen, config.resources.num_workers))


def _idle_sampler(config: PpoConfig, decoder: Decoder, options: LoadOptions) -> Roles:
    """Return what the sampler holds between two rounds.

    vLLM keeps everything, unless it sleeps. transformers has only its copy of the policy.
    """
    rollouts = config.rollouts
    may_sleep = isinstance(rollouts.placement, ColocatedConfig) and rollouts.placement.sleep
    if may_sleep and rollouts.engine != "transformers" and config.resources.num_gpus:
        return {}
    return sampler_of(config, rollouts, decoder, options, rows=0)


def _trained(config: PpoConfig, decoder: Decoder) -> dict[str, ModelUse]:
    """Return the models that the engine holds, by role."""
    sharding = sharding_of(config.engine, config.resources.num_workers)
    policy = replace(
        _use(
            config,
            decoder,
            config.model.load_options(seed=config.seed),
            config.policy_optimizer.name,
        ),
        sharding=sharding,
        has_average=config.ema_decay is not None,
    )
    if not config.advantage.needs_critic:
        return {"policy": policy}
    critic = replace(
        _use(
            config,
            decoder,
            replace(policy.options, lora=None),
            config.critic_optimizer.name,
            head="score",
        ),
        sharding=sharding,
    )
    return {"policy": policy, "critic": critic}


def _ppo_work(config: PpoConfig, decoder: Decoder) -> Work:
    rollouts, rows = config.rollouts, config.prompts_per_step * config.group_size
    sequence = flops.Sequence(rollouts.max_tokens, rollouts.max_response_tokens)
    forward = flops.forward(decoder, sequence)
    score = flops.forward(decoder, sequence, "score")
    # sampling, old and reference's log-probabilities; values; rewards
    recomputed = (config.old_logprobs == "trainer") + (config.kl_coef > 0)
    experience = (1 + recomputed) * forward + score * _has_model(config.reward)
    updates = flops.training(decoder, sequence)
    if config.advantage.needs_critic:
        experience += score
        updates += flops.training(decoder, sequence, "score")
    held_out = _held_out_rows(config)
    scored = _has_model(config.reward) + _has_model(_judge(config))
    of_evaluation = held_out * (forward + score * scored)
    return Work(
        tokens_per_step=float((rows + held_out) * rollouts.max_tokens),
        flops_per_step=rows * (experience + config.epochs_per_step * updates) + of_evaluation,
        steps=config.steps,
    )


def _held_out_rows(config: PpoConfig) -> float:
    """Return the held-out responses per round; prompts of unknown number are not counted."""
    evaluation = config.evaluation
    if evaluation is None:
        return 0.0
    times = 1 + math.ceil(config.steps / evaluation.every)  # the first is before the first round
    prompts = sum(rows_in(each.data) or 0 for each in evaluation.prompts)
    return prompts * evaluation.samples_per_prompt * times / config.steps


def _use(
    config: StageConfig,
    decoder: Decoder,
    options: LoadOptions,
    optimizer: OptimizerName | None = None,
    head: HeadKind = "lm_head",
) -> ModelUse:
    is_on_gpu = config.resources.num_gpus > 0
    return ModelUse(decoder, head, options, optimizer=optimizer, is_on_gpu=is_on_gpu)


def _judge(config: PpoConfig) -> BaseModel | None:
    """Return the reward that watches for over-optimisation."""
    evaluation = config.evaluation
    return evaluation and evaluation.judge and evaluation.judge.reward


def _has_model(reward: BaseModel | None) -> bool:
    """Whether a reward model is on the GPU; that of a service is elsewhere."""
    kinds = (RewardModelRewardConfig, ExternalRewardModelRewardConfig)
    return any(isinstance(part, kinds) for part in rewards_in(reward))


def _reward_model(
    config: GroupSamplingConfig | EvaluationConfig | PpoConfig,
    decoder: Decoder,
    options: LoadOptions,
) -> dict[str, ModelUse]:
    """Return the reward model, if the reward is one; an external one is taken to be as large."""
    if not _has_model(config.reward):
        return {}
    return {"reward_model": _use(config, decoder, options, head="score")}
