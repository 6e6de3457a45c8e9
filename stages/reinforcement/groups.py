"""Collect the groups of a round: sample responses to prompts, score them, keep those that teach."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

from stages.configs.ppo_config import PpoConfig
from stages.reinforcement.rollout_group import RolloutGroup
from stages.sampling.rollouts import sample_groups, sampling_of
from training_core.data.batching import indices_between
from training_core.engine.protocol import StateDict
from training_core.rewards.reward import Reward, score
from training_core.rollout.engine import RolloutEngine
from training_core.types import Prompt, Rollout, ScoredRollout


@dataclass(frozen=True)
class Collected:
    """The groups of a round.

    Attributes:
        groups: to train on; the oldest first.
        metrics: what was sampled, and what became of it.
    """

    groups: list[RolloutGroup]
    metrics: dict[str, float]


class GroupCollector:
    """Collects the groups of each round; its state goes into checkpoints.

    With `dynamic_sampling` it samples again until it has enough groups that teach something. Groups
    that a round does not need are kept for the next one.

    Args:
        config: of the stage.
        engine: samples the responses.
        prompts: all prompts; each pass over them has its own order.
        reward: scores the responses.
    """

    def __init__(
        self, config: PpoConfig, engine: RolloutEngine, prompts: Sequence[Prompt], reward: Reward
    ) -> None:
        self._config, self._engine, self._prompts, self._reward = config, engine, prompts, reward
        self._next_prompt = 0
        self._next_sampling = 0
        self._surplus: list[RolloutGroup] = []

    def collect(self) -> Collected:
        """Return the groups of the next round, sampled with the engine's current weights."""
        wanted, dynamic = self._config.prompts_per_step, self._config.dynamic_sampling
        kept, self._surplus = self._surplus, []
        dropped, unscored, tries, tokens = 0, 0, 0, 0
        while len(kept) < wanted and tries < (dynamic.max_tries if dynamic else 1):
            missing = wanted - len(kept)
            groups, failed, sampled = self._sample(
                math.ceil(missing * (dynamic.oversample if dynamic else 1))
            )
            teaching = [group for group in groups if self._teaches(group)]
            kept += teaching
            dropped += len(groups) - len(teaching)
            unscored += failed
            tokens += sampled
            tries += 1
        self._surplus = kept[wanted:]
        metrics = {"unscored": float(unscored), "dropped_groups": float(dropped)}
        metrics["sampled_tokens"] = float(tokens)
        if dynamic:
            metrics |= {"tries": float(tries), "surplus_groups": float(len(self._surplus))}
        return Collected(kept[:wanted], metrics)

    def _sample(self, num_prompts: int) -> tuple[list[RolloutGroup], int, int]:
        """Sample and score groups.

        Returns:
            The groups; the number of responses without a reward, and of all sampled tokens.
        """
        config = self._config
        positions = range(self._next_prompt, self._next_prompt + num_prompts)
        indices = indices_between(len(self._prompts), positions, seed=config.seed)
        prompts = [self._prompts[i] for i in indices]
        seed = config.seed * 100_003 + self._next_sampling
        self._next_prompt += num_prompts
        self._next_sampling += 1
        sampling = sampling_of(config.rollouts)
        sampled = sample_groups(
            self._engine, prompts, sampling, group_size=config.group_size, seed=seed
        )
        greedy: list[Rollout] = []
        if config.advantage.needs_greedy:
            one_each = sample_groups(
                self._engine, prompts, replace(sampling, temperature=0.0), group_size=1, seed=seed
            )
            greedy = [rollout for (rollout,) in one_each]
        rollouts = [rollout for group in sampled for rollout in group] + greedy
        scored = score(self._reward, rollouts, unscored_limit=config.unscored_limit)
        by_rollout = {id(s.rollout): s for s in scored}
        groups = [
            RolloutGroup(
                tuple(by_rollout[id(r)] for r in sampled[i] if id(r) in by_rollout),
                by_rollout.get(id(greedy[i])) if greedy else None,
            )
            for i in range(len(sampled))
        ]
        tokens = sum(len(rollout.response_ids) for rollout in rollouts)
        return groups, len(rollouts) - len(scored), tokens

    def _teaches(self, group: RolloutGroup) -> bool:
        """Whether the advantages can use a group, and dynamic sampling keeps it."""
        advantage, dynamic = self._config.advantage, self._config.dynamic_sampling
        rewards = [s.reward for s in group.scored]
        if len(rewards) < (2 if advantage.needs_group else 1):
            return False
        if advantage.needs_greedy and group.greedy is None:
            return False
        if dynamic is None:
            return True
        low = -math.inf if dynamic.min_mean is None else dynamic.min_mean
        high = math.inf if dynamic.max_mean is None else dynamic.max_mean
        return self._differ(group) and low <= sum(rewards) / len(rewards) <= high

    def _differ(self, group: RolloutGroup) -> bool:
        """Whether rewards differ; if the advantages use their parts, whether those of a part do."""
        labels = self._config.part_weights
        seen = {
            tuple(s.components[n] for n in labels) if labels else s.reward for s in group.scored
        }
        return len(seen) > 1

    def state_dict(self) -> StateDict:
        """Return the position in the prompts, and the groups for the next round."""
        return {
            "next_prompt": self._next_prompt,
            "next_sampling": self._next_sampling,
            "surplus": [
                {
                    "scored": [_plain(s) for s in group.scored],
                    "greedy": None if group.greedy is None else _plain(group.greedy),
                }
                for group in self._surplus
            ],
        }

    def load_state_dict(self, state: StateDict) -> None:
        """Restore what `state_dict` returned."""
        self._next_prompt, self._next_sampling = state["next_prompt"], state["next_sampling"]
        by_id = {prompt.id: prompt for prompt in self._prompts}
        self._surplus = [
            RolloutGroup(
                tuple(_scored(row, by_id) for row in group["scored"]),
                None if group["greedy"] is None else _scored(group["greedy"], by_id),
            )
            for group in state["surplus"]
        ]


def _plain(scored: ScoredRollout) -> StateDict:
    """Return a scored rollout as plain values, with the id of its prompt."""
    rollout = _fields_of(scored.rollout, without="prompt")
    others = _fields_of(scored, without="rollout")
    return {"prompt": scored.rollout.prompt.id, "rollout": rollout, "others": others}


def _fields_of(record: Rollout | ScoredRollout, *, without: str) -> StateDict:
    values = {f.name: getattr(record, f.name) for f in fields(record) if f.name != without}
    return {n: dict(v) if isinstance(v, Mapping) else v for n, v in values.items()}


def _scored(row: StateDict, prompts: dict[str, Prompt]) -> ScoredRollout:
    return ScoredRollout(Rollout(prompt=prompts[row["prompt"]], **row["rollout"]), **row["others"])
