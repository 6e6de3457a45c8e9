"""The stages, one record each: all that anybody else knows of a stage stands here.

Raise a version when a stage gives other results for the same config; a golden-value test says when
that is. Reading this module imports no torch.
"""

from __future__ import annotations

from difflib import get_close_matches

from stages.configs.block import StageConfig
from stages.configs.distillation_config import DistillationConfig
from stages.configs.dpo_config import DpoConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.kto_config import KtoConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.preference_pairs_config import PreferencePairsConfig
from stages.configs.process_reward_config import ProcessRewardConfig
from stages.configs.rejection_sampling_config import RejectionSamplingConfig
from stages.configs.reward_model_config import RewardModelConfig
from stages.configs.sft_config import SftConfig
from stages.contract import DatasetUse, RowsName, StageSpec
from training_core.errors import ConfigError

PROMPTS = {"prompts": DatasetUse("prompts", is_trained_on=True)}
LOSS = {"loss": "Loss"}
RANKED = {
    "accuracy": "Pairs ranked right (fraction)",
    "reward_margin": "Reward margin, chosen over rejected",
}


def _data(rows: RowsName) -> dict[str, DatasetUse]:
    """The two datasets of a stage that trains on rows."""
    return {"data": DatasetUse(rows, is_trained_on=True), "eval_data": DatasetUse(rows)}


STAGES: dict[str, StageSpec] = {
    spec.name: spec
    for spec in (
        StageSpec(
            name="sft",
            version=1,
            config=SftConfig,
            makes="policy",
            optional={"policy": "policy", "dataset": "dataset"},
            reads=_data("demonstrations"),
            trains=True,
            headline="held-out loss {heldout_loss_before->heldout_loss}",
            curves=LOSS,
        ),
        StageSpec(
            name="reward_model",
            version=1,
            config=RewardModelConfig,
            makes="reward_model",
            required={"policy": "policy"},
            optional={"dataset": "dataset"},
            reads=_data("preferences"),
            trains=True,
            headline="held-out accuracy {heldout_accuracy}",
            curves=LOSS | RANKED,
        ),
        StageSpec(
            name="process_reward",
            version=1,
            config=ProcessRewardConfig,
            makes="process_reward_model",
            required={"policy": "policy"},
            optional={"dataset": "dataset"},
            reads=_data("solutions"),
            trains=True,
            headline="held-out step accuracy {heldout_accuracy} (majority {heldout_majority})",
            curves=LOSS | {"accuracy": "Steps judged right (fraction)"},
        ),
        StageSpec(
            name="rejection_sampling",
            version=1,
            config=RejectionSamplingConfig,
            makes="dataset",
            required={"policy": "policy"},
            optional={"reward_model": "reward_model"},
            reads=PROMPTS,
            headline="{kept} responses to {prompts} prompts kept, "
            "reward {mean_reward->best_reward}",
        ),
        StageSpec(
            name="preference_pairs",
            version=1,
            config=PreferencePairsConfig,
            makes="dataset",
            required={"policy": "policy"},
            optional={"reward_model": "reward_model"},
            reads=PROMPTS,
            headline="{pairs} pairs from {prompts} prompts, margin {mean_margin}",
        ),
        StageSpec(
            name="dpo",
            version=1,
            config=DpoConfig,
            makes="policy",
            required={"policy": "policy"},
            optional={"reference": "policy", "dataset": "dataset"},
            families={"dataset_": "dataset"},
            reads=_data("preferences"),
            trains=True,
            headline="{accuracy} of {train_pairs} training pairs ranked right",
            curves=LOSS | RANKED,
        ),
        StageSpec(
            name="kto",
            version=1,
            config=KtoConfig,
            makes="policy",
            required={"policy": "policy", "reference": "policy"},
            optional={"dataset": "dataset"},
            reads=_data("unpaired_responses"),
            trains=True,
            headline="held-out margin {heldout_margin_before->heldout_margin}",
            curves=LOSS,
        ),
        StageSpec(
            name="distillation",
            version=1,
            config=DistillationConfig,
            makes="policy",
            required={"policy": "policy", "teacher": "policy"},
            optional={"dataset": "dataset"},
            reads=_data("demonstrations"),
            trains=True,
            headline="held-out divergence {heldout_divergence_before->heldout_divergence}",
            curves=LOSS,
        ),
        StageSpec(
            name="ppo",
            version=1,
            config=PpoConfig,
            makes="policy",
            required={"policy": "policy", "reference": "policy"},
            optional={"reward_model": "reward_model"},
            reads=PROMPTS,
            trains=True,
            headline="training reward {reward} at KL {kl}",
            curves={
                "reward": "Reward",
                "kl": "KL to the reference (nats per response)",
                "response_tokens": "Response length (tokens)",
                "logprob_gap": "Log-probability gap, sampler to trainer (nats)",
                "policy_entropy": "Entropy (nats per token)",
                "critic_loss": "Critic loss",
            },
        ),
        StageSpec(
            name="evaluation",
            version=1,
            config=EvaluationConfig,
            makes="evaluation",
            required={"policy": "policy", "baseline": "policy"},
            optional={"reward_model": "reward_model"},
            families={"policy_": "policy"},
            reads={"prompts": DatasetUse("prompts")},
            headline="win rate {win_rate}",
        ),
    )
}


def find_stage(name: str) -> StageSpec:
    """Return the stage called `name`.

    Raises:
        ConfigError: if there is none; the message names the nearest.
    """
    if name not in STAGES:
        near = get_close_matches(name, STAGES, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"there are: {', '.join(STAGES)}"
        raise ConfigError(f"unknown stage '{name}'; {hint}")
    return STAGES[name]


def stage_of(config: StageConfig) -> StageSpec:
    """Return the stage that a config is of."""
    return next(spec for spec in STAGES.values() if spec.config is type(config))
