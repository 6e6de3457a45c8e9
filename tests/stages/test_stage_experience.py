"""From scored rollouts to experience, and what a checkpoint brings back."""

import math

import pytest
import torch

from stages.attempt import Attempt
from stages.configs.training_config import AdamWConfig
from stages.contract import Context
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink
from stages.training.checkpointing import Checkpoints
from stages.training.engines import make_engine
from stages.training.resumable_steps import run_steps
from tests.rounds import estimate, experience_of
from training_core.errors import IntegrityError
from training_core.types import Prompt, Rollout, ScoredRollout


def scored(reward, tokens):
    prompt = Prompt("1", (), "", (1, 2))
    ids = tuple(range(5, 5 + tokens))
    return ScoredRollout(Rollout(prompt, ids, (-1.0,) * tokens, "", True, 0), reward)


def test_experience_of_two_rollouts_worked_out_by_hand():
    found = experience_of(
        [scored(3.0, 2), scored(1.0, 1)],
        policy=lambda b: b.loss_mask * -1.0,
        reference=lambda b: b.loss_mask * -1.5,
        critic=lambda b: b.loss_mask * 0.5,
        kl_coef=0.2,
    )
    # KL = -1 - (-1.5) = 0.5 per token and costs 0.1: rewards are -0.1, 2.9 and 0.9
    # returns (gamma = lambda = 1): 2.8, 2.9 and 0.9; the values are 0.5: advantages 2.3, 2.4, 0.4
    expected = torch.tensor([[0, 0, 2.8, 2.9], [0, 0, 0.9, 0]])
    torch.testing.assert_close(found.returns, expected)
    # mean 1.7, biased variance (0.36 + 0.49 + 1.69) / 3
    deviation = math.sqrt(2.54 / 3)
    white = torch.tensor([[0, 0, 0.6, 0.7], [0, 0, -1.3, 0]]) / deviation
    torch.testing.assert_close(found.advantages, white)
    assert found.batch.loss_mask.int().tolist() == [[0, 0, 1, 1], [0, 0, 1, 0]]


def test_a_policy_that_strays_further_from_the_reference_gets_smaller_returns():
    def returns(ref_logprob):
        return experience_of(
            [scored(1.0, 3)],
            policy=lambda b: b.loss_mask * -1.0,
            reference=lambda b: b.loss_mask * ref_logprob,
            critic=lambda b: b.loss_mask * 0.0,
            kl_coef=0.1,
            estimate=estimate(gamma=1.0, gae_lambda=0.95),
        ).returns.sum()

    assert returns(-3.0) < returns(-1.0)


def test_rows_of_an_experience_are_cut_to_their_own_longest():
    whole = experience_of(
        [scored(1.0, 4), scored(2.0, 1), scored(3.0, 2)],
        policy=lambda b: b.loss_mask * -1.0,
        reference=lambda b: b.loss_mask * -1.0,
        critic=lambda b: b.loss_mask * 0.5,
        kl_coef=0.1,
    )
    rows = whole.rows(torch.tensor([2, 1]))
    assert rows.batch.input_ids.tolist() == [[1, 2, 5, 6], [1, 2, 5, 0]]
    torch.testing.assert_close(rows.returns, whole.returns[[2, 1], :4])


@pytest.fixture
def context(tmp_path):
    return Context(Attempt(tmp_path), FileSink(Attempt(tmp_path), "sft"))


def test_a_resumed_stage_has_weights_optimizer_and_random_state_of_its_checkpoint(context):
    def stage():
        model = torch.nn.Linear(2, 1)
        return {"model": model}, {"engine": make_engine(model, AdamWConfig(), 10)}

    models, engines = stage()
    checkpoints = Checkpoints(context, models, engines, keep=2)
    assert checkpoints.resume() == 0
    engines["engine"].backward(models["model"](torch.ones(1, 2)).sum())
    engines["engine"].step(1)
    torch.manual_seed(5)
    torch.rand(3)
    context.sink.log(4, {"loss": 1.0})
    checkpoints.save(4)
    context.sink.log(5, {"loss": 0.5})  # done after the checkpoint, so it will be done again
    expected = torch.rand(2)

    torch.manual_seed(99)
    again, fresh = stage()
    assert Checkpoints(context, again, fresh, keep=2).resume() == 4
    assert torch.equal(torch.rand(2), expected)
    assert torch.equal(again["model"].weight, models["model"].weight)
    old, new = (e["engine"].state_dict()["optimizers"][0]["state"][0] for e in (engines, fresh))
    assert torch.equal(old["exp_avg"], new["exp_avg"])
    assert fresh["engine"].learning_rate == engines["engine"].learning_rate
    lines = context.attempt.metrics.read_text().splitlines()
    assert len(lines) == 1
    assert '"step": 4' in lines[0]


def small_stage():
    model = torch.nn.Linear(64, 8)
    return {"model": model}, {"engine": make_engine(model, AdamWConfig(), 10)}


def test_a_damaged_checkpoint_is_passed_over_for_an_older_one(context):
    models, engines = small_stage()
    checkpoints = Checkpoints(context, models, engines, keep=2)
    checkpoints.save(4)
    good = models["model"].weight.clone()
    torch.nn.init.zeros_(models["model"].weight)
    checkpoints.save(5)
    path = context.attempt.checkpoints / "step-00000005" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 0x40
    path.write_bytes(content)
    models, engines = small_stage()
    assert Checkpoints(context, models, engines, keep=2).resume() == 4
    assert torch.equal(models["model"].weight, good)


def test_a_stage_that_starts_again_from_nothing_starts_its_curve_again(context):
    context.sink.log(1, {"loss": 1.0})  # then it was killed
    assert Checkpoints(context, *small_stage(), keep=2).resume() == 0
    context.sink.log(1, {"loss": 1.0})
    assert len(context.attempt.metrics.read_text().splitlines()) == 1


def test_a_checkpoint_of_a_step_that_the_stage_does_not_have_is_an_error(context):
    checkpoints = Checkpoints(context, *small_stage(), keep=2)
    checkpoints.save(100_000)
    with pytest.raises(IntegrityError, match=r"step 125 or lower, found one of step 100000 below"):
        run_steps(lambda _: iter(()), 125, checkpoints, context, save_every=10)


def test_a_stray_folder_and_a_torn_curve_do_not_stop_a_resume(context, tmp_path):
    models, engines = small_stage()
    context.sink.log(4, {"loss": 1.0})
    Checkpoints(context, models, engines, keep=2).save(4)
    with context.attempt.metrics.open("a") as file:
        file.write('{"step": 5, "ti')
    (context.attempt.checkpoints / "step-copy").mkdir()
    assert Checkpoints(context, *small_stage(), keep=2).resume() == 4
    assert [line["step"] for line in read_jsonl(context.attempt.metrics)] == [4]
    context.attempt.metrics.write_text('{"step": 3}\n{"loss": 1}\n{"step": 4}\n')
    with pytest.raises(IntegrityError, match=r"metrics\.jsonl: expected a number as `step`"):
        Checkpoints(context, *small_stage(), keep=2).resume()
