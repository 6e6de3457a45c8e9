"""Where the reference and the critic of PPO start."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from stages.configs.ppo_config import PpoConfig
from stages.configs.reward_config import RewardModelRewardConfig
from stages.contract import Inputs
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.models.language_model import LanguageModel
from training_core.models.scalar_head import normalise_scores


def load_reference(config: PpoConfig, inputs: Inputs) -> LanguageModel | None:
    """Load the frozen reference.

    Returns:
        None if there is no KL penalty, or if the policy without its adapter is the reference.

    Raises:
        ConfigError: if it is needed and not given.
    """
    if config.kl_coef == 0:
        return None
    if "reference" not in inputs:
        raise ConfigError(
            f"kl_coef={config.kl_coef} needs the input 'reference', found none; give one, or set "
            "kl_coef to 0"
        )
    if config.model.lora is not None and inputs["policy"] == inputs["reference"]:
        return None
    options = config.model.untrained().load_options(seed=config.seed)
    return hub.freeze(hub.load_policy(inputs["reference"], options=options))


def load_critic(
    config: PpoConfig, inputs: Inputs, tokenizer: PreTrainedTokenizerBase
) -> LanguageModel:
    """Load the critic: the reward model if it gives the reward, else the policy with a zero head.

    The head of a reward model is normalised as the rewards are, so the first values have the scale
    of the returns.

    Args:
        config: names the reward.
        inputs: with `policy`, and with `reward_model` if that is the reward.
        tokenizer: tokenizer of the policy.

    Raises:
        ConfigError: if the reward model has another vocabulary than the policy: the critic reads
            the token ids of the policy.
    """
    options = config.model.model_copy(update={"lora": None}).load_options(seed=config.seed)
    if not isinstance(config.reward, RewardModelRewardConfig):
        return hub.load_scalar_model(inputs["policy"], options=options)
    _require_known_ids(tokenizer, hub.load_tokenizer(inputs["reward_model"]))
    critic = hub.load_scalar_model(inputs["reward_model"], options=options)
    if config.reward.normalise:
        normalise_scores(critic)
    return critic


def _require_known_ids(policy: PreTrainedTokenizerBase, critic: PreTrainedTokenizerBase) -> None:
    if not policy.get_vocab().items() <= critic.get_vocab().items():
        raise ConfigError(
            "the critic starts from the reward model and reads the policy's token ids, so every "
            f"token must have one id in both; the vocabularies, of {len(policy)} and {len(critic)} "
            "tokens, differ. Train a reward model on a policy of this family, or use another reward"
        )
