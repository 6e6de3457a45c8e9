"""Estimates of stages from their configs: Llama 3 8B by hand, limits, remedies, rows."""

from __future__ import annotations

import json

import pytest

from stages.configs.data_config import CafeDataConfig, FileDataConfig
from stages.configs.distillation_config import DistillationConfig
from stages.configs.dpo_config import DpoConfig
from stages.configs.evaluation_config import EvaluationConfig
from stages.configs.kto_config import KtoConfig
from stages.configs.model_config import HubModelConfig, LocalModelConfig, ScratchModelConfig
from stages.configs.ppo_config import PpoConfig
from stages.configs.preference_pairs_config import PreferencePairsConfig
from stages.configs.process_reward_config import ProcessRewardConfig
from stages.configs.rejection_sampling_config import RejectionSamplingConfig
from stages.configs.reward_model_config import RewardModelConfig
from stages.configs.sft_config import SftConfig
from stages.sizes.dataset_rows import rows_in, rows_made
from stages.sizes.estimates import size_of
from stages.sizes.model_at_hand import base_decoder
from stages.sizes.remedies import remedies
from stages.sizes.sampling_stages import ppo_phases
from stages.sizes.stage_size import GIB
from tests.training_core.sizes.published_shapes import LLAMA_3_8B
from training_core.errors import ConfigError, DataError
from training_core.sizes.decoder_config import decoder_of

EIGHT_B = decoder_of(LLAMA_3_8B, "it")
N = EIGHT_B.parameters()
CAFE = {"name": "cafe", "size": 1000}
GPU = {"num_gpus": 1, "gpu_memory_gib": 80.0}
BF16 = {"dtype": "bfloat16"}
ONE_EXAMPLE = {"max_tokens": 64, "batch_size": 1}
FORWARD = 2 * EIGHT_B.active_body * 64 + 4 * 32 * 4096 * 64 * 65 / 2
LOGITS = 2 * 128256 * 4096 * 64


def test_sft_counts_its_tokens_steps_and_flops():
    training = {"max_tokens": 64, "batch_size": 32, "epochs": 2}
    size = size_of(SftConfig(data=CAFE, training=training), EIGHT_B)
    assert size.work.tokens_per_step == 32 * 64
    assert size.work.steps == 63  # 2000 / 32, the last batch is short
    assert size.work.flops_per_step == pytest.approx(32 * (3 * FORWARD + 4 * LOGITS))
    assert size.work.flops == pytest.approx(63 * size.work.flops_per_step)


@pytest.mark.parametrize(
    ("config", "passes", "logits", "tokens"),
    [
        (RewardModelConfig(data=CAFE, training=ONE_EXAMPLE), 2 * 3, 0, 2 * 64),
        (ProcessRewardConfig(data=CAFE, training=ONE_EXAMPLE), 3, 0, 64),
        (DpoConfig(data=CAFE, training=ONE_EXAMPLE), 2 * 3, 2 * 4, 2 * 64),
        (KtoConfig(data=CAFE, training=ONE_EXAMPLE), 3 + 1, 4 + 1, 64),  # and a mismatched one
        (DistillationConfig(data=CAFE, training=ONE_EXAMPLE), 3 + 1, 4 + 1, 64),  # and the teacher
    ],
    ids=lambda value: getattr(type(value), "__name__", None),
)
def test_each_stage_counts_the_sequences_of_an_example(config, passes, logits, tokens):
    work = size_of(config, EIGHT_B).work
    assert work.flops_per_step == pytest.approx(passes * FORWARD + logits * LOGITS)
    assert work.tokens_per_step == tokens


def test_log_probabilities_of_a_reference_are_computed_once():
    work = size_of(DpoConfig(data=CAFE, training={**ONE_EXAMPLE, "epochs": 3}), EIGHT_B).work
    assert work.flops_once == pytest.approx(1000 * 2 * (FORWARD + LOGITS))
    assert work.flops == pytest.approx(3000 * work.flops_per_step + work.flops_once)


def test_a_round_of_ppo_has_seven_forward_passes_beside_its_updates():
    config = PpoConfig(
        prompts=CAFE,
        prompts_per_step=3,
        group_size=2,
        rollouts={"max_tokens": 64, "max_response_tokens": 63},
    )
    work = size_of(config, EIGHT_B).work
    # sampling, old, reference's; value, reward; 3 forward passes in both updates
    logits = LOGITS * 63 / 64
    assert work.flops_per_step == pytest.approx(6 * ((5 + 6) * FORWARD + (3 + 4) * logits))
    assert (work.tokens_per_step, work.steps) == (6 * 64, 100)


