"""Configs that a stage cannot run are refused by validation, before any stage starts."""

import pytest
from pydantic import ValidationError

from stages.catalog import STAGES
from stages.configs.explanation import explain

CAFE = {"name": "cafe"}
TWO = {"num_workers": 2}
FLASH = {"attention": "flash_attention_2"}
HUGE = {"hidden_size": 4096, "num_layers": 1000, "num_heads": 32, "intermediate_size": 16384}
EVERY = {"eval_every_steps": 5}


def evaluated(metric):
    return {"eval_data": CAFE, "training": {"best_metric": {"metric": metric}}}


def split(size):
    engine = {"name": "deepspeed", "tensor_parallel_size": size}
    return {"training": {"engine": engine}, "resources": {"num_workers": 3}}


def data(**source):
    return {"data": {"name": "files", "path": "rows.jsonl", **source}}


REFUSED = [
    # what a response needs
    (
        "ppo",
        {"rollouts": {"max_response_tokens": 64, "max_tokens": 64}},
        "rollouts: max_response_tokens 64 leaves no room for a prompt in max_tokens 64; lower",
    ),
    (
        "ppo",
        {"rollouts": {"top_p": 0.9, "min_p": 0.1}},
        "rollouts: top_p, min_p: this stage trains on the log-probabilities of its rollouts, and",
    ),
    ("ppo", {"rollouts": {"temperature": 0}}, "temperature=0: this stage trains on the"),
    ("distillation", {"rollouts": {"top_k": 5}}, "top_k: this stage trains on the"),
    ("evaluation", {"rollouts": {"temperature": 0.001}}, "at least 0.01, found 0.001"),
    ("evaluation", {"rollouts": {"stop": [""]}}, "rollouts.stop.0: String should have at least 1"),
    (
        "evaluation",
        {"rollouts": {"placement": {"name": "apart", "tensor_parallel_size": 2}}},
        "placement.tensor_parallel_size is 2, and only vLLM divides its weights; set engine: vllm",
    ),
    (
        "ppo",
        {"rollouts": {"placement": {"name": "apart", "tensor_parallel_size": 2, "num_gpus": 1}}},
        "an engine on GPUs has one part per GPU, found num_gpus 1; make them equal",
    ),
    (
        "evaluation",
        {"rollouts": {"placement": {"name": "inline", "engines": 2}}},
        "engines",
    ),
    ("evaluation", {"rollouts": {"max_tokens": 200}}, "max_response_tokens 256 leaves no room"),
    ("distillation", {"rollouts": {"max_tokens": 200}}, "max_response_tokens 256 leaves no room"),
    (
        "rejection_sampling",
        {"group_size": 2, "select": {"name": "top_k", "k": 3}},
        "select.k 3 is larger than group_size 2, so every response would be kept; lower select.k",
    ),
    (
        "ppo",
        {"steps": 5, "critic_warmup_steps": 5},
        "critic_warmup_steps=5 leaves none of steps=5 rounds to train the policy; lower it",
    ),
    (
        "ppo",
        {"advantage": {"name": "gdpo"}},
        "advantage 'gdpo' normalises each part of a reward 'weighted' by itself, found the reward "
        "'reward_model'; make it a part of a weighted one, or choose grpo",
    ),
    (
        "ppo",
        {
            "advantage": {"name": "gdpo"},
            "reward": {"name": "weighted", "parts": [{"reward": {"name": "cafe"}}]},
            "reward_clip": 5.0,
            "unfinished_factor": 0.5,
        },
        "so reward_clip, unfinished_factor, which change their sum, have no effect; remove them",
    ),
    *(
        ("ppo", {"evaluation": {"prompts": [{"data": CAFE}], **evaluation}}, message)
        for evaluation, message in (
            ({"every": 101}, "evaluation.every=101 is above steps=100, so no weights would be"),
            ({"pass_at": [1, 4]}, "pass_at: 4 responses are more than samples_per_prompt=1; raise"),
            (
                {"temperature": 0, "samples_per_prompt": 2},
                "temperature 0 gives one response again and again, found samples_per_prompt=2",
            ),
            ({"temperature": 0.001}, "evaluation.temperature: expected 0 or at least 0.01, found"),
            (
                {"best_metric": "heldout_rewards"},
                "no metric 'heldout_rewards' is measured; did you mean 'heldout_reward'?",
            ),
            ({"best_metric": "heldout_pass_at_4"}, "there are: heldout_reward"),
            ({"prompts": []}, "evaluation.prompts: Tuple should have at least 1 item"),
            ({"prompts": [{"data": CAFE}] * 2}, "different labels, found 'all' twice; set `label`"),
        )
    ),
    ("ppo", {"aggregation": ""}, "aggregation: Input should be 'token_mean'"),
    # workers
    ("evaluation", {"resources": TWO}, "num_workers is 2, and only stages that train a model"),
    ("rejection_sampling", {"resources": TWO}, "run on several workers; set it to 1"),
    ("preference_pairs", {"resources": TWO}, "run on several workers; set it to 1"),
    (
        "sft",
        {"training": {"batch_size": 3}, "resources": {"num_workers": 4}},
        "training.batch_size 3 gives 4 workers less than one example each; raise it",
    ),
    (
        "dpo",
        split(2),
        "must be a multiple of training.engine.tensor_parallel_size 2, found 3; change one",
    ),
    ("kto", split(4), "must be a multiple of training.engine.tensor_parallel_size 4, found 3"),
    ("sft", {"resources": {"memory_gib": -1}}, "resources.memory_gib: Input should be greater"),
    # evaluation while training
    ("sft", {"training": EVERY}, "need held-out rows, and there are none; set eval_data, or"),
    ("dpo", {"training": {"best_metric": {"metric": "heldout_margin"}}}, "set eval_data, or"),
    ("kto", {"training": EVERY}, "set eval_data, or remove the two"),
    ("distillation", {"training": EVERY}, "set eval_data, or remove the two"),
    (
        "reward_model",
        {"training": EVERY, "heldout_fraction": 0},
        "set eval_data or heldout_fraction, or remove the two",
    ),
    ("process_reward", {"training": EVERY, "heldout_fraction": 0}, "eval_data or heldout_fraction"),
    (
        "sft",
        evaluated("heldout_los"),
        "no metric 'heldout_los' is measured; did you mean 'heldout_loss'? there are: heldout_loss",
    ),
    ("reward_model", evaluated("acc"), "there are: heldout_accuracy, heldout_margin"),
    ("dpo", evaluated("heldout_loss"), "there are: heldout_accuracy, heldout_margin"),
    ("kto", evaluated("margin"), "did you mean 'heldout_margin'?"),
    ("process_reward", evaluated("accuracy"), "did you mean 'heldout_accuracy'?"),
    ("distillation", evaluated("kl"), "there are: heldout_divergence"),
    # the model
    ("dpo", {"model": {"frozen": ["*"]}}, "frozen: '*' matches every parameter, so nothing would"),
    ("sft", {"model": FLASH}, "needs dtype=bfloat16, found float32; change one of the two"),
    (
        "sft",
        {"model": {**FLASH, "dtype": "bfloat16"}},
        "flash_attention_2 needs a GPU, and resources.num_gpus is 0; set resources.num_gpus",
    ),
    (
        "sft",
        {"training": {"engine": {"name": "deepspeed"}, "optimizer": {"name": "muon"}}},
        "the engine 'deepspeed' supports only the optimizer 'adamw', found 'muon'; choose engine",
    ),
    (
        "sft",
        {"base": {"name": "scratch", "hidden_size": 128, "num_heads": 3}},
        "hidden_size 128 must be a multiple of 2 * num_heads = 6; change one of them",
    ),
    ("sft", {"base": {"name": "scratch", "num_layers": 10**7}}, "less than or equal to 1000"),
    ("sft", {"base": {"name": "scratch", **HUGE}}, "a scratch model may have at most 1,000,000"),
    (
        "sft",
        {"base": {"name": "hub", "repo": "/models/mine", "revision": "a" * 40}},
        "for a folder on this machine use `name: local`",
    ),
    ("sft", {"base": {"name": "hub", "repo": "./mine"}}, "use `name: local` (a model)"),
    (
        "sft",
        {"reward_suffix": " good"},
        "expected a format whose only field is {reward}",
    ),
    ("sft", {"reward_suffix": " {score}"}, "found ' {score}'"),
    # data
    ("sft", {"data": {"name": "hub", "repo": "/data/rows"}}, "or `name: files` (data)"),
    (
        "sft",
        data(columns={"prompt": "text", "response": "text"}),
        "column 'text' is mapped to both 'prompt' and 'response', so the model would see one text",
    ),
    # numbers
    ("kto", {"threshold": float("nan")}, "threshold: Input should be a finite number (found nan)"),
    ("kto", {"threshold": float("inf")}, "threshold: Input should be a finite number (found inf)"),
    (
        "rejection_sampling",
        {"select": {"name": "threshold", "min_reward": float("nan")}},
        "min_reward: Input should be a finite number",
    ),
    ("sft", {"training": {"epochs": 1e300}}, "epochs: Input should be less than or equal to 10000"),
    ("sft", {"training": {"epochs": float("inf")}}, "epochs: Input should be a finite number"),
    ("rejection_sampling", {"group_size": 10**9}, "less than or equal to 1024 (found 1000000000)"),
    ("preference_pairs", {"group_size": 10**9}, "less than or equal to 1024 (found 1000000000)"),
    ("ppo", {"group_size": 10**9}, "less than or equal to 1024 (found 1000000000)"),
    ("evaluation", {"responses_per_prompt": 10**9}, "less than or equal to 1024"),
    ("ppo", {"prompts_per_step": 10**9}, "prompts_per_step: Input should be less than or equal"),
    ("ppo", {"steps": 10**9}, "steps: Input should be less than or equal to 1000000"),
    ("sft", {"data": {**CAFE, "size": 10**9}}, "less than or equal to 10000000"),
    (
        "sft",
        {"data": {"name": "mixed", "parts": [{"data": CAFE}], "size": 10**9}},
        "less than or equal to 10000000",
    ),
    ("sft", {"seed": 2**63}, "seed: Input should be less than 67108864"),
]


