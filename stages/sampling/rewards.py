"""The table of rewards: builds a reward from its config.

A new reward needs an entry here and a config class in `stages.configs.reward_config`.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stages import datasets
from stages.configs.model_config import FrozenModelsConfig
from stages.configs.reward_config import (
    CombinedRewardConfig,
    ExternalRewardModelRewardConfig,
    LexiconRewardConfig,
    PythonRewardConfig,
    RewardConfig,
    RewardModelRewardConfig,
    RewardPartConfig,
    WeightedRewardConfig,
    by_label,
)
from stages.configs.reward_service_config import (
    HttpRewardConfig,
    JudgeConfig,
    LlmJudgeRewardConfig,
    PairwiseJudgeConfig,
    ServiceConfig,
)
from stages.configs.verifier_config import (
    AnswerRewardConfig,
    CodeRewardConfig,
    LengthRewardConfig,
    MathsRewardConfig,
    PatternRewardConfig,
)
from stages.contract import Inputs
from stages.training.base_model import location_of
from stages.training.engines import best_device
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.errors import ConfigError
from training_core.rewards import functions
from training_core.rewards.chat_model import ChatModel
from training_core.rewards.code_reward import CodeReward
from training_core.rewards.combined import Combine, CombinedReward, weighted_sum
from training_core.rewards.json_service import JsonService
from training_core.rewards.judge import JudgeReward, PairwiseJudge
from training_core.rewards.maths import MathsReward
from training_core.rewards.model_reward import RewardModelReward
from training_core.rewards.python_function import PythonFunction, PythonReward, load_function
from training_core.rewards.reward import Reward
from training_core.rewards.sandbox import Limits, Sandbox
from training_core.rewards.service_reward import ServiceReward
from training_core.rewards.verifiers import AnswerReward, LengthReward, PatternReward

WAITING = frozenset({"http", "llm_judge", "code", "maths"})
"""Rewards that wait for a service or for other processes; as parts they are asked at once."""


@dataclass(frozen=True)
class RewardModelUse:
    """How reward models are held and used.

    Attributes:
        micro_batch_tokens: padded tokens in a micro-batch, at most.
        frozen: dtype, and where they are between two uses.
        dist_info: this process, with the others that call the reward together.
    """

    micro_batch_tokens: int = 8192
    frozen: FrozenModelsConfig = field(default_factory=FrozenModelsConfig)
    dist_info: DistInfo = SINGLE_PROCESS

    def load(self, directory: str | Path, revision: str | None, *, normalise: bool) -> Reward:
        """Load the reward model of a directory or hub id."""
        return RewardModelReward(
            directory,
            revision=revision,
            normalise=normalise,
            micro_batch_tokens=self.micro_batch_tokens,
            device=best_device(),
            options=self.frozen.load_options(),
            offload=self.frozen.offload,
            divided_by=self.dist_info if self.frozen.shard else None,
        )


def build_reward(config: RewardConfig, inputs: Inputs, use: RewardModelUse | None = None) -> Reward:
    """Build the reward that a config describes.

    Args:
        config: its `name` selects an entry of `REWARDS`.
        inputs: inputs of the stage.
        use: of reward models; by default in float32, on the device.

    Raises:
        ConfigError: if the stage has no input `reward_model` but needs it, or if a Python function
            cannot be imported or called.
    """
    return REWARDS[config.name](config, inputs, use or RewardModelUse())


def _lexicon(config: LexiconRewardConfig, *_: object) -> Reward:
    return functions.LexiconReward(datasets.read_lexicon(Path(config.path)), config.ignore)


def _reward_model(config: RewardModelRewardConfig, inputs: Inputs, use: RewardModelUse) -> Reward:
    if "reward_model" not in inputs:
        raise ConfigError("the reward `reward_model` needs a reward model as input, found none")
    return use.load(inputs["reward_model"], None, normalise=config.normalise)


def _external_reward_model(
    config: ExternalRewardModelRewardConfig, _: Inputs, use: RewardModelUse
) -> Reward:
    return use.load(*location_of(config.model), normalise=False)


def _python(config: PythonRewardConfig, *_: object) -> Reward:
    return PythonReward(load_function(config.code, config.function), config.arguments)


def _http(config: HttpRewardConfig, *_: object) -> Reward:
    return ServiceReward(
        _service(config, config.url),
        batch_size=config.batch_size,
        concurrency=config.concurrency,
        label_column=config.label_column,
    )


def _llm_judge(config: LlmJudgeRewardConfig, *_: object) -> Reward:
    return JudgeReward(
        _chat_model(config),
        config.template,
        low=config.low,
        high=config.high,
        concurrency=config.concurrency,
        label_column=config.label_column,
    )


def pairwise_judge(config: PairwiseJudgeConfig) -> PairwiseJudge:
    """Build the judge that compares two responses.

    Raises:
        ConfigError: if the environment variable of its token is not set.
    """
    return PairwiseJudge(
        _chat_model(config),
        config.template,
        concurrency=config.concurrency,
        label_column=config.label_column,
    )


def _chat_model(config: JudgeConfig) -> ChatModel:
    return ChatModel(
        _service(config, f"{config.url.rstrip('/')}/chat/completions"),
        model=config.model_name,
        temperature=config.temperature,
        max_reply_tokens=config.max_reply_tokens,
        cache=Path(config.cache_dir).expanduser() if config.cache_dir else None,
    )


def _service(config: ServiceConfig, url: str) -> JsonService:
    """Return the service that a config names, with the token of its environment variable.

    Raises:
        ConfigError: if the variable is not set.
    """
    token = os.environ.get(config.token_variable) if config.token_variable else None
    if config.token_variable and token is None:
        raise ConfigError(
            f"token_variable names {config.token_variable}, which is not set where this stage runs;"
            " set it, or remove token_variable"
        )
    return JsonService(
        url,
        token=token,
        connections=config.concurrency,
        timeout_seconds=config.timeout_seconds,
        retries=config.retries,
    )


def _answer(config: AnswerRewardConfig, *_: object) -> Reward:
    return AnswerReward(**config.model_dump(exclude={"name"}))


def _maths(config: MathsRewardConfig, *_: object) -> Reward:
    return MathsReward(**config.model_dump(exclude={"name"}))


def _pattern(config: PatternRewardConfig, *_: object) -> Reward:
    return PatternReward(config.pattern, timeout_seconds=config.timeout_seconds)


def _length(config: LengthRewardConfig, *_: object) -> Reward:
    return LengthReward(free_tokens=config.free_tokens, max_tokens=config.max_tokens)


def _code(config: CodeRewardConfig, *_: object) -> Reward:
    limits = Limits(
        seconds=config.timeout_seconds,
        memory_mib=config.memory_mib,
        file_mib=config.file_mib,
        processes=config.processes,
    )
    return CodeReward(
        Sandbox(limits, needs_isolation=config.needs_isolation),
        column=config.column,
        credit=config.credit,
        concurrency=config.concurrency,
    )


def _weighted(config: WeightedRewardConfig, inputs: Inputs, use: RewardModelUse) -> Reward:
    parts = by_label(config.parts)
    combine = weighted_sum({label: part.weight for label, part in parts.items()})
    return _of_parts(parts, combine, inputs, use)


def _combined(config: CombinedRewardConfig, inputs: Inputs, use: RewardModelUse) -> Reward:
    combine = PythonFunction(
        load_function(config.code, config.function),
        config.arguments,
        takes=("a rollout", "the values of its parts"),
    )
    return _of_parts(by_label(config.parts), combine, inputs, use)


def _of_parts(
    parts: Mapping[str, RewardPartConfig],
    combine: Combine,
    inputs: Inputs,
    use: RewardModelUse,
) -> Reward:
    built = {label: build_reward(part.reward, inputs, use) for label, part in parts.items()}
    waiting = [label for label, part in parts.items() if part.reward.name in WAITING]
    return CombinedReward(built, combine, waiting=waiting)


REWARDS: Mapping[str, Callable[..., Reward]] = {
    "cafe": lambda *_: functions.cafe_reward,
    "lexicon": _lexicon,
    "reward_model": _reward_model,
    "external_reward_model": _external_reward_model,
    "python": _python,
    "http": _http,
    "llm_judge": _llm_judge,
    "answer": _answer,
    "maths": _maths,
    "code": _code,
    "pattern": _pattern,
    "length": _length,
    "weighted": _weighted,
    "combined": _combined,
}
"""Name of a reward -> function that builds it: (config, inputs, use of reward models) -> reward."""
