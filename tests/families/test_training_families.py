"""Silent bugs in losses and keys, one test per family that had no guard yet."""

import copy
from functools import partial

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from stages.attempt import Attempt
from stages.batches.micro_batches import Examples, micro_batches
from stages.batches.unpaired_batches import mismatch
from stages.configs.training_config import TrainingConfig
from stages.contract import Context
from stages.reinforcement.learners import policy_logprobs
from stages.runtime.metric_files import FileSink
from stages.training.reference_logprobs import Reference
from tests.families.layouts import padded_right
from tests.families.objectives import GradientKeeper, cases, gradient
from tests.rounds import experience_of, held
from tests.tolerances import (
    assert_same_gradients,
    assert_same_through,
    operations_through,
    rounding,
)
from training_core.algorithms.aggregation import token_mean
from training_core.algorithms.policy_losses import ppo_clip
from training_core.data.batching import collate
from training_core.engine.torch_engine import TorchEngine
from training_core.loop import train_steps
from training_core.models.causal_lm import logprobs
from training_core.models.offloading import FrozenWeights
from training_core.objectives.reinforcement import policy_objective
from training_core.objectives.supervised import supervised
from training_core.rollout.engine import Sampling
from training_core.rollout.transformers_engine import TransformersEngine
from training_core.types import Example, ScoredRollout

CPU = torch.device("cpu")


def exact_kl(policy, reference, prompt_ids):
    """KL(policy || reference) of the next token after a prompt, over the whole vocabulary."""
    ids = torch.tensor([prompt_ids])
    with torch.no_grad():
        p, q = (model(ids).logits[0, -1].log_softmax(-1) for model in (policy, reference))
    return float((p.exp() * (p - q)).sum())


def test_a_step_on_the_kl_alone_brings_the_policy_nearer_to_its_reference(
    make_policy, tokenizer, cafe_prompts
):
    """Family 11: a KL without gradient, or with the wrong sign."""
    reference, policy = make_policy(seed=0), copy.deepcopy(make_policy(seed=0))
    with torch.no_grad():
        policy.model.embed_tokens.weight.mul_(6.0)
    prompt = cafe_prompts[0]
    rollouts = TransformersEngine(policy, tokenizer).generate(
        [prompt] * 256, Sampling(1), seeds=range(256)
    )
    experience = experience_of(
        [ScoredRollout(r, 0.0) for r in rollouts],  # no reward but the KL's
        policy_logprobs(held(policy), 1.0, 4096),
        policy_logprobs(held(reference), 1.0, 4096),
        lambda b: b.loss_mask * 0.0,
        kl_coef=1.0,
    )
    before = exact_kl(policy, reference, prompt.input_ids)
    engine = TorchEngine(policy, learning_rate=1e-3, schedule=lambda _: 1.0)
    loss = partial(ppo_clip, clip_low=0.2, clip_high=0.2)
    objective = policy_objective(loss, partial(token_mean, max_tokens=1), temperature=1.0)
    (report,) = train_steps(engine, objective, [[experience]])
    assert report.grad_norm > 1e-3
    assert exact_kl(policy, reference, prompt.input_ids) < 0.98 * before


def test_the_loss_and_its_gradient_are_those_of_transformers_own_labels(make_policy):
    """Family 19: labels shifted twice; family 3: divided twice."""
    policy = make_policy().double()
    examples = [
        Example((5, 9, 7, 8, 6, 11), (0, 0, 0, 1, 1, 1)),
        Example((5, 6, 12), (0, 1, 1)),
    ]
    batch = collate(examples, 0)
    labels = batch.input_ids.masked_fill(~batch.loss_mask, -100)
    own = policy(
        input_ids=batch.input_ids, attention_mask=batch.attention_mask.long(), labels=labels
    ).loss
    expected = torch.autograd.grad(own, list(policy.parameters()))
    engine = GradientKeeper(policy)
    cut = [collate([example], 0) for example in examples]
    (report,) = train_steps(engine, supervised, [cut])
    # Llama's norms, and transformers' loss, compute in float32 whatever the model's precision.
    room = rounding(torch.float32, operations_through(policy), float(own.detach()))
    assert report.loss == pytest.approx(float(own.detach()), abs=room)
    for ours, theirs in zip(engine.gradients.values(), expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=0, atol=room)


