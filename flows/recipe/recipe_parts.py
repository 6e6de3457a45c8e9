"""Parts that several recipes have: the beginning, and rounds of DPO or RAFT."""

from __future__ import annotations

from flows.recipe.chain import Chain
from flows.recipe.outline import StepRunner
from tasks.refs import StageRef


def begin(recipe: StepRunner) -> Chain:
    """Make the SFT policy and the reward models, the latter from given or from sampled pairs."""
    chain = Chain(recipe)
    chain.do("sft")
    chain.do("feedback")
    chain.do("reward_model")
    chain.do("process_reward")
    return chain


def dpo_rounds(recipe: StepRunner, chain: Chain, start: StageRef | None = None) -> None:
    """Sample pairs from the policy and train it on them, round after round.

    Without sampling of pairs, DPO is a single step on its own data.

    Args:
        recipe: the flow run.
        chain: the steps so far.
        start: policy of the first round; None: the newest.
    """
    config = recipe.config
    rounds, sampling, training = config.iterative_dpo, config.preference_pairs, config.dpo
    if sampling is None or training is None:
        chain.do("preference_pairs")
        chain.do("dpo")
        return
    policy: dict[str, StageRef] = {"policy": start} if start else {}
    history: dict[str, StageRef] = {}
    for number in range(1, rounds.rounds + 1):
        fresh = sampling.model_copy(update={"seed": sampling.seed + number - 1})
        step = f"preference_pairs_{number}"
        pairs = chain.run(step, fresh, policy, block="preference_pairs")
        fixed = chain.of_kind("policy")[:1] if rounds.reference == "sft" else []
        reference = {"reference": fixed[0]} if fixed else _as_reference(policy)
        trained = chain.run(
            f"dpo_{number}",
            training,
            {**policy, **reference, "dataset": pairs, **history},
            block="dpo",
        )
        policy = {"policy": trained}
        if rounds.keeps_history:
            history[f"dataset_round_{number}"] = pairs


def raft_rounds(recipe: StepRunner, chain: Chain) -> None:
    """Sample responses from the policy, select the good ones, and imitate them, round after round.

    Args:
        recipe: the flow run.
        chain: the steps so far.
    """
    sampling, training = recipe.config.rejection_sampling, recipe.config.rejection_sft
    assert sampling is not None and training is not None  # the flow requires both
    for number in range(1, recipe.config.raft.rounds + 1):
        fresh = sampling.model_copy(update={"seed": sampling.seed + number - 1})
        chain.run(f"rejection_sampling_{number}", fresh, block="rejection_sampling")
        chain.run(f"rejection_sft_{number}", training, block="rejection_sft")


def _as_reference(policy: dict[str, StageRef]) -> dict[str, StageRef]:
    return {"reference": policy["policy"]} if policy else {}
