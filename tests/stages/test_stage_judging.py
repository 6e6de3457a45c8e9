"""Policies that tokenise differently are judged as each of them would be used."""

import copy
import json
import re

import pytest
import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from stages import evaluation
from stages.attempt import Attempt
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.reward_config import WeightedRewardConfig
from stages.configs.reward_service_config import LlmJudgeRewardConfig, PairwiseJudgeConfig
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink
from tests.http_server import answering, serving
from training_core.data.chat import CHAT_TEMPLATES
from training_core.models import hub

CONFIG = EvaluationConfig.model_validate(
    {
        "prompts": {"name": "cafe", "split": "heldout", "size": 12},
        "reward": {"name": "lexicon", "path": "set by the test"},
        # so cold that a response does not depend on the order of the vocabulary
        "rollouts": {
            "engine": "transformers",
            "max_response_tokens": 6,
            "max_tokens": 64,
            "temperature": 1e-5,
        },
    }
)


@pytest.fixture
def evaluate(tmp_path):
    """Evaluate two directories; return the summary, and the responses by policy."""
    (tmp_path / "words.jsonl").write_text('{"token": "tea", "mean": 1.0}\n')
    words = CONFIG.reward.model_copy(update={"path": str(tmp_path / "words.jsonl")})

    def run(policy, baseline, reward=words):
        config = CONFIG.model_copy(update={"reward": reward})
        attempt = Attempt(tmp_path / f"{policy.name}-{baseline.name}-{reward.name}")
        attempt.artifact.mkdir(parents=True)
        context = Context(attempt, FileSink(attempt, "evaluation"))
        result = evaluation.run(config, {"policy": policy, "baseline": baseline}, context)
        summary = json.loads((attempt.artifact / "summary.json").read_text())
        texts = {"policy": [], "baseline": []}
        for row in read_jsonl(attempt.artifact / "samples.jsonl"):
            texts[row["policy"]].append(row["response"])
        return summary, texts, result.metrics

    return run


@pytest.fixture
def save(tmp_path):
    def at(name, model, tokenizer):
        hub.save(model, tokenizer, tmp_path / name)
        return tmp_path / name

    return at


@pytest.fixture
def sharp_policy(make_policy):
    """A policy whose responses depend on the prompt, with one token far ahead at each place."""
    policy = copy.deepcopy(make_policy())
    generator = torch.Generator().manual_seed(0)
    for weight in policy.parameters():
        if weight.ndim == 2:
            torch.nn.init.normal_(weight, std=0.5, generator=generator)
    return policy


def with_permuted_ids(policy, tokenizer):
    """The same policy and tokenizer; only the numbers of the tokens are others."""
    order = torch.randperm(len(tokenizer), generator=torch.Generator().manual_seed(0))
    new_id = {old: new for new, old in enumerate(order.tolist())}
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    content["model"]["vocab"] = {t: new_id[i] for t, i in content["model"]["vocab"].items()}
    for token in content["added_tokens"]:
        token["id"] = new_id[token["id"]]
    content["added_tokens"].sort(key=lambda token: token["id"])
    special = {name: getattr(tokenizer, name) for name in tokenizer.SPECIAL_TOKENS_ATTRIBUTES}
    permuted = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        **{name: token for name, token in special.items() if isinstance(token, str)},
    )
    permuted.chat_template = tokenizer.chat_template
    other = copy.deepcopy(policy)
    weight = other.get_input_embeddings().weight  # tied to the output layer
    with torch.no_grad():
        weight.copy_(weight[order].clone())
    for name in ("pad_token_id", "bos_token_id", "eos_token_id"):
        setattr(other.config, name, getattr(permuted, name))
    return other, permuted


def test_a_policy_with_permuted_ids_gives_the_same_responses_and_ties(
    evaluate, save, sharp_policy, tokenizer
):
    plain = save("plain", sharp_policy, tokenizer)
    permuted = save("permuted", *with_permuted_ids(sharp_policy, tokenizer))

    for policy, baseline in ((permuted, plain), (plain, permuted)):
        summary, texts, metrics = evaluate(policy, baseline)
        assert texts["policy"] == texts["baseline"]
        assert len(set(texts["policy"])) > 1
        assert summary["policy"]["win_rate"] == 0.5
        # The log-probabilities are of other ids, so there is no divergence between the two.
        assert summary["policy"]["kl_to_baseline"] is None
        assert "kl_to_baseline" not in metrics
        assert summary["baseline"]["kl_to_baseline"] == 0.0