def test_held_out_responses_are_sampled_and_scored_beside_the_rounds():
    held_out = {"name": "cafe", "split": "heldout", "size": 10}
    evaluation = {"every": 25, "prompts": [{"data": held_out}], "samples_per_prompt": 4}
    rollouts = {"max_tokens": 64, "max_response_tokens": 63}
    plain = {"prompts": CAFE, "steps": 100, "rollouts": rollouts}
    without = size_of(PpoConfig(**plain), EIGHT_B).work
    work = size_of(PpoConfig(**plain, evaluation=evaluation), EIGHT_B).work
    # 10 * 4 responses before the first round and after rounds 25, 50, 75 and 100: 2 per round
    assert work.tokens_per_step == without.tokens_per_step + 2 * 64
    more = (FORWARD + LOGITS * 63 / 64) + FORWARD  # sampling and reward
    assert work.flops_per_step == pytest.approx(without.flops_per_step + 2 * more)
    model = {"name": "external_reward_model", "model": {"name": "hub", "repo": "a/judge"}}
    evaluation["judge"] = {"reward": model}
    judged = size_of(PpoConfig(**plain, resources=GPU, evaluation=evaluation), EIGHT_B)
    assert judged.work.flops_per_step == pytest.approx(work.flops_per_step + 2 * FORWARD)
    assert judged.roles["judge"].total == judged.roles["reward_model"].total > 0


def test_ppo_holds_its_models_in_single_precision_on_one_gpu():
    size = size_of(PpoConfig(prompts=CAFE, resources=GPU), EIGHT_B)
    scalar = EIGHT_B.parameters("score")
    assert size.phase == "policy: backward pass"
    assert (size.roles["policy"].weights, size.roles["policy"].optimizer) == (4 * N, 8 * N)
    assert size.roles["critic"].total == 12 * scalar
    assert size.roles["reference"].total == 4 * N
    assert size.roles["reward_model"].total == 4 * scalar
    assert size.roles["sampler"].total == pytest.approx(0.4 * 80 * GIB)
    assert not size.fits


def test_engines_that_sleep_or_are_apart_leave_their_memory_to_the_training():
    def size(**placement):
        rollouts = {"engine": "vllm", "placement": placement}
        return size_of(PpoConfig(prompts=CAFE, resources=GPU, rollouts=rollouts), EIGHT_B)

    assert "sampler" in size(name="colocated").roles
    assert "sampler" not in size(name="colocated", sleep=True).roles
    four = size(name="apart", engines=4, num_gpus=1)
    assert "sampler" not in four.roles
    assert (four.num_gpus, four.gpus_apart) == (1, 4)
    scored = PpoConfig(prompts=CAFE, resources=GPU, scoring={"name": "apart", "num_gpus": 1})
    assert "reward_model" not in size_of(scored, EIGHT_B).roles
    assert size_of(scored, EIGHT_B).gpus_apart == 1


def test_a_function_as_reward_needs_no_model():
    config = PpoConfig(prompts=CAFE, reward={"name": "cafe"}, resources=GPU)
    assert "reward_model" not in size_of(config, EIGHT_B).roles


def test_an_evaluation_holds_three_policies_while_it_loads_the_next():
    config = EvaluationConfig(prompts=CAFE, reward={"name": "cafe"}, resources=GPU)
    for policies, held in [(2, 2), (3, 3), (6, 3)]:
        size = size_of(config, EIGHT_B, policies=policies)
        assert len(size.roles) == held + 1  # and the sampler
        assert size.work.tokens_per_step == policies * 1000 * 1024


def test_offloaded_models_are_on_the_gpu_only_while_they_compute():
    frozen_models = {"dtype": "bfloat16", "offload": True}
    config = EvaluationConfig(prompts=CAFE, frozen_models=frozen_models, resources=GPU)
    size = size_of(config, EIGHT_B, policies=3)
    assert size.phase == "log-probabilities"
    assert [size.roles[r].weights for r in ("baseline", "policy 1", "policy 2")] == [
        2 * N,
        0,
        2 * N,
    ]
    assert size.roles["reward_model"].total == 0
    assert size.together.host == 3 * 2 * N + 2 * EIGHT_B.parameters("score")


def test_ppo_uses_its_frozen_models_one_after_the_other():
    frozen_models = {"dtype": "bfloat16", "offload": True}
    config = PpoConfig(prompts=CAFE, model=BF16, frozen_models=frozen_models, resources=GPU)
    found = dict(ppo_phases(config, EIGHT_B))
    scored, compared = found["reward_model: forward pass"], found["reference: forward pass"]
    assert (scored["reward_model"].weights, scored["reference"].weights) == (
        2 * EIGHT_B.parameters("score"), 0,
    )  # fmt: skip
    assert (compared["reward_model"].weights, compared["reference"].weights) == (0, 2 * N)
    assert found["sampling"]["reference"].total == found["sampling"]["reward_model"].total == 0


