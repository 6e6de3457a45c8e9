"""Load the models, the reward and the rollout engine of PPO."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from transformers import PreTrainedTokenizerBase

from stages.configs.ppo_config import PpoConfig
from stages.configs.sampling_config import RolloutConfig
from stages.configs.training_config import BaseOptimizerConfig
from stages.contract import Cluster, Inputs
from stages.reinforcement.all_ranks import open_engine_of_ranks
from stages.reinforcement.experience import Estimation, TokenFunction, TokenFunctions
from stages.reinforcement.first_models import load_critic, load_reference
from stages.reinforcement.groups import GroupCollector
from stages.reinforcement.held_out import HeldOutEvaluation, load_held_out
from stages.reinforcement.kl_control import KlControl
from stages.reinforcement.learners import (
    Learner,
    at_work,
    critic_end_values,
    critic_values,
    policy_logprobs,
)
from stages.reinforcement.open_rewards import distance_to_reference, open_judge, open_reward
from stages.reinforcement.pretraining_mix import PretrainingMix, load_pretraining_mix
from stages.reinforcement.reward_shaper import RewardShaper
from stages.sampling.rollouts import load_prompts, open_engine
from stages.training.checkpointing import Part
from stages.training.engines import best_device, make_engine, on_device
from training_core.algorithms.corrections import CORRECTIONS
from training_core.algorithms.estimators import ADVANTAGES
from training_core.algorithms.kl import KL_ESTIMATORS
from training_core.data.chat import pad_id
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.ema import WeightAverage
from training_core.engine.protocol import TrainEngine
from training_core.models import hub
from training_core.models.computing import WithoutAdapter
from training_core.models.language_model import LanguageModel
from training_core.models.offloading import FrozenWeights
from training_core.rollout.engine import Policy, RolloutEngine


@dataclass(frozen=True)
class PpoModels:
    """Everything that the rounds of PPO use.

    Attributes:
        tokenizer: tokenizer of the policy.
        policy: trained.
        critic: trained; None if the advantages need none.
        reference: frozen; None without a KL penalty, or if it is the policy without its adapter.
        rollout_engine: samples from the policy.
        collector: samples and scores the groups of a round.
        shaper: turns rewards into those that the policy maximises.
        kl_control: holds the coefficient of the KL penalty.
        logprobs: of the policy with its current weights.
        functions: what policy, reference and critic compute on the rollouts of a round.
        estimation: how advantages are estimated.
        mix: texts beside the experience; None mixes nothing in.
        evaluation: of the policy on held-out prompts; None evaluates nothing.
        device: device of the trained models.
    """

    tokenizer: PreTrainedTokenizerBase
    policy: Learner
    critic: Learner | None
    reference: LanguageModel | None
    rollout_engine: RolloutEngine
    collector: GroupCollector
    shaper: RewardShaper
    kl_control: KlControl
    logprobs: TokenFunction
    functions: TokenFunctions
    estimation: Estimation
    mix: PretrainingMix | None
    evaluation: HeldOutEvaluation | None
    device: torch.device

    @property
    def learners(self) -> dict[str, Learner]:
        """The trained models, by name."""
        return {
            name: learner
            for name, learner in (("policy", self.policy), ("critic", self.critic))
            if learner is not None
        }

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the trained models compute while the body runs, on every rank."""
        with ExitStack() as stack:
            for learner in self.learners.values():
                stack.enter_context(learner.engine.at_work())
            yield

    @contextmanager
    def averaged_policy(self) -> Iterator[Policy]:
        """Yield the policy, or the average of its weights if there is one."""
        engine, average = self.policy.engine, self.policy.average
        if average is None:
            with engine.at_work():
                yield engine.weights_to_send()
            return
        with engine.gathered_weights() as model, average.in_place_of(model):
            yield model

    @property
    def parts(self) -> dict[str, Part]:
        """What goes into checkpoints besides models and engines, by name."""
        parts: dict[str, Part] = {
            "collector": self.collector,
            "shaper": self.shaper,
            "kl_control": self.kl_control,
        }
        if self.policy.average is not None:
            parts["average"] = self.policy.average
        if self.evaluation is not None:
            parts |= self.evaluation.parts
        return parts

    @property
    def ends_at(self) -> int | None:
        """The round after which the training ends early; None: it goes on."""
        return None if self.evaluation is None else self.evaluation.ends_at


