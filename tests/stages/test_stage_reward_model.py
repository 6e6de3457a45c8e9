"""Held-out rows of reward models, what they refuse, and the promise about their saved folder."""

from __future__ import annotations

import copy
import random

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerFast,
)

from stages import process_reward, reward_model
from stages.attempt import Attempt
from stages.batches.encoding import encode_pairs
from stages.batches.heldout_split import split_by_prompt
from stages.configs.process_reward_config import ProcessRewardConfig
from stages.configs.reward_model_config import RewardModelConfig
from stages.contract import Context
from stages.datasets import Preference
from stages.files import write_jsonl
from stages.runtime.metric_files import FileSink
from training_core.data import cafe
from training_core.data.chat import encode_prompt
from training_core.data.templates import CHAT_TEMPLATES, template_from_prompt
from training_core.errors import DataError
from training_core.models import hub, scratch
from training_core.rewards.model_reward import RewardModelReward
from training_core.types import Rollout

TEMPLATES = {**CHAT_TEMPLATES, "a format": template_from_prompt("User: {}\nAssistant:\n")}
TALK = (
    {"role": "user", "content": "one tea please"},
    {"role": "assistant", "content": "here is one tea ."},
    {"role": "user", "content": "and two cake"},
)


# ------------------------------------------- held out by prompt


def test_no_prompt_is_on_both_sides_and_the_order_is_kept():
    rows = [(prompt, answer) for prompt in range(40) for answer in range(5)]
    random.Random(0).shuffle(rows)
    train, heldout = split_by_prompt(rows, 0.1, lambda row: row[0])
    assert len(heldout) == 20  # 10 % of 200: four prompts
    assert not {p for p, _ in train} & {p for p, _ in heldout}
    assert sorted(train + heldout) == sorted(rows)
    assert train == [row for row in rows if row in train]


def test_the_split_depends_on_the_prompts_and_not_on_the_order_of_the_rows():
    rows = [(prompt, answer) for prompt in range(40) for answer in range(2)]
    heldout = set(split_by_prompt(rows, 0.25, lambda row: row[0])[1])
    assert set(split_by_prompt(rows[::-1], 0.25, lambda row: row[0])[1]) == heldout
    assert heldout != set(rows[:20])


def test_a_share_smaller_than_any_prompt_holds_out_the_smallest_one():
    rows = ["a"] * 12 + ["b"] * 7 + ["c"] * 11
    assert split_by_prompt(rows, 0.1, str) == (["a"] * 12 + ["c"] * 11, ["b"] * 7)


@pytest.mark.parametrize(("rows", "fraction"), [(["a"] * 10, 0.1), (["a", "b", "c"], 0.99)])
def test_a_split_that_leaves_nothing_to_train_on_is_refused(rows, fraction):
    with pytest.raises(DataError, match=rf"heldout_fraction={fraction}.* leaves none to train on"):
        split_by_prompt(rows, fraction, str)
    assert split_by_prompt(rows, 0.0, str) == (rows, [])


# ------------------------------------------- pairs that prefer nothing


def preference(chosen, rejected):
    return Preference(TALK[:1], chosen, rejected)


def test_pairs_of_equal_tokens_are_dropped_and_counted_with_their_rows(tokenizer, caplog):
    rows = [preference("two tea .", "one tea ."), preference("two tea .", " two  tea .")]
    pairs = encode_pairs(tokenizer, rows, max_tokens=99)
    assert pairs == encode_pairs(tokenizer, rows[:1], max_tokens=99)
    text = "1 of 2 pairs have the same tokens as chosen and rejected (row 2)"
    assert text in caplog.text
    with pytest.raises(DataError, match=r"1 of 1 pairs .*row 1.*nothing can be learned"):
        encode_pairs(tokenizer, rows[1:], max_tokens=99)


def test_pairs_that_differ_only_in_their_end_are_kept(tokenizer):
    row = Preference(TALK[:1], "two tea .", "two tea .", rejected_finished=False)
    assert len(encode_pairs(tokenizer, [row], max_tokens=99)) == 1


# ------------------------------------------- the stage


@pytest.fixture(scope="module")
def bpe():
    """Byte-level tokens, so that every text has its own ids, and line breaks count."""
    rows = cafe.rows("demonstrations", split="train", size=100, seed=0)
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<pad>", "<s>", "</s>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    inner.train_from_iterator([m["content"] for row in rows for m in row["messages"]], trainer)
    special = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, **special)


def policy_with(tokenizer, template, folder):
    tokenizer.chat_template = template
    sizes = scratch.Architecture(
        hidden_size=16, num_layers=1, num_heads=2, intermediate_size=32, max_positions=256
    )
    hub.save(scratch.make_policy(sizes, tokenizer, seed=0), tokenizer, folder)
    return folder


