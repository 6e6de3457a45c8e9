"""Which examples make a batch, how it is cut, how it is padded."""

from collections import Counter

import pytest
import torch

from training_core.data.batching import (
    batch_indices,
    collate,
    cut_by_tokens,
    even_batches,
    steps_in,
)
from training_core.types import Example


def all_batches(num_examples, batch_size, epochs, seed=0):
    steps = steps_in(num_examples, batch_size, epochs)
    return [
        batch_indices(num_examples, batch_size, epochs, seed=seed, step=s) for s in range(steps)
    ]


def flat(batches):
    return [i for batch in batches for i in batch]


def test_steps_count_a_short_last_batch():
    assert steps_in(10, 4, 1) == 3  # 4 + 4 + 2
    assert steps_in(10, 4, 2) == 5
    assert steps_in(10, 4, 0.5) == 2  # 5 examples


@pytest.mark.parametrize(("num_examples", "batch_size"), [(10, 4), (7, 7), (5, 8), (12, 5)])
def test_each_example_is_used_exactly_once_per_epoch(num_examples, batch_size):
    stream = flat(all_batches(num_examples, batch_size, 3))
    assert len(stream) == 3 * num_examples
    for epoch in range(3):
        part = stream[epoch * num_examples : (epoch + 1) * num_examples]
        assert sorted(part) == list(range(num_examples))


def test_a_broken_number_of_epochs_uses_each_example_once_or_twice():
    uses = Counter(flat(all_batches(8, 3, 1.5)))
    assert Counter(uses.values()) == {2: 4, 1: 4}  # 12 uses of 8 examples


@pytest.mark.parametrize(
    ("num_examples", "sizes"),
    [(9, [1] * 7 + [2]), (65, [8] * 7 + [9]), (16, [2] * 8), (3, [1] * 3)],
)
def test_a_pass_is_divided_into_the_given_number_of_nearly_equal_batches(num_examples, sizes):
    batches = even_batches(num_examples, 8, 2, seed=5)
    assert sorted(map(len, batches)) == sorted(2 * sizes)
    assert flat(batches) == flat(all_batches(num_examples, num_examples, 2, seed=5))


def test_the_order_depends_on_the_seed_and_on_nothing_else():
    stream = flat(all_batches(50, 8, 2))
    torch.manual_seed(123)
    assert flat(all_batches(50, 8, 2)) == stream
    assert flat(all_batches(50, 5, 2)) == stream  # the batch size only cuts it
    assert flat(all_batches(50, 8, 2, seed=1)) != stream
    assert stream[:50] != stream[50:]  # each epoch has its own order


def test_the_position_in_the_data_is_the_step_number():
    batches = all_batches(20, 6, 2)
    resumed = [batch_indices(20, 6, 2, seed=0, step=s) for s in range(3, len(batches))]
    assert resumed == batches[3:]


def test_a_batch_across_the_border_of_two_epochs_takes_from_both():
    first, second = all_batches(4, 3, 2)[:2]
    assert len(first) == len(second) == 3
    assert set(first) | {second[0]} == {0, 1, 2, 3}


def test_cuts_respect_the_budget_and_put_the_longest_first():
    cuts = cut_by_tokens([3, 10, 4, 4, 1], budget_tokens=12)
    # 10 alone (2 * 10 > 12); 4, 4, 3 x 4 = 12; then 1
    assert cuts == [[1], [2, 3, 0], [4]]


def test_an_item_over_the_budget_has_a_micro_batch_of_its_own():
    assert cut_by_tokens([20, 2, 2], budget_tokens=8) == [[0], [1, 2]]


def test_nothing_is_cut_into_nothing():
    assert cut_by_tokens([], 10) == []


def test_collate_pads_on_the_right():
    batch = collate([Example((5, 6, 7), (0, 1, 1)), Example((8, 9), (0, 1))], pad_id=3)
    assert batch.input_ids.tolist() == [[5, 6, 7], [8, 9, 3]]
    assert batch.attention_mask.tolist() == [[True, True, True], [True, True, False]]
    assert batch.loss_mask.tolist() == [[False, True, True], [False, True, False]]


def test_the_pad_id_changes_neither_mask():
    examples = [Example((5, 6, 7), (0, 1, 1)), Example((8, 7), (0, 1))]  # 7 is the end token
    one, other = collate(examples, pad_id=0), collate(examples, pad_id=7)
    assert torch.equal(one.loss_mask, other.loss_mask)
    assert torch.equal(one.attention_mask, other.attention_mask)
    assert one.loss_mask[1, 1]  # the end token is trained


def test_the_very_first_token_is_never_trained():
    assert collate([Example((5, 6), (1, 1))], 0).loss_mask.tolist() == [[False, True]]