def load_ppo_models(
    config: PpoConfig,
    inputs: Inputs,
    dist_info: DistInfo = SINGLE_PROCESS,
    cluster: Cluster | None = None,
) -> PpoModels:
    """Load everything that the config needs: no critic and no reference that nothing uses.

    Every rank maps the files of all models into its memory. Models that are divided come to the
    device one weight or one layer at a time, so that no GPU ever has a whole one.

    Args:
        config: of the stage.
        inputs: `policy`, and what the config needs besides.
        dist_info: this process.
        cluster: see `Context`.

    Raises:
        ConfigError: if the KL penalty needs a reference and there is none.
    """
    device = best_device()
    reference = load_reference(config, inputs)
    reward = open_reward(config, inputs, dist_info, cluster)
    tokenizer = hub.load_tokenizer(inputs["policy"])
    options = config.model.load_options(seed=config.seed)
    policy = hub.load_policy(inputs["policy"], options=options)
    policy = on_device(policy, config.engine) if config.ema_decay is None else policy.to(device)
    critic = _critic(config, inputs, tokenizer, dist_info)
    average = None if config.ema_decay is None else WeightAverage(policy, config.ema_decay)
    prompts = load_prompts(config.prompts, tokenizer, config.rollouts)
    held_out = load_held_out(config, tokenizer)

    def open_one(rollouts: RolloutConfig) -> RolloutEngine:
        return open_engine(rollouts, inputs["policy"], policy, tokenizer, cluster)

    rollout_engine = open_engine_of_ranks(open_one, config.rollouts, dist_info)
    policy_engine = _engine(policy, config.policy_optimizer, config, dist_info)
    shared = config.rollouts.temperature, config.micro_batch_tokens, dist_info
    functions = _functions(config, policy_engine, critic, reference, dist_info)
    distance = distance_to_reference(config, functions, pad_id(tokenizer), device)
    judge = open_judge(config, inputs, dist_info, distance)
    return PpoModels(
        tokenizer=tokenizer,
        policy=Learner(policy_engine, average, dist_info),
        critic=critic,
        reference=reference,
        rollout_engine=rollout_engine,
        collector=GroupCollector(config, rollout_engine, prompts, reward),
        shaper=RewardShaper(config),
        kl_control=KlControl(config),
        logprobs=policy_logprobs(policy_engine, *shared),
        functions=functions,
        estimation=estimation_of(config),
        mix=load_pretraining_mix(config, tokenizer),
        evaluation=held_out and HeldOutEvaluation(config, held_out, rollout_engine, reward, judge),
        device=device,
    )


def _critic(
    config: PpoConfig, inputs: Inputs, tokenizer: PreTrainedTokenizerBase, dist_info: DistInfo
) -> Learner | None:
    if not config.advantage.needs_critic:
        return None
    model = on_device(load_critic(config, inputs, tokenizer), config.engine)
    engine = _engine(model, config.critic_optimizer, config, dist_info)
    return Learner(engine, dist_info=dist_info)


def _engine(
    model: LanguageModel, optimizer: BaseOptimizerConfig, config: PpoConfig, dist_info: DistInfo
) -> TrainEngine:
    updates = config.steps * config.updates_per_step * config.epochs_per_step
    return make_engine(model, optimizer, updates, config.engine, dist_info)


def _held(reference: LanguageModel, config: PpoConfig, dist_info: DistInfo) -> FrozenWeights:
    frozen = config.frozen_models
    divided_by = dist_info if frozen.shard else None
    return FrozenWeights(reference, best_device(), offload=frozen.offload, divided_by=divided_by)


def _functions(
    config: PpoConfig,
    policy: TrainEngine,
    critic: Learner | None,
    reference: LanguageModel | None,
    dist_info: DistInfo,
) -> TokenFunctions:
    temperature = config.rollouts.temperature
    shared = config.micro_batch_tokens, dist_info
    recomputes, bootstraps = config.old_logprobs == "trainer", config.unfinished == "bootstrap"
    of_reference = None
    if reference is not None:
        resting = _held(reference, config, dist_info)
        of_reference = at_work(resting, policy_logprobs(resting, temperature, *shared))
    elif config.kl_coef:
        of_reference = policy_logprobs(WithoutAdapter(policy), temperature, *shared)
    return TokenFunctions(
        policy_logprobs(policy, temperature, *shared) if recomputes else None,
        of_reference,
        None if critic is None else critic_values(critic.engine, *shared),
        critic_end_values(critic.engine, *shared) if critic is not None and bootstraps else None,
    )


def estimation_of(config: PpoConfig) -> Estimation:
    """Look up the functions that a config names."""
    advantage, correction = config.advantage, config.correction
    return Estimation(
        partial(ADVANTAGES[advantage.entry].function, **advantage.hyperparameters),
        KL_ESTIMATORS[config.kl_estimator],
        None
        if correction is None
        else partial(CORRECTIONS[correction.entry], **correction.hyperparameters),
        masks_unfinished=config.unfinished == "mask",
        old_in_update=config.old_logprobs == "update",
        part_weights=config.part_weights,
    )
