"""The fields of the stage `ppo`.

Importing this module imports neither torch nor transformers.
"""

from __future__ import annotations

from typing import Literal

from stages.configs.advantage_config import AdvantageConfig, AggregationName, GaeConfig
from stages.configs.block import StageConfig, operational, semantic
from stages.configs.canary_record import SKIP_CANARIES, CanaryName
from stages.configs.contract_rules import ALLOW_DIFFERENCES, ContractField
from stages.configs.correction_config import CorrectionConfig
from stages.configs.data_config import DataConfig
from stages.configs.model_config import FrozenModelsConfig, ModelConfig
from stages.configs.placement_config import InlineScoringConfig, ScoringConfig
from stages.configs.policy_loss_config import (
    ClippedValueLossConfig,
    PolicyLossConfig,
    PpoClipConfig,
    ValueLossConfig,
)
from stages.configs.ppo_evaluation_config import PpoEvaluationConfig
from stages.configs.ppo_options import (
    DynamicSamplingConfig,
    FixedKlConfig,
    KlControlConfig,
    OverlongConfig,
)
from stages.configs.reward_config import (
    RewardConfig,
    RewardModelRewardConfig,
    WeightedRewardConfig,
    by_label,
)
from stages.configs.sampling_config import MAX_GROUP_SIZE, RolloutConfig
from stages.configs.training_config import (
    ConstantAdamWConfig,
    ConstantOptimizerConfig,
    EngineConfig,
    TorchEngineConfig,
)

KlEstimatorName = Literal["k1", "k2", "k3"]


