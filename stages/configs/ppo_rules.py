"""Which fields of the stage `ppo` fit together.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Iterator

from stages.configs.ppo_fields import BasePpoConfig, KlEstimatorName
from stages.configs.ppo_options import AdaptiveKlConfig
from stages.configs.reward_config import WeightedRewardConfig, rewards_in
from stages.configs.sampling_config import COLDEST

HAS_GRADIENT_IN_LOSS: dict[KlEstimatorName, bool] = {"k1": False, "k2": True, "k3": True}
"""Whether the expected gradient of an estimator, used as a loss, is that of a divergence."""


def problems_in(config: BasePpoConfig) -> Iterator[str]:
    """Describe combinations of fields without effect, and those that an algorithm cannot use."""
    yield from _problems_of_advantages(config)
    yield from _problems_of_parts(config)
    yield from _problems_of_losses(config)
    yield from _problems_of_the_model(config)
    yield from _problems_of_the_evaluation(config)


def _problems_of_advantages(config: BasePpoConfig) -> Iterator[str]:
    advantage = config.advantage
    if advantage.needs_group and config.group_size == 1:
        yield (
            f"advantage '{advantage.entry}' compares the responses to a prompt, found "
            "group_size=1; raise group_size, or choose an advantage without groups"
        )
    if config.dynamic_sampling is not None and config.group_size == 1:
        yield (
            "dynamic_sampling drops groups of equal rewards, found group_size=1; raise "
            "group_size, or remove dynamic_sampling"
        )
    if config.critic_warmup_steps >= config.steps:
        yield (
            f"critic_warmup_steps={config.critic_warmup_steps} leaves none of steps="
            f"{config.steps} rounds to train the policy; lower it, or raise steps"
        )
    if config.critic_warmup_steps and not advantage.needs_critic:
        yield (
            f"critic_warmup_steps={config.critic_warmup_steps}, but advantage "
            f"'{advantage.entry}' has no critic; set it to 0"
        )
    if config.unfinished == "bootstrap" and not advantage.needs_critic:
        yield (
            f"unfinished: bootstrap needs the values of a critic, and advantage "
            f"'{advantage.entry}' has none; choose terminal or mask"
        )
    if config.overlong and config.overlong.buffer_tokens > config.rollouts.max_response_tokens:
        yield (
            f"overlong.buffer_tokens={config.overlong.buffer_tokens} is above "
            f"rollouts.max_response_tokens={config.rollouts.max_response_tokens}; lower it"
        )


def _problems_of_parts(config: BasePpoConfig) -> Iterator[str]:
    """Describe what an advantage that uses the parts of the reward does not use."""
    if not config.advantage.needs_parts:
        return
    name = config.advantage.entry
    if not isinstance(config.reward, WeightedRewardConfig):
        yield (
            f"advantage '{name}' normalises each part of a reward 'weighted' by itself, found the "
            f"reward '{config.reward.name}'; make it a part of a weighted one, or choose grpo"
        )
    changed = {
        "normalise_rewards": config.normalise_rewards,
        "reward_clip": config.reward_clip is not None,
        "unfinished_penalty": config.unfinished_penalty > 0,
        "unfinished_factor": config.unfinished_factor < 1,
        "overlong": config.overlong is not None,
    }
    if found := [field for field, is_set in changed.items() if is_set]:
        yield (
            f"advantage '{name}' uses the parts of the reward, so {', '.join(found)}, which change "
            "their sum, have no effect; remove them, e.g. in favour of a part `length`"
        )


def _problems_of_losses(config: BasePpoConfig) -> Iterator[str]:
    loss = config.policy_loss
    if loss.is_of_sequence and config.aggregation != loss.default_aggregation:
        yield (
            f"policy_loss '{loss.entry}' has one ratio per response, so its aggregation is "
            f"{loss.default_aggregation}, found {config.aggregation}; remove `aggregation`"
        )
    has_gradient = config.kl_by_ratio or HAS_GRADIENT_IN_LOSS[config.kl_estimator]
    if config.kl_in == "loss" and not has_gradient:
        yield (
            f"kl_in: loss with kl_estimator {config.kl_estimator} has no effect, because its "
            "expected gradient is zero; choose k2 or k3, kl_by_ratio: true, or kl_in: reward"
        )
    if config.kl_in == "reward" and config.kl_by_ratio:
        yield "kl_by_ratio is about the KL in the loss, found kl_in: reward; set it to false"
    if config.correction is not None and config.old_logprobs != "trainer":
        yield (
            "a correction weighs the trainer's old log-probabilities against the sampler's, and "
            f"old_logprobs: {config.old_logprobs} does not compute the former; remove one of the "
            "two"
        )
    updates = config.updates_per_step * config.epochs_per_step
    if config.old_logprobs == "update" and updates > 1:
        yield (
            f"old_logprobs: update is for rounds of one update, found {updates} (updates_per_step "
            "times epochs_per_step); use old_logprobs: trainer"
        )
    if config.kl_coef == 0 and isinstance(config.kl_control, AdaptiveKlConfig):
        yield "kl_control: adaptive scales kl_coef, found kl_coef=0; raise it"
    if config.kl_coef == 0 and config.reference_reset_steps:
        yield "reference_reset_steps needs a reference, found kl_coef=0; raise it, or remove it"
    if config.frozen_models.shard and config.reference_reset_steps:
        yield (
            "reference_reset_steps gives the reference other weights, which frozen_models.shard "
            "has divided among the workers; remove one of the two"
        )


def _problems_of_the_model(config: BasePpoConfig) -> Iterator[str]:
    model, lora = config.model, config.model.lora
    if model.frozen or model.moe_aux_loss_coef:
        yield (
            "model.frozen and model.moe_aux_loss_coef have no effect in PPO, found "
            f"{list(model.frozen)} and {model.moe_aux_loss_coef}; remove them"
        )
    if lora is not None and (lora.load_in_4bit or lora.dropout):
        yield (
            "model.lora: PPO samples and trains without dropout and with all digits, found "
            f"dropout={lora.dropout}, load_in_4bit={lora.load_in_4bit}; remove both"
        )
    if lora is not None and config.reference_reset_steps:
        yield (
            "reference_reset_steps cannot replace a reference that is the policy without its "
            "adapter; remove it, or model.lora"
        )


def _problems_of_the_evaluation(config: BasePpoConfig) -> Iterator[str]:
    evaluation = config.evaluation
    if evaluation is None:
        return
    if evaluation.every > config.steps:
        yield (
            f"evaluation.every={evaluation.every} is above steps={config.steps}, so no weights "
            "would be compared; lower it"
        )
    judges = rewards_in(evaluation.judge and evaluation.judge.reward)
    if both := [one.model_dump()["name"] for one in rewards_in(config.reward) if one in judges]:
        yield (
            "evaluation.judge.reward: expected a reward that the policy is not optimised for, "
            f"found '{both[0]}', which `reward` has too; choose another one"
        )
    temperature = evaluation.temperature
    if temperature and temperature < COLDEST and config.rollouts.engine != "transformers":
        yield (
            f"evaluation.temperature: expected 0 or at least {COLDEST}, found {temperature}, which "
            f"vLLM would replace by {COLDEST}; raise it, or choose rollouts.engine: transformers"
        )