def test_divided_models_are_gathered_layer_by_layer():
    workers = {**GPU, "num_workers": 4}
    frozen = {"dtype": "bfloat16", "shard": True}
    layer = (N - 2 * 128256 * 4096 - 4096) / 32
    gathered = 2 * (N - 30 * layer)  # all that is in no layer, and two layers

    def found(resources=workers, **changes):
        config = PpoConfig(
            prompts=CAFE, model=BF16, frozen_models={**frozen, **changes}, resources=resources
        )
        return dict(ppo_phases(config, EIGHT_B))

    resident, waiting = found(), found(offload=True)
    assert resident["sampling"]["reference"].weights == 2 * N / 4
    assert resident["reference: forward pass"]["reference"].weights == 2 * N / 4 + gathered
    assert waiting["sampling"]["reference"].weights == 0
    compared = waiting["reference: forward pass"]["reference"]
    assert (compared.weights, compared.host) == (gathered, 2 * N / 4)
    # One worker has nobody to divide them with, but it can move them in parts.
    assert found(GPU)["sampling"]["reference"].weights == 2 * N
    alone = found(GPU, offload=True)["reference: forward pass"]["reference"]
    assert (alone.weights, alone.host) == (gathered, 2 * N)


def test_a_stage_that_samples_moves_its_models_in_parts():
    def log_probabilities(**changes):
        frozen = {"dtype": "bfloat16", "offload": True, **changes}
        return size_of(EvaluationConfig(prompts=CAFE, frozen_models=frozen, resources=GPU), EIGHT_B)

    assert log_probabilities().roles["baseline"].weights == 2 * N
    in_parts = log_probabilities(shard=True).roles["baseline"]
    assert in_parts.weights < 0.25 * 2 * N
    assert in_parts.host == 2 * N


def test_zero_3_gathers_no_whole_weights_in_ppo_unless_something_takes_them_whole():
    def has_whole_weights(stage=3, **changes):
        zero = {"name": "deepspeed", "zero_stage": stage}
        rollouts = {"engine": "vllm"}
        given = {"rollouts": rollouts, "engine": zero, "resources": GPU, **changes}
        config = PpoConfig(prompts=CAFE, model=BF16, **given)
        return "policy: whole weights" in dict(ppo_phases(config, EIGHT_B))

    assert not has_whole_weights()
    assert has_whole_weights(stage=2)
    assert has_whole_weights(ema_decay=0.9)
    assert has_whole_weights(rollouts={"engine": "transformers"})


def test_sampling_with_transformers_on_a_cpu_keeps_all_logits():
    config = RejectionSamplingConfig(prompts=CAFE, rollouts={"engine": "transformers"})
    size = size_of(config, EIGHT_B)
    assert size.roles["sampler"].activations == 128 * 256 * 128256 * 4
    assert size.limit_gib is None
    assert size.fits


def test_a_reference_beside_the_policy_is_a_phase_of_its_own():
    few = {"training": {"max_tokens": 64, "micro_batch_tokens": 64, "batch_size": 1}}
    frozen = {"frozen": ["model.layers.*", "model.embed_tokens.*", "lm_head.*"]}
    size = size_of(DpoConfig(data=CAFE, model=frozen, **few), EIGHT_B)
    assert size.phase == "reference's log-probabilities"
    assert size.roles["reference"].weights == 4 * N
    adapter = size_of(DpoConfig(data=CAFE, model={"lora": {}}, **few), EIGHT_B)
    assert set(adapter.roles) == {"policy"}  # the reference is the policy without its adapter


def test_a_stage_fits_up_to_nine_tenths_of_its_gpu():
    def size(**memory):
        resources = {"num_gpus": 1, **memory}
        config = SftConfig(data=CAFE, training=ONE_EXAMPLE, model=BF16, resources=resources)
        return size_of(config, EIGHT_B)

    needed = size().together.total / GIB
    assert size(gpu_memory_gib=needed / 0.9 + 0.1).fits
    assert not size(gpu_memory_gib=needed / 0.9 - 0.1).fits


def test_half_a_gpu_has_half_its_memory_and_a_cpu_the_reserved_one():
    for resources, limit in [
        ({"num_gpus": 0.5, "gpu_memory_gib": 80.0}, 36.0),
        ({"num_gpus": 1}, None),
        ({"memory_gib": 8.0}, 8.0),
    ]:
        config = SftConfig(data=CAFE, resources=resources)
        found = size_of(config, EIGHT_B).limit_gib
        assert found == (None if limit is None else pytest.approx(limit))


def test_micro_batches_are_no_larger_than_a_workers_share_and_no_smaller_than_an_example():
    def activations(**training):
        return size_of(SftConfig(data=CAFE, training=training), EIGHT_B).roles["policy"].activations

    share = activations(batch_size=2, max_tokens=100, micro_batch_tokens=8192)
    assert share == activations(batch_size=64, max_tokens=100, micro_batch_tokens=200)
    assert activations(max_tokens=2000, micro_batch_tokens=10) == activations(
        max_tokens=2000, micro_batch_tokens=2000
    )


