"""Log-probabilities, values and scores against the naive computation."""

import pytest
import torch

from tests.tolerances import assert_same_through
from training_core.data.batching import collate
from training_core.errors import DataError
from training_core.models import hub
from training_core.models.causal_lm import logprobs, logprobs_and_entropy
from training_core.models.scalar_head import sequence_scores, token_values
from training_core.models.scratch import Architecture, make_policy, make_tokenizer
from training_core.types import Batch, Example

PAD = 0


@pytest.fixture
def examples():
    generator = torch.Generator().manual_seed(2)
    return [
        Example(
            tuple(torch.randint(5, 30, (n,), generator=generator).tolist()),
            (0,) * 2 + (1,) * (n - 2),
        )
        for n in (9, 4, 6)
    ]


def widened(batch: Batch, extra: int, pad_id: int = PAD) -> Batch:
    pad = torch.nn.functional.pad
    return Batch(
        pad(batch.input_ids, (0, extra), value=pad_id),
        pad(batch.attention_mask, (0, extra)),
        pad(batch.loss_mask, (0, extra)),
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_those_of_the_full_logits(make_policy, examples, temperature):
    policy = make_policy().double()
    batch = collate(examples, PAD)
    found, entropy = logprobs_and_entropy(policy, batch, temperature=temperature)
    for row, example in enumerate(examples):  # one by one, without padding
        ids = torch.tensor([example.input_ids])
        naive = (policy(ids).logits[0, :-1] / temperature).log_softmax(-1)
        expected = naive.gather(1, ids[0, 1:, None]).squeeze(1)
        mask = torch.tensor(example.loss_mask[1:], dtype=torch.bool)
        size = len(example)
        assert_same_through(policy, found[row, 1:size][mask], expected[mask])
        naive_entropy = -(naive.exp() * naive).sum(-1)
        assert_same_through(policy, entropy[row, 1:size][mask], naive_entropy[mask])
    assert found[~batch.loss_mask].abs().sum() == 0
    assert found[batch.loss_mask].max() < 0


def test_gradients_through_logprobs_equal_those_of_the_full_logits(make_policy, examples):
    policy = make_policy().double()
    batch = collate(examples[:1], PAD)
    parameters = list(policy.parameters())
    found = torch.autograd.grad(logprobs(policy, batch).sum(), parameters)
    naive = policy(batch.input_ids).logits[:, :-1].log_softmax(-1)
    naive = naive.gather(2, batch.input_ids[:, 1:, None]).squeeze(2)[batch.loss_mask[:, 1:]].sum()
    for ours, theirs in zip(found, torch.autograd.grad(naive, parameters), strict=True):
        assert_same_through(policy, ours, theirs)


@pytest.mark.parametrize("pad_id", [0, 11])
def test_padding_on_the_right_changes_nothing(make_policy, make_scalar_model, examples, pad_id):
    policy, critic = make_policy().double(), make_scalar_model().double()
    batch = collate(examples, PAD)
    wide = widened(batch, extra=5, pad_id=pad_id)
    with torch.no_grad():
        for ask in (lambda b: logprobs(policy, b), lambda b: token_values(critic, b)):
            narrow, padded = ask(batch), ask(wide)
            assert_same_through(policy, padded[:, : narrow.shape[1]], narrow)
            assert padded[:, narrow.shape[1] :].abs().sum() == 0
        assert_same_through(critic, sequence_scores(critic, wide), sequence_scores(critic, batch))


def test_a_score_is_the_saved_models_own_logit(make_scalar_model, tokenizer, examples, tmp_path):
    hub.save(make_scalar_model().double(), tokenizer, tmp_path)
    reloaded = hub.load_scalar_model(tmp_path, dtype=torch.float64)
    batch = collate(examples, int(tokenizer.pad_token_id))
    with torch.no_grad():
        own = reloaded(
            input_ids=batch.input_ids, attention_mask=batch.attention_mask.long()
        ).logits[:, 0]
        found = sequence_scores(reloaded, batch)
    assert_same_through(reloaded, found, own)
    assert found.std() > 1e-3  # they are not all alike


def test_a_score_does_not_depend_on_the_batch(make_scalar_model, examples):
    model = make_scalar_model().double()
    with torch.no_grad():
        together = sequence_scores(model, collate(examples, PAD))
        alone = torch.cat([sequence_scores(model, collate([e], PAD)) for e in examples])
        turned = sequence_scores(model, collate(examples[::-1], PAD))
    assert_same_through(model, together, alone)
    assert_same_through(model, together, turned.flip(0))


def test_a_value_is_the_heads_output_before_the_token_was_chosen(make_scalar_model, examples):
    model = make_scalar_model().double()
    batch = collate(examples[:1], PAD)
    with torch.no_grad():
        values = token_values(model, batch)
        for t in batch.loss_mask[0].nonzero().flatten().tolist():
            before = Batch(
                *(x[:, :t] for x in (batch.input_ids, batch.attention_mask, batch.loss_mask))
            )
            assert_same_through(model, values[0, t], sequence_scores(model, before)[0])
    assert values[~batch.loss_mask].abs().sum() == 0


def test_a_reward_model_made_from_a_policy_starts_with_every_score_at_zero(
    make_policy, tokenizer, examples, tmp_path
):
    hub.save(make_policy(), tokenizer, tmp_path)
    model = hub.load_scalar_model(tmp_path)
    assert sequence_scores(model, collate(examples, PAD)).tolist() == [0.0, 0.0, 0.0]
    assert torch.equal(
        model.model.embed_tokens.weight, make_policy().model.embed_tokens.weight
    )  # on the policy's own backbone


def test_a_saved_policy_comes_back_with_its_tokenizer_and_template(
    make_policy, tokenizer, examples, tmp_path
):
    policy = make_policy(seed=3)
    hub.save(policy, tokenizer, tmp_path)
    batch, loaded = collate(examples, PAD), hub.load_policy(tmp_path)
    for name, weight in policy.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    with torch.no_grad():  # the file's weights are aligned in another way, which moves a rounding
        assert_same_through(policy, logprobs(loaded, batch), logprobs(policy, batch))
    reloaded = hub.load_tokenizer(tmp_path)
    assert reloaded.chat_template == tokenizer.chat_template
    assert reloaded.get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("load", [hub.load_policy, hub.load_scalar_model, hub.load_tokenizer])
def test_a_directory_without_a_model_is_an_error_that_names_it(tmp_path, load):
    with pytest.raises(DataError, match=str(tmp_path)):
        load(tmp_path)


def test_a_scratch_policy_depends_on_its_seed_alone(tokenizer):
    small = Architecture(hidden_size=8, num_layers=1, num_heads=1, intermediate_size=8)
    torch.manual_seed(99)
    first = make_policy(small, tokenizer, seed=1)
    position = torch.get_rng_state()
    again, other = make_policy(small, tokenizer, seed=1), make_policy(small, tokenizer, seed=2)
    pick = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(first.state_dict()[pick], again.state_dict()[pick])
    assert not torch.equal(first.state_dict()[pick], other.state_dict()[pick])
    assert torch.equal(torch.get_rng_state(), position)  # and leaves the global generator alone


def test_a_word_tokenizer_round_trips_its_words():
    made = make_tokenizer(["two tea . enjoy !"], "{{ messages }}")
    assert made.decode(made("two tea . enjoy !").input_ids) == "two tea . enjoy !"
    assert made("unheard").input_ids == [made.unk_token_id]
    assert len({made.pad_token_id, made.bos_token_id, made.eos_token_id, made.unk_token_id}) == 4