def test_a_taught_answer_is_recited_and_ended(tokenizer):
    """Family 19, to the end: what was trained is what the model says, token by token."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=32, intermediate_size=64, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    policy = LlamaForCausalLM(config).eval()
    taught = {(5, 6): (9, 9, 12, 7), (6, 5): (8, 14, 9)}
    end = int(tokenizer.eos_token_id)
    examples = [
        Example((1, *prompt, *answer, end), (0, 0, 0) + (1,) * (len(answer) + 1))
        for prompt, answer in taught.items()
    ]
    engine = TorchEngine(policy, learning_rate=1e-2, schedule=lambda _: 1.0)
    reports = list(train_steps(engine, supervised, [[collate(examples, 0)]] * 60))
    assert reports[-1].loss < 0.02
    for prompt, answer in taught.items():
        ids = policy.generate(
            torch.tensor([[1, *prompt]]), do_sample=False, max_new_tokens=8, eos_token_id=end
        )
        assert tuple(ids[0, 3:].tolist()) == (*answer, end)


def test_rows_without_loss_count_for_nothing(make_policy):
    """Family 26: a truncated or masked row must not make the others smaller."""
    policy = make_policy().double()
    kept = [Example((5, 9, 7, 8), (0, 0, 1, 1)), Example((5, 6, 12), (0, 1, 1))]
    masked = [Example((7, 7, 7, 9, 9, 9), (0,) * 6)] * 2
    gradients = []
    for rows in ([kept], [kept + masked], [masked, kept], [[kept[0], masked[0]], [kept[1]]]):
        engine = GradientKeeper(policy)
        (report,) = train_steps(engine, supervised, [[collate(some, 0) for some in rows]])
        gradients.append((report.loss, engine.gradients))
        policy.zero_grad(set_to_none=True)
    (loss, alone), *others = gradients
    for other_loss, other in others:
        assert other_loss == pytest.approx(loss, rel=1e-12)
        assert_same_gradients(policy, other, alone)


@pytest.mark.parametrize("name", cases())
def test_the_same_item_many_times_is_the_item_once(name):
    """Families 1 and 26: what is divided by is what was counted."""
    case = cases()[name]
    once = gradient(case, torch.float64, [[2]])
    often = gradient(case, torch.float64, [[2, 2], [2]], padded_right)
    assert_same_gradients(case.model, often, once)


EXAMPLES = [Example((1, 5, 6, 7), (0, 0, 1, 1)), Example((1, 8, 9), (0, 0, 1))]
OTHERS = {
    "another token": [Example((1, 5, 6, 8), (0, 0, 1, 1)), EXAMPLES[1]],
    "another mask": [Example((1, 5, 6, 7), (0, 1, 1, 1)), EXAMPLES[1]],
    "another order": EXAMPLES[::-1],
    "another border": [Example((1, 5, 6, 7, 1), (0, 0, 1, 1, 0)), Example((8, 9), (0, 1))],
}


def test_kept_reference_logprobs_are_found_for_the_same_inputs_and_no_others(make_policy, tmp_path):
    """Family 33: a cache key that omits something."""
    attempt = Attempt(tmp_path)
    context = Context(attempt, FileSink(attempt, "dpo"), cache_dir=tmp_path / "cache")
    loads = []

    def ask(examples, identity="weights float32"):
        def load():
            loads.append(identity)
            return FrozenWeights(make_policy(), CPU)

        collator = Examples(examples, 0, CPU)
        reference = Reference(load, identity, context)
        return reference.logprobs(collator, examples, columns=1, budget_tokens=64)

    first = ask(EXAMPLES)
    assert torch.equal(ask(EXAMPLES), first)
    assert len(loads) == 1
    batch = collate(EXAMPLES, 0)
    with torch.no_grad():
        expected = logprobs(make_policy(), batch).sum(dim=1, keepdim=True)
    assert_same_through(make_policy(), first.float(), expected)
    for change in OTHERS.values():
        ask(change)
    for identity in ("other weights float32", "weights bfloat16"):
        ask(EXAMPLES, identity)
    assert len(loads) == 1 + len(OTHERS) + 2


def test_the_seed_alone_decides_the_batches(make_policy):
    """Family 33: a seed that is ignored, or batches that depend on something else."""
    del make_policy
    rows = [Example((1, i, i), (0, 1, 1)) for i in range(2, 40)]
    training = TrainingConfig(batch_size=8, micro_batch_tokens=12)

    def ids(seed):
        batch_of = micro_batches(Examples(rows, 0, CPU), training, seed=seed)
        return [batch.input_ids.tolist() for step in range(4) for batch in batch_of(step)]

    torch.manual_seed(1)
    first = ids(0)
    torch.manual_seed(2)
    assert ids(0) == first
    assert ids(1) != first
    assert mismatch(rows, seed=0, max_tokens=9) == mismatch(rows, seed=0, max_tokens=9)
    assert mismatch(rows, seed=1, max_tokens=9) != mismatch(rows, seed=0, max_tokens=9)