class BasePpoConfig(StageConfig):
    """The fields of the stage; `PpoConfig` also checks that they fit together."""

    takes_workers = True

    prompts: DataConfig = semantic(..., "Prompts for the rollouts.")
    reward: RewardConfig = semantic(RewardModelRewardConfig(), "Reward that the policy maximises.")
    rollouts: RolloutConfig = semantic(RolloutConfig(), "How responses are sampled.")
    steps: int = semantic(100, "Number of rounds of sampling and updating.", gt=0, le=1_000_000)
    prompts_per_step: int = semantic(64, "Prompts per round.", gt=0, le=100_000)
    group_size: int = semantic(2, "Responses per prompt.", gt=0, le=MAX_GROUP_SIZE)
    dynamic_sampling: DynamicSamplingConfig | None = semantic(
        None, "Replace the groups that teach nothing; None trains on every group."
    )
    updates_per_step: int = semantic(
        2, "Optimizer steps per pass over a round's rollouts.", gt=0, le=10_000
    )
    epochs_per_step: int = semantic(1, "Passes over a round's rollouts.", gt=0, le=1000)

    advantage: AdvantageConfig = semantic(
        GaeConfig(), "Estimator of the advantages; only `gae` has a critic."
    )
    policy_loss: PolicyLossConfig = semantic(PpoClipConfig(), "Loss of the policy per token.")
    value_loss: ValueLossConfig = semantic(
        ClippedValueLossConfig(), "Loss of the critic per token, averaged over all tokens."
    )
    aggregation: AggregationName = semantic(
        None,
        "From losses per token to the loss of an optimizer step. None uses what belongs to "
        "policy_loss and advantage: `sequence_mean` for gspo, gspo_token, gmpo and sapo, "
        "`constant_length` for dr_grpo, else `token_mean`, in which long responses count by their "
        "tokens (DAPO).",
        validate_default=True,
    )
    entropy_coef: float = semantic(
        0.0, "Weight of the entropy in the policy's loss, which raises it; 0 adds no bonus.", ge=0
    )
    correction: CorrectionConfig | None = semantic(
        None, "Weights for the gap between sampler and trainer; None corrects nothing."
    )
    old_logprobs: Literal["trainer", "update", "sampler"] = semantic(
        "trainer",
        "Where the old log-probabilities of the ratio come from. `trainer`: it recomputes them "
        "before the update. `update`: the update itself, which saves that forward pass and is the "
        "same if it is the only one of its round. `sampler`: those of the sampling, which saves "
        "the pass, too, and makes the ratio correct for the gap between sampler and trainer.",
    )

    unfinished: Literal["terminal", "bootstrap", "mask"] = semantic(
        "terminal",
        "What a response that the token limit cut is. `terminal`: the end of an episode, since the "
        "limit is part of the task. `bootstrap`: GAE goes on with the critic's value after the "
        "last token. `mask`: not trained on; its reward counts in the baseline of its group.",
    )
    unfinished_penalty: float = semantic(
        0.0,
        "Subtracted from the reward of a response that the token limit cut (TRL's "
        "missing_eos_penalty); 0: such a response keeps its reward.",
        ge=0,
    )
    unfinished_factor: float = semantic(
        1.0,
        "Factor on the positive reward of a response that the token limit cut (ProRL v2's "
        "stop-properly penalty uses 0); 1: it keeps its reward.",
        ge=0,
        le=1,
    )
    overlong: OverlongConfig | None = semantic(
        None, "Penalty that grows towards the token limit; None: no penalty."
    )
    normalise_rewards: bool = semantic(
        False, "Shift and scale rewards by the mean and deviation of all rewards so far."
    )
    reward_clip: float | None = semantic(
        None, "Limit of a reward's size, after normalisation; None sets no limit.", gt=0
    )

    kl_coef: float = semantic(
        0.02,
        "Penalty per nat of KL to the reference, in units of the reward; with 0 no reference is "
        "loaded.",
        ge=0,
    )
    kl_estimator: KlEstimatorName = semantic(
        "k1",
        "Estimator of the KL per token (Schulman 2020). k1 in the reward and k2 in the loss have "
        "the gradient of the KL.",
    )
    kl_in: Literal["reward", "loss"] = semantic(
        "reward", "Whether the KL is subtracted from the reward, or added to the policy's loss."
    )
    kl_by_ratio: bool = semantic(
        False,
        "Multiply the KL in the loss by the ratio of policy and old policy, which keeps its "
        "gradient exact after the first optimizer step of a round (DeepSeek-V3.2).",
    )
    kl_control: KlControlConfig = semantic(FixedKlConfig(), "How kl_coef changes over the rounds.")
    reference_reset_steps: int | None = semantic(
        None, "Rounds after which the policy becomes the new reference; None keeps the first.", gt=0
    )
    model: ModelConfig = semantic(
        ModelConfig(),
        "Options for loading the policy. Critic and reference have its dtype and attention. With "
        "`lora`, and if policy and reference are one model, the reference is the policy without "
        "its adapter.",
    )
    frozen_models: FrozenModelsConfig = semantic(
        FrozenModelsConfig(), "How reference and reward model are held."
    )
    critic_warmup_steps: int = semantic(
        0, "Number of first rounds that train only the critic; less than steps.", ge=0
    )
    policy_optimizer: ConstantOptimizerConfig = semantic(
        ConstantAdamWConfig(), "The policy's optimizer."
    )
    critic_optimizer: ConstantOptimizerConfig = semantic(
        ConstantAdamWConfig(learning_rate=5e-5), "The critic's optimizer."
    )
    ema_decay: float | None = semantic(
        None,
        "Decay per optimizer step of an average of the policy's weights, which becomes the "
        "artifact (0.992 in OpenRLHF); None uses no average.",
        ge=0,
        lt=1,
    )
    pretraining_data: DataConfig | None = semantic(
        None,
        "Texts whose likelihood is raised in every optimizer step of the policy (PPO-ptx, Ouyang "
        "et al. 2022); None mixes nothing in.",
    )
    pretraining_coef: float = semantic(
        0.05, "Weight of the texts' loss per token (OpenRLHF's ptx_coef).", gt=0
    )
    pretraining_batch_size: int = semantic(16, "Texts per optimizer step.", gt=0, le=100_000)
    evaluation: PpoEvaluationConfig | None = semantic(
        None, "Evaluation on held-out prompts during training; None keeps the last weights."
    )
    unscored_limit: float = semantic(
        0.02, "Largest allowed share of rollouts without a reward.", ge=0, le=1
    )
    allow_differences: tuple[ContractField, ...] = operational((), ALLOW_DIFFERENCES)
    skip_canaries: tuple[CanaryName, ...] = operational((), SKIP_CANARIES)
    scoring: ScoringConfig = operational(
        InlineScoringConfig(), "Where the reward is computed: inline or apart."
    )
    engine: EngineConfig = operational(
        TorchEngineConfig(),
        "Engine of policy and critic; with several workers DeepSpeed divides their state. Changes "
        "results only by rounding.",
    )
    micro_batch_tokens: int = operational(8192, "Padded tokens in a micro-batch, at most.", gt=0)
    save_every_steps: int = operational(10, "Rounds between checkpoints.", gt=0)
    keep_checkpoints: int = operational(2, "Number of complete checkpoints to keep.", gt=0)

    @property
    def part_weights(self) -> dict[str, float]:
        """Weight of each part of the reward, by label; empty unless the advantages use them."""
        if not self.advantage.needs_parts or not isinstance(self.reward, WeightedRewardConfig):
            return {}
        return {label: part.weight for label, part in by_label(self.reward.parts).items()}
