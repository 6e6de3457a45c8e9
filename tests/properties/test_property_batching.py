"""Laws of batches: nothing is lost, nothing is doubled, nothing is over the budget."""

from hypothesis import given
from hypothesis import strategies as st

from tests.properties.examples import examples
from training_core.data.batching import batch_indices, collate, cut_by_tokens, steps_in
from training_core.types import Example

laws = examples(100)


@laws
@given(lengths=st.lists(st.integers(1, 50), max_size=40), budget=st.integers(1, 200))
def test_cuts_cover_each_index_once_within_the_budget(lengths, budget):
    cuts = cut_by_tokens(lengths, budget)
    assert sorted(i for cut in cuts for i in cut) == list(range(len(lengths)))
    for cut in cuts:
        padded = len(cut) * max(lengths[i] for i in cut)
        assert padded <= budget or len(cut) == 1
    widths = [max(lengths[i] for i in cut) for cut in cuts]
    assert widths == sorted(widths, reverse=True)


@laws
@given(
    size=st.integers(1, 60),
    batch_size=st.integers(1, 70),
    epochs=st.integers(1, 4),
    seed=st.integers(0, 2**40),
)
def test_every_epoch_uses_each_example_once_whatever_the_batch_size(size, batch_size, epochs, seed):
    batches = [
        batch_indices(size, batch_size, epochs, seed=seed, step=s)
        for s in range(steps_in(size, batch_size, epochs))
    ]
    stream = [i for batch in batches for i in batch]
    assert all(len(b) == batch_size for b in batches[:-1])
    for epoch in range(epochs):
        assert sorted(stream[epoch * size : (epoch + 1) * size]) == list(range(size))
    assert len(stream) == size * epochs


@laws
@given(
    size=st.integers(1, 40),
    batch_size=st.integers(1, 50),
    epochs=st.floats(0.01, 3.0),
)
def test_a_broken_number_of_epochs_uses_no_example_too_often(size, batch_size, epochs):
    steps = steps_in(size, batch_size, epochs)
    batches = [batch_indices(size, batch_size, epochs, seed=0, step=s) for s in range(steps)]
    uses = [0] * size
    for i in (i for batch in batches for i in batch):
        uses[i] += 1
    assert all(batches)  # no step is empty
    assert max(uses) - min(uses) <= 1


@laws
@given(
    rows=st.lists(
        st.lists(st.tuples(st.integers(0, 99), st.integers(0, 1)), min_size=1, max_size=8),
        min_size=1,
        max_size=5,
    ),
    pad_id=st.integers(0, 99),
)
def test_collating_loses_nothing_and_trains_no_padding(rows, pad_id):
    examples = [Example(tuple(i for i, _ in r), tuple(m for _, m in r)) for r in rows]
    batch = collate(examples, pad_id)
    assert not (batch.loss_mask & ~batch.attention_mask).any()
    for row, example in enumerate(examples):
        there = batch.attention_mask[row]
        assert tuple(batch.input_ids[row][there].tolist()) == example.input_ids
        assert batch.loss_mask[row][there].int().tolist() == [0, *example.loss_mask[1:]]
        assert (batch.input_ids[row][~there] == pad_id).all()
