"""A reward is a number or a reason; a failure never becomes 0.0."""

import math

import pytest
import torch

from tests.tolerances import operations_through, rounding
from training_core.data.batching import collate
from training_core.data.chat import encode_prompt
from training_core.errors import DataError
from training_core.models import hub
from training_core.models.scalar_head import sequence_scores
from training_core.rewards.functions import LexiconReward, cafe_reward
from training_core.rewards.model_reward import RewardModelReward
from training_core.rewards.reward import Unscored, score
from training_core.types import Prompt, Rollout

PROMPT = Prompt("1", ({"role": "user", "content": "we take two tea please"},), "", (1, 2))


def rollout(text="", prompt=PROMPT, ids=(5, 2), is_finished=True):
    return Rollout(prompt, ids, (-1.0,) * len(ids), text, is_finished, 0)


def scores_of(results, limit):
    rollouts = [rollout(str(i)) for i in range(len(results))]
    return [
        (s.rollout.text, s.reward) for s in score(lambda _: results, rollouts, unscored_limit=limit)
    ]


def test_an_unscored_rollout_is_dropped_and_zero_is_kept():
    found = scores_of([1.5, Unscored("timeout"), 0.0, -2.0], limit=0.25)
    assert found == [("0", 1.5), ("2", 0.0), ("3", -2.0)]


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_reward_that_is_no_number_is_unscored(bad):
    assert scores_of([1.0, bad], limit=0.5) == [("0", 1.0)]


def test_too_many_unscored_ones_stop_the_stage_and_the_reasons_are_counted():
    results = [1.0, Unscored("timeout"), Unscored("timeout"), math.nan]
    with pytest.raises(DataError, match=r"3 of 4 .* 2x timeout; 1x the reward is nan"):
        scores_of(results, limit=0.5)


def test_the_limit_itself_is_tolerated():
    assert len(scores_of([1.0, Unscored("timeout")], limit=0.5)) == 1
    with pytest.raises(DataError):
        scores_of([1.0, Unscored("timeout")], limit=0.49)
    with pytest.raises(DataError):
        scores_of([Unscored("timeout")] * 3, limit=0.0)


def test_a_reward_that_forgets_a_rollout_is_an_error():
    with pytest.raises(ValueError, match="shorter"):
        score(lambda _: [1.0], [rollout(), rollout()], unscored_limit=1.0)


def test_the_cafe_judges_the_last_message_and_an_endless_answer_gets_nothing():
    answer = "here are two tea . enjoy !"
    rewards = cafe_reward([rollout(answer), rollout(answer, is_finished=False)])
    assert rewards == [pytest.approx(1.0), 0.0]


def test_the_lexicon_sums_the_valences_and_normalises():
    reward = LexiconReward({"happy": 2.7, "sad": -2.1, "can't": -0.5})
    # 2.7 + 2.7 - 2.1 = 3.3; 3.3 / sqrt(3.3^2 + 15) = 3.3 / 5.0882 = 0.64856
    assert reward.of_text("Happy, HAPPY and sad!") == pytest.approx(0.64856, abs=1e-5)
    # -0.5 / sqrt(0.25 + 15) = -0.12804
    assert reward.of_text("I can't") == pytest.approx(-0.12804, abs=1e-5)
    assert reward([rollout("nothing known"), rollout("")]) == [0.0, 0.0]


def test_the_lexicon_cuts_out_what_it_is_told_to_ignore():
    valences = {"happy": 2.0, "end": -3.0}
    text = "happy<|end|>"
    assert LexiconReward(valences, ["<|end|>"]).of_text(text) == pytest.approx(2 / math.sqrt(19))
    assert LexiconReward(valences).of_text(text) == pytest.approx(-1 / 4)  # -1 / sqrt(1 + 15)


@pytest.fixture
def reward_model(make_scalar_model, tokenizer, tmp_path):
    model = make_scalar_model()
    model.config.reward_mean, model.config.reward_std = 2.0, 4.0
    hub.save(model, tokenizer, tmp_path)
    return tmp_path


def answers(tokenizer, texts):
    prompt = encode_prompt(tokenizer, "1", PROMPT.messages)
    return [rollout(t, prompt, (*tokenizer(t).input_ids, tokenizer.eos_token_id)) for t in texts]


def test_a_reward_model_scores_the_sampled_ids_and_normalises_with_what_it_stored(
    reward_model, tokenizer
):
    rollouts = answers(tokenizer, ["two tea .", "here are two tea . enjoy !", "one pie"])
    model = hub.load_scalar_model(reward_model)
    with torch.no_grad():
        batch = collate([r.example() for r in rollouts], int(tokenizer.pad_token_id))
        raw = sequence_scores(model, batch).tolist()
    settings = {"micro_batch_tokens": 16}  # cuts them, and turns their order
    plain = RewardModelReward(reward_model, normalise=False, **settings)(rollouts)
    normal = RewardModelReward(reward_model, normalise=True, **settings)(rollouts)
    room = rounding(torch.float32, operations_through(model), max(1.0, *map(abs, raw)))
    assert plain == pytest.approx(raw, abs=room)
    assert normal == pytest.approx([(r - 2) / 4 for r in raw], abs=room)
    assert max(raw) - min(raw) > 0.1


def test_a_reward_model_with_another_tokenizer_reads_the_text(reward_model, tokenizer):
    (ours,) = answers(tokenizer, ["two tea ."])
    theirs = rollout("two tea .", Prompt("1", PROMPT.messages, "", (900, 901)), (902, 903))
    reward = RewardModelReward(reward_model, normalise=False, micro_batch_tokens=64)
    assert reward([theirs]) == pytest.approx(reward([ours]), abs=1e-6)