def trained(policy, folder, learning_rate=1e-2, **settings):
    config = RewardModelConfig.model_validate(
        {
            "data": {"name": "cafe", "size": 32},
            "heldout_fraction": 0.0,
            "training": {
                "batch_size": 16,
                "max_tokens": 256,
                "optimizer": {"learning_rate": learning_rate},
            },
            **settings,
        }
    )
    folder.mkdir(exist_ok=True)
    attempt = Attempt(folder)
    context = Context(attempt, FileSink(attempt, "reward_model"))
    return attempt.artifact, reward_model.run(config, {"policy": policy}, context).metrics


def plain_score(folder, messages):
    """What a user of transformers computes, without Ratchet."""
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer.apply_chat_template(messages, return_tensors="pt", return_dict=True)
    with torch.no_grad():
        return float(model(**inputs).logits[0, 0]), inputs["input_ids"][0].tolist()


@pytest.mark.parametrize("name", sorted(TEMPLATES))
def test_plain_transformers_gives_the_score_of_a_saved_reward_model(bpe, tokenizer, tmp_path, name):
    own = copy.deepcopy(tokenizer if name == "roles" else bpe)  # `roles` is for tokens of words
    folder, _ = trained(policy_with(own, TEMPLATES[name], tmp_path / "policy"), tmp_path / "a")
    tokenizer, reward = hub.load_tokenizer(folder), RewardModelReward
    prompt = encode_prompt(tokenizer, "1", TALK)
    text = "here are two cake . enjoy !"
    ids = (*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id)
    ours = reward(folder, normalise=False, micro_batch_tokens=512)
    (score,) = ours([Rollout(prompt, ids, (-1.0,) * len(ids), text, True, 0)])
    answered = [*TALK, {"role": "assistant", "content": text}]
    found, tokens = plain_score(folder, answered)
    assert tokens == [*prompt.input_ids, *ids]
    assert found == pytest.approx(score, abs=1e-5)
    assert abs(score) > 1e-4  # the head has left its zero start


def test_the_saved_template_still_makes_the_prompts_of_the_policy(bpe, tmp_path):
    policy = policy_with(bpe, CHAT_TEMPLATES["chatml"], tmp_path / "policy")
    before = encode_prompt(hub.load_tokenizer(policy), "1", TALK).input_ids
    folder, _ = trained(policy, tmp_path / "a")
    assert encode_prompt(hub.load_tokenizer(folder), "1", TALK).input_ids == before


def test_a_reward_model_that_learned_nothing_is_refused_and_not_saved(bpe, tmp_path):
    policy = policy_with(bpe, CHAT_TEMPLATES["chatml"], tmp_path / "policy")
    with pytest.raises(DataError, match=r"nearly one score: mean .* standard deviation"):
        trained(policy, tmp_path / "a", learning_rate=1e-12)
    assert not (tmp_path / "a" / "artifact").exists()


def test_the_heldout_solutions_of_a_process_reward_model_have_questions_of_their_own(bpe, tmp_path):
    rows = [
        {"prompt": f"{number} tea please", "steps": [f"{number} tea", end], "labels": [True, False]}
        for end in ("no .", "never .")
        for number in range(10)
    ]
    write_jsonl(tmp_path / "solutions.jsonl", rows)
    tokenizer = copy.deepcopy(bpe)
    tokenizer.chat_template = CHAT_TEMPLATES["chatml"]
    data = {"name": "files", "path": str(tmp_path / "solutions.jsonl")}
    config = ProcessRewardConfig.model_validate({"data": data, "heldout_fraction": 0.2})
    train, heldout = process_reward.solutions_of(config, {}, tokenizer)
    assert (len(train), len(heldout)) == (16, 4)

    def questions(solutions):
        return {s.example.input_ids[: s.step_ends[0]] for s in solutions}

    assert (len(questions(train)), len(questions(heldout))) == (8, 2)
    assert not questions(train) & questions(heldout)


def test_the_heldout_pairs_of_the_stage_have_prompts_of_their_own(bpe, tmp_path):
    rows = [
        {"prompt": f"{number} tea please", "chosen": f"{number} tea .", "rejected": answer}
        for number in range(10)
        for answer in ("no .", "never .")
    ]
    write_jsonl(tmp_path / "pairs.jsonl", rows)
    policy = policy_with(bpe, CHAT_TEMPLATES["chatml"], tmp_path / "policy")
    config = RewardModelConfig.model_validate(
        {
            "data": {"name": "files", "path": str(tmp_path / "pairs.jsonl")},
            "heldout_fraction": 0.2,
        }
    )
    train, heldout = reward_model.pairs_of(config, {}, hub.load_tokenizer(policy))
    assert (len(train), len(heldout)) == (16, 4)
    prompts = [{pair.chosen.prompt_ids for pair in pairs} for pairs in (train, heldout)]
    assert (len(prompts[0]), len(prompts[1])) == (8, 2)
    assert not prompts[0] & prompts[1]