DEEPSPEED = {"engine": {"name": "deepspeed", "zero_stage": 2}}


@pytest.mark.parametrize(
    ("config", "part", "expected"),
    [
        ({}, "optimizer", "set training.engine: {name: deepspeed, zero_stage: 1}"),
        ({}, "weights", "zero_stage: 3} with several workers"),
        ({"training": DEEPSPEED}, "gradients", "set more workers (resources.num_workers), or "),
        ({"training": DEEPSPEED}, "optimizer", "training.engine.offload_optimizer: true"),
        ({"training": DEEPSPEED}, "weights", "zero_stage: 3} with several workers"),
        ({}, "activations", "set model.gradient_checkpointing: true, or a smaller training.micro"),
        ({"model": {"gradient_checkpointing": True}}, "activations", "set a smaller training.micr"),
        ({}, "weights", "model.dtype: bfloat16"),
        ({"model": BF16}, "weights", "or model.lora: {}"),
    ],
)
def test_the_remedy_is_one_that_the_config_does_not_have_yet(config, part, expected):
    assert expected in remedies(SftConfig(data=CAFE, **config), part)


def test_where_every_remedy_is_taken_the_model_is_too_large():
    training = {"max_tokens": 64, "micro_batch_tokens": 64}
    model = {**BF16, "gradient_checkpointing": True}
    config = SftConfig(data=CAFE, training=training, model=model)
    assert remedies(config, "activations") == "use a smaller model or larger GPUs"
    ppo = PpoConfig(prompts=CAFE)
    assert remedies(ppo, "activations") == "lower micro_batch_tokens"
    assert remedies(ppo, "kv_cache") == "lower rollouts.gpu_memory_fraction"
    assert "all its models on one GPU" in remedies(ppo, "optimizer")
    assert remedies(ppo, "weights") == "set frozen_models: {shard: true, offload: true}"
    ppo = PpoConfig(prompts=CAFE, frozen_models={"shard": True, "offload": True})
    assert remedies(ppo, "weights") == "set engine: {name: deepspeed, zero_stage: 3}"


def test_rows_are_counted_as_far_as_the_config_tells():
    cafe, files = CafeDataConfig(size=7), {"name": "files", "path": "x.jsonl"}
    assert rows_in(cafe) == 7
    assert rows_in(FileDataConfig(**files)) is None
    assert rows_in(FileDataConfig(**files, limit=5)) == 5
    assert rows_in(FileDataConfig(**files, limit=5, sample=3)) == 3
    assert rows_in(None) is None
    best, top = ({"name": "best"}, {"name": "top_k", "k": 2})
    for select, rows in [(best, 7), (top, 14), ({"name": "every"}, 28)]:
        sampling = RejectionSamplingConfig(prompts=cafe, group_size=4, select=select)
        assert rows_made(sampling) == rows
    pairs = PreferencePairsConfig(prompts=cafe, group_size=3, pairs_per_prompt=5)
    assert rows_made(pairs) == 7 * 3  # three responses have three pairs
    assert rows_made(PreferencePairsConfig(prompts=files)) is None


def test_rows_of_earlier_steps_count_where_a_stage_has_no_data():
    assert size_of(SftConfig(), EIGHT_B, given_rows=64).work.steps == 1
    assert size_of(SftConfig(), EIGHT_B).work.steps is None
    assert size_of(SftConfig(), EIGHT_B).work.flops is None


def test_shapes_come_from_a_folder_or_from_the_config_of_a_scratch_model(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(LLAMA_3_8B))
    assert base_decoder(LocalModelConfig(path=str(tmp_path))) == EIGHT_B
    scratch = base_decoder(ScratchModelConfig())
    # 2 layers of 4 * 128^2 + 3 * 128 * 384 + 2 * 128, and the last norm
    assert scratch.parameters() == 2 * (4 * 128**2 + 3 * 128 * 384 + 256) + 128


def test_a_model_that_is_not_at_hand_is_named(tmp_path):
    with pytest.raises(DataError, match=r"has no config\.json"):
        base_decoder(LocalModelConfig(path=str(tmp_path)))
    # the tests run with HF_HUB_OFFLINE
    with pytest.raises(DataError, match=r"the config\.json of nobody/nothing is neither in the ca"):
        base_decoder(HubModelConfig(repo="nobody/nothing"))
    (tmp_path / "config.json").write_text('{"model_type": "gpt_neo"}')
    with pytest.raises(ConfigError, match="is a 'gpt_neo', and sizes are known only of llama"):
        base_decoder(LocalModelConfig(path=str(tmp_path)))
