"""The groups of a round: which prompts, which groups are dropped, and what a checkpoint keeps."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from io import BytesIO

import pytest
import torch

from stages.configs.ppo_config import PpoConfig
from stages.reinforcement.groups import GroupCollector
from stages.reinforcement.reward_shaper import RewardShaper
from training_core.data.batching import batch_indices
from training_core.errors import DataError
from training_core.rewards.reward import Scored, Unscored
from training_core.rollout.sampling import RolloutRequest, Sampling
from training_core.types import Prompt, Rollout

PROMPTS = [Prompt(str(i), (), "", (1, i + 2)) for i in range(10)]


class Counter:
    """An engine whose responses are their seeds, so that each one can be told from all others."""

    name = "counter"

    def __init__(self) -> None:
        self.policy_version = 0
        self.asked: list[tuple[list[str], Sampling]] = []

    def submit(self, requests: Sequence[RolloutRequest]) -> None:
        self.asked.append(([r.prompt.id for r in requests], requests[0].sampling))
        self._pending = list(requests)

    def finished(self) -> Iterator[tuple[str, Rollout]]:
        for r in self._pending:
            ids, version = (r.seed % 997, r.seed % 991), self.policy_version
            yield r.id, Rollout(r.prompt, ids, (-1.0, -2.0), str(r.seed), True, version)


def ppo(**changes):
    plain = {"prompts": {"name": "cafe"}, "prompts_per_step": 4, "advantage": {"name": "rloo"}}
    return PpoConfig.model_validate({**plain, **changes})


def collector(reward, **changes):
    engine = Counter()
    return GroupCollector(ppo(**changes), engine, PROMPTS, reward), engine


def by_place(rollouts):
    """1 for the first response of each group and 0 for the others."""
    seen: set[str] = set()
    return [float(r.prompt.id not in seen and not seen.add(r.prompt.id)) for r in rollouts]


def equal_for(ids):
    """As `by_place`, except equal rewards for some prompts."""

    def reward(rollouts):
        return [
            0.0 if r.prompt.id in ids else x
            for r, x in zip(rollouts, by_place(rollouts), strict=True)
        ]

    return reward


def ids_of(collected):
    return [group.scored[0].rollout.prompt.id for group in collected.groups]


def test_the_rounds_go_through_the_prompts_in_the_order_of_the_seed():
    source, _ = collector(by_place)
    found = [ids_of(source.collect()) for _ in range(5)]
    for step, ids in enumerate(found):
        indices = batch_indices(10, 4, 2, seed=0, step=step)
        assert ids == [PROMPTS[i].id for i in indices]
    trained = [number for ids in found for number in ids]
    assert sorted(trained) == sorted([p.id for p in PROMPTS] * 2)


def test_every_response_of_every_round_has_a_seed_of_its_own():
    source, _ = collector(by_place, group_size=3)
    texts = [s.rollout.text for _ in range(4) for g in source.collect().groups for s in g.scored]
    assert len(set(texts)) == len(texts) == 4 * 4 * 3


def test_groups_of_equal_rewards_are_replaced_and_counted():
    dynamic, engine = collector(equal_for({"3", "7"}), dynamic_sampling={})
    ids, dropped = [], 0.0
    for _ in range(2):
        collected = dynamic.collect()
        assert len(collected.groups) == 4
        assert collected.metrics["surplus_groups"] == 0
        ids += ids_of(collected)
        dropped += collected.metrics["dropped_groups"]
    asked = [i for some, _ in engine.asked for i in some[::2]]
    assert ids == [i for i in asked if i not in ("3", "7")]
    assert dropped == len(asked) - 8 > 0


def test_groups_whose_mean_is_out_of_range_are_replaced():
    source, _ = collector(by_place, dynamic_sampling={"max_mean": 0.4, "max_tries": 3})
    collected = source.collect()  # all means are 1/2
    assert collected.groups == []
    assert collected.metrics == {
        "unscored": 0.0, "dropped_groups": 12.0, "tries": 3.0, "surplus_groups": 0.0,
        "sampled_tokens": 48.0,  # 12 groups of 2 responses of 2 tokens
    }  # fmt: skip


def test_surplus_groups_are_trained_in_the_next_round_with_the_version_that_sampled_them():
    source, engine = collector(by_place, dynamic_sampling={"oversample": 1.5})
    first = source.collect()
    assert first.metrics["surplus_groups"] == 2  # ceil(1.5 * 4) - 4
    engine.policy_version = 1
    second = source.collect()
    versions = [g.scored[0].rollout.policy_version for g in second.groups]
    assert versions == [0, 0, 1, 1]
    assert second.metrics["surplus_groups"] == 1  # 2 + ceil(1.5 * 2) - 4
    third = source.collect()
    trained = ids_of(first) + ids_of(second) + ids_of(third)
    asked = [i for some, _ in engine.asked for i in some[::2]]
    assert trained == asked[:12]  # in their order, none lost, none twice


def saved(state):
    """A state as a checkpoint would give it back."""
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_resumed_collector_goes_on_with_its_surplus_and_its_prompts():
    changes = {"dynamic_sampling": {"oversample": 1.5}, "advantage": {"name": "remax"}}
    whole, _ = collector(by_place, **changes)
    begun, _ = collector(by_place, **changes)
    resumed, _ = collector(by_place, **changes)
    assert begun.collect() == whole.collect()
    resumed.load_state_dict(saved(begun.state_dict()))
    assert resumed.collect() == whole.collect()
    assert resumed.collect() == whole.collect()


def test_remax_asks_for_one_greedy_response_per_prompt():
    def reward(rollouts):
        return [float(len(rollouts) - i) for i in range(len(rollouts))]

    source, engine = collector(reward, advantage={"name": "remax"}, group_size=2)
    groups = source.collect().groups
    sampled, greedy = engine.asked
    assert sampled[1].temperature == 1.0
    assert greedy[1].temperature == 0.0
    assert greedy[0] == sampled[0][::2]
    # 8 sampled and 4 greedy responses: rewards 12 … 5 and 4 … 1
    assert [[s.reward for s in g.scored] for g in groups] == [[12, 11], [10, 9], [8, 7], [6, 5]]
    assert [g.greedy and g.greedy.reward for g in groups] == [4, 3, 2, 1]


def weighted(*labels):
    parts = [{"label": n, "reward": {"name": "cafe"}, "weight": 1.0} for n in labels]
    return {"name": "weighted", "parts": parts}


def test_where_the_parts_of_a_reward_count_a_group_with_one_sum_teaches():
    def reward(rollouts):  # the first response of a group is right, and the second is brief
        firsts = by_place(rollouts)
        return [
            Scored(1.0, {"right": x, "brief": 1.0 - x})
            if r.prompt.id != "3"
            else Scored(1.0, {"right": 1.0, "brief": 0.0})
            for r, x in zip(rollouts, firsts, strict=True)
        ]

    changes = {"dynamic_sampling": {"max_tries": 1}, "prompts_per_step": 10}
    by_sum, _ = collector(reward, **changes)
    config = ppo(advantage={"name": "gdpo"}, reward=weighted("right", "brief"), **changes)
    by_part = GroupCollector(config, Counter(), PROMPTS, reward)
    assert by_sum.collect().metrics["dropped_groups"] == 10
    collected = by_part.collect()
    assert collected.metrics["dropped_groups"] == 1
    assert "3" not in ids_of(collected)


def test_a_group_with_one_reward_left_is_dropped_where_responses_are_compared():
    def reward(rollouts):
        return [Unscored("no answer") if i in (1, 4, 5) else 1.0 * i for i in range(len(rollouts))]

    source, _ = collector(reward, unscored_limit=0.5)
    collected = source.collect()
    assert [[s.reward for s in g.scored] for g in collected.groups] == [[2, 3], [6, 7]]
    assert (collected.metrics["unscored"], collected.metrics["dropped_groups"]) == (3, 2)
    alone, _ = collector(reward, unscored_limit=0.5, advantage={"name": "reinforce_pp"})
    assert [[s.reward for s in g.scored] for g in alone.collect().groups] == [[0], [2, 3], [6, 7]]
    strict, _ = collector(reward)
    with pytest.raises(DataError, match="3 of 8 rollouts have no reward"):
        strict.collect()


# ------------------------------------------------------------------ shaped rewards


def shaped(rewards, **changes):
    """Shaped rewards of finished and cut responses, which have 4 tokens of 8."""
    from stages.reinforcement.rollout_group import RolloutGroup
    from training_core.types import ScoredRollout

    rollouts = {"max_response_tokens": 8, "max_tokens": 16}
    shaper = RewardShaper(ppo(rollouts=rollouts, **changes))
    found = []
    for round_rewards in rewards:
        groups = [
            RolloutGroup(
                (ScoredRollout(Rollout(PROMPTS[0], (5,) * n, (-1.0,) * n, "", n < 8, 0), r),)
            )
            for r, n in round_rewards
        ]
        found.append([g.scored[0].reward for g in shaper(groups)])
    return found, shaper


def test_only_responses_that_the_limit_cut_lose_the_penalty():
    rewards = [(1.0, 4), (1.0, 8), (-2.0, 8)]
    (found,), _ = shaped([rewards], unfinished_penalty=0.75)
    assert found == [1.0, 0.25, -2.75]
    assert shaped([rewards])[0] == [[1.0, 1.0, -2.0]]


def test_penalties_come_after_the_clip_and_in_one_order():
    rewards = [(9.0, 4), (9.0, 8), (-9.0, 8), (9.0, 7)]
    (found,), _ = shaped(
        [rewards],
        reward_clip=2.0,
        unfinished_factor=0.5,
        unfinished_penalty=0.25,
        overlong={"buffer_tokens": 2, "penalty": 4.0},
    )
    # clipped: 2, 2, -2, 2; cut: 2 -> 0.5 * 2 = 1, -2 stays; minus 0.25 where cut
    # overlong, from 6 tokens on: 8 tokens cost 4, 7 tokens 2
    assert found == [2.0, 1.0 - 0.25 - 4.0, -2.0 - 0.25 - 4.0, 2.0 - 2.0]


def test_rewards_are_normalised_by_all_rewards_so_far():
    found, shaper = shaped([[(1.0, 4), (5.0, 4)], [(9.0, 4), (9.0, 4)]], normalise_rewards=True)
    assert found[0] == [-1.0, 1.0]  # mean 3, deviation 2
    # all four: mean 6, squares 25 + 1 + 9 + 9 = 44, deviation sqrt(11)
    assert found[1] == pytest.approx([3 / 11**0.5] * 2)
    again = RewardShaper(ppo(normalise_rewards=True))
    again.load_state_dict(saved(shaper.state_dict()))
    assert again.state_dict() == shaper.state_dict()


def test_equal_rewards_are_normalised_to_zero():
    assert shaped([[(3.0, 4), (3.0, 4)]], normalise_rewards=True)[0] == [[0.0, 0.0]]
