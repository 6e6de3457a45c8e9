"""Parts that several recipes have: the beginning, rounds of DPO or RAFT, the evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from flows.recipe.outline import StepRunner
from tasks.refs import StageRef


def sft_and_reward_model(recipe: StepRunner) -> tuple[StageRef, StageRef]:
    """Make the SFT policy and the reward model, the latter from given or from sampled pairs."""
    config = recipe.config
    sft = recipe.run("sft", config.sft)
    feedback = recipe.run("feedback", config.feedback, policy=sft) if config.feedback else None
    reward_model = recipe.run("reward_model", config.reward_model, policy=sft, dataset=feedback)
    return sft, reward_model


def dpo_rounds(
    recipe: StepRunner, policy: StageRef, *, sft: StageRef, reward_model: StageRef
) -> list[StageRef]:
    """Sample pairs from the policy and train it on them, round after round.

    Args:
        recipe: the flow run.
        policy: where the first round starts.
        sft: the reference, where that is fixed.
        reward_model: ranks the responses.

    Returns:
        Each round's policy; there is at least one round.
    """
    rounds, sampling = recipe.config.iterative_dpo, recipe.config.preference_pairs
    policies: list[StageRef] = []
    history: dict[str, StageRef] = {}
    for number in range(1, rounds.rounds + 1):
        fresh = sampling.model_copy(update={"seed": sampling.seed + number - 1})
        pairs = recipe.run(
            f"preference_pairs_{number}", fresh, policy=policy, reward_model=reward_model
        )
        reference = sft if rounds.reference == "sft" else policy
        policy = recipe.run(
            f"dpo_{number}",
            recipe.config.dpo,
            policy=policy,
            reference=reference,
            dataset=pairs,
            **history,
        )
        policies.append(policy)
        if rounds.keeps_history:
            history[f"dataset_round_{number}"] = pairs
    return policies


def raft_rounds(recipe: StepRunner, policy: StageRef, *, reward_model: StageRef) -> StageRef:
    """Sample responses from the policy, select the good ones, and imitate them, round after round.

    Args:
        recipe: the flow run.
        policy: where the first round starts.
        reward_model: ranks the responses.

    Returns:
        The last round's policy.
    """
    config = recipe.config
    for number in range(1, config.raft.rounds + 1):
        sampling = config.rejection_sampling
        fresh = sampling.model_copy(update={"seed": sampling.seed + number - 1})
        selected = recipe.run(
            f"rejection_sampling_{number}", fresh, policy=policy, reward_model=reward_model
        )
        policy = recipe.run(
            f"rejection_sft_{number}", config.rejection_sft, policy=policy, dataset=selected
        )
    return policy


def evaluate(
    recipe: StepRunner,
    policy: StageRef,
    *,
    sft: StageRef,
    reward_model: StageRef,
    others: Sequence[StageRef] = (),
) -> StageRef:
    """Judge policies on the held-out prompts of the preset.

    Args:
        recipe: the flow run.
        policy: the one that may become champion.
        sft: what all are compared with.
        reward_model: the judge, unless the preset names another.
        others: policies that are judged beside it, for the report.
    """
    return recipe.run(
        "evaluation",
        recipe.config.evaluation,
        policy=policy,
        baseline=sft,
        reward_model=reward_model,
        **{f"policy_{other.step}": other for other in others},
    )
