"""Rounds of iterative DPO, as a part of a larger flow or alone."""

from __future__ import annotations

from flows.recipe import Steps
from tasks.refs import StageRef


def dpo_rounds(
    recipe: Steps, policy: StageRef, *, sft: StageRef, reward_model: StageRef
) -> StageRef:
    """Sample pairs from the policy and train it on them, round after round.

    Args:
        recipe: the flow run.
        policy: where the first round starts.
        sft: the reference, where that is fixed.
        reward_model: ranks the responses.

    Returns:
        The last round's policy.
    """
    config = recipe.config
    for number in range(1, config.iterative_dpo.rounds + 1):
        sampling = config.preference_pairs
        fresh = sampling.model_copy(update={"seed": sampling.seed + number - 1})
        pairs = recipe.run(
            f"preference_pairs_{number}", fresh, policy=policy, reward_model=reward_model
        )
        reference = sft if config.iterative_dpo.reference == "sft" else policy
        policy = recipe.run(
            f"dpo_{number}", config.dpo, policy=policy, reference=reference, dataset=pairs
        )
    return policy