def test_each_policy_is_prompted_with_its_own_template(evaluate, save, sharp_policy, tokenizer):
    other = copy.deepcopy(tokenizer)
    other.chat_template = CHAT_TEMPLATES["plain"]
    roles, plain = save("roles", sharp_policy, tokenizer), save("plain", sharp_policy, other)

    alone = {path: evaluate(path, path)[1]["policy"] for path in (roles, plain)}
    assert alone[roles] != alone[plain]
    summary, texts, _ = evaluate(roles, plain)
    assert (texts["policy"], texts["baseline"]) == (alone[roles], alone[plain])
    assert summary["policy"]["kl_to_baseline"] is None


def test_a_policy_of_another_size_is_judged_by_an_engine_of_its_own(
    evaluate, save, sharp_policy, make_policy, tokenizer
):
    wide = save("wide", make_policy(seed=1, hidden_size=32), tokenizer)
    summary, _, _ = evaluate(wide, save("narrow", sharp_policy, tokenizer))
    assert summary["policy"]["responses"] == 12
    assert summary["policy"]["kl_to_baseline"] > 0  # the same tokens, so it is measured


def judge_that(answer):
    """A server with the API of OpenAI; `answer` maps the texts in <…> of a question to a reply."""

    def reply(body, _):
        texts = re.findall(r"<(.*?)>", body["messages"][0]["content"], re.DOTALL)
        return {"choices": [{"message": {"content": answer(*texts)}}]}

    return serving(answering(reply))


def compare(one, other):
    return (one > other) - (one < other)


def test_a_judge_of_pairs_compares_each_response_with_the_baselines(
    evaluate, save, sharp_policy, make_policy, tokenizer
):
    policy = save("policy", sharp_policy, tokenizer)
    baseline = save("baseline", make_policy(seed=3), tokenizer)
    with judge_that(lambda a, b: f"Verdict: {('tie', 'A', 'B')[compare(a, b)]}") as url:
        judge = PairwiseJudgeConfig(
            url=url, model_name="it", template="<{response_a}> <{response_b}>"
        )
        summary, texts, metrics = evaluate(policy, baseline, judge)
    pairs = list(zip(texts["policy"], texts["baseline"], strict=True))
    wins, losses = (sum(compare(*pair) == sign for pair in pairs) for sign in (1, -1))
    assert wins + losses > 0
    assert (metrics["won_prompts"], metrics["lost_prompts"]) == (wins, losses)
    assert metrics["judged_prompts"] == 12
    # a tie is 0.5, like the baseline against itself
    assert summary["baseline"]["mean_reward"] == 0.5
    assert metrics["reward_gain"] == pytest.approx((wins - losses) / 2 / 12)


def test_a_judge_that_rates_is_a_reward_of_an_evaluation_and_a_part_of_others(
    evaluate, save, sharp_policy, make_policy, tokenizer
):
    policy = save("policy", sharp_policy, tokenizer)
    baseline = save("baseline", make_policy(seed=3), tokenizer)
    with judge_that(lambda text: f"Score: {min(len(text.split()), 9)}") as url:
        judge = LlmJudgeRewardConfig(url=url, model_name="it", template="<{response}>")
        parts = {"parts": [{"reward": judge.model_dump(), "weight": 2.0}]}
        summary, texts, metrics = evaluate(policy, baseline, judge)
        doubled = evaluate(policy, baseline, WeightedRewardConfig.model_validate(parts))[2]
    words = [len(text.split()) for text in texts["policy"]]
    assert metrics["mean_reward"] == pytest.approx(sum(words) / 12)
    assert doubled["mean_reward"] == pytest.approx(2 * sum(words) / 12)
    assert doubled["component_llm_judge"] == metrics["mean_reward"]
    assert "component_llm_judge" not in summary["policy"]
