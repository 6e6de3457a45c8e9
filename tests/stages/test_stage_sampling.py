"""Stages that sample: truncated, greedy, stopped, and from engines in processes of their own."""

import json
import logging

import pytest

from stages import evaluation, rejection_sampling
from stages.attempt import Attempt
from stages.catalog import find_stage
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.rejection_sampling_config import RejectionSamplingConfig
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink
from stages.runtime.stage_key import stage_key
from training_core.errors import MismatchError
from training_core.models import hub

ROLLOUTS = {"engine": "transformers", "max_response_tokens": 12, "max_tokens": 64}
CAFE = {"name": "cafe", "split": "heldout", "size": 12}


@pytest.fixture
def policies(make_policy, tokenizer, tmp_path):
    """Folders of two policies."""
    for seed in (1, 2):
        hub.save(make_policy(seed=seed), tokenizer, tmp_path / f"policy-{seed}")
    return tmp_path / "policy-1", tmp_path / "policy-2"


@pytest.fixture
def run(policies, tmp_path):
    """Run a stage; return its metrics, and the rows of a file of its artifact."""

    def run_stage(stage, name, config, file):
        attempt = Attempt(tmp_path / name)
        attempt.artifact.mkdir(parents=True)
        inputs = {"policy": policies[0], "baseline": policies[1]}
        context = Context(attempt, FileSink(attempt, "stage"))
        result = stage.run(config, inputs, context)
        return result.metrics, list(read_jsonl(attempt.artifact / file))

    return run_stage


def evaluation_of(**rollouts):
    return EvaluationConfig.model_validate(
        {"prompts": CAFE, "reward": {"name": "cafe"}, "rollouts": {**ROLLOUTS, **rollouts}}
    )


def rejection_of(**rollouts):
    return RejectionSamplingConfig.model_validate(
        {
            "prompts": {**CAFE, "size": 40},
            "reward": {"name": "cafe"},
            "rollouts": {**ROLLOUTS, **rollouts},
            "group_size": 4,
            "keep_unfinished": True,
            "select": {"name": "every"},
        }
    )


def test_a_greedy_evaluation_does_not_depend_on_its_seed(run):
    config = evaluation_of(temperature=0)
    other = config.model_copy(update={"seed": 5})
    metrics, rows = run(evaluation, "a", config, "samples.jsonl")
    assert run(evaluation, "b", other, "samples.jsonl") == (metrics, rows)
    assert "kl_to_baseline" not in metrics  # the samples are not those of the policy
    _, sampled = run(evaluation, "c", evaluation_of(), "samples.jsonl")
    assert sampled != rows


def test_truncation_reaches_the_engine_and_its_weights_are_still_verified(run, caplog):
    caplog.set_level(logging.INFO)
    metrics, rows = run(evaluation, "a", evaluation_of(top_k=1), "samples.jsonl")
    _, greedy = run(evaluation, "b", evaluation_of(temperature=0), "samples.jsonl")
    assert [row["response"] for row in rows] == [row["response"] for row in greedy]
    assert "kl_to_baseline" not in metrics
    gaps = [r.args[0] for r in caplog.records if "mean gap" in r.message]
    assert len(gaps) == 4
    assert max(gaps) < 1e-5


def test_an_engine_with_other_weights_is_found_out_in_a_truncated_evaluation(run, monkeypatch):
    monkeypatch.setattr("stages.sampling.judging.sync", lambda *_: None)
    with pytest.raises(MismatchError, match="after weight sync 0 the transformers engine"):
        run(evaluation, "a", evaluation_of(top_p=0.9, logprob_gap_limit=1e-4), "samples.jsonl")


def test_a_stop_string_finishes_responses_before_it(run):
    words = run(rejection_sampling, "a", rejection_of(), "data.jsonl")[1][0]["response"].split()
    metrics, rows = run(rejection_sampling, "b", rejection_of(stop=[words[2]]), "data.jsonl")
    assert rows[0]["response"] == " ".join(words[:2]) + " "
    assert rows[0]["finished"]
    assert not any(words[2] in row["response"] for row in rows)
    assert metrics["kept"] == len(rows)


@pytest.mark.slow
def test_two_separate_engines_make_the_same_dataset_as_one_here(run, tmp_path):
    """160 responses are two blocks, one for each engine."""
    here = run(rejection_sampling, "a", rejection_of(), "data.jsonl")
    apart = rejection_of(placement={"name": "colocated", "engines": 2})
    assert run(rejection_sampling, "b", apart, "data.jsonl") == here
    progress = json.loads(Attempt(tmp_path / "b").progress.read_text())
    assert (progress["done"], progress["total"]) == (40, 40)


def test_where_responses_are_sampled_does_not_change_the_stage_key():
    spec, inputs = find_stage("rejection_sampling"), {"policy": "p"}
    apart = rejection_of(placement={"name": "colocated", "engines": 2})
    assert stage_key(spec, apart, inputs) == stage_key(spec, rejection_of(), inputs)
    for truncation in ({"top_p": 0.9}, {"top_k": 9}, {"min_p": 0.1}, {"stop": ["."]}):
        changed = rejection_of(**truncation)
        assert stage_key(spec, changed, inputs) != stage_key(spec, rejection_of(), inputs)