@pytest.mark.parametrize(("stage", "bad", "message"), REFUSED)
def test_a_config_that_its_stage_cannot_run_is_refused(stage, bad, message):
    config = STAGES[stage].config
    sources = {"prompts": CAFE} if "prompts" in config.model_fields else {}
    config.model_validate(sources)  # the rest of it is valid
    with pytest.raises(ValidationError) as caught:
        config.model_validate({**sources, **bad})
    assert message in explain(caught.value, config)


RUNS = [
    ("sft", {"training": EVERY, "eval_data": CAFE}),
    ("sft", {"model": {**FLASH, "dtype": "bfloat16"}, "resources": {"num_gpus": 1}}),
    ("sft", {"base": {"name": "hub", "repo": "gpt2"}}),
    ("sft", {"model": {"frozen": ["*.bias"]}}),
    ("reward_model", {"training": EVERY}),
    ("dpo", split(3)),
    ("rejection_sampling", {"group_size": 2, "select": {"name": "top_k", "k": 2}}),
]


@pytest.mark.parametrize(("stage", "good"), RUNS)
def test_what_is_nearly_wrong_runs(stage, good):
    config = STAGES[stage].config
    sources = {"prompts": CAFE} if "prompts" in config.model_fields else {}
    assert config.model_validate({**sources, **good})
