"""How tokens are drawn: by the softmax, by one generator per row, and never an impossible one."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import torch
from scipy.stats import chisquare

from training_core.rollout.choosing import SeededChoice
from training_core.rollout.sampling import Sampling

SAMPLING = Sampling(8)
NO_IDS = torch.empty(0)
NEVER = float("-inf")


def chosen(choice: SeededChoice, logits: torch.Tensor) -> list[int]:
    return choice(NO_IDS, logits).argmax(-1).tolist()


def test_tokens_come_as_often_as_their_probability_says():
    logits = torch.tensor([2.0, NEVER, 0.5, -1.0, 0.0, NEVER])
    rows = 20_000
    counts = torch.bincount(
        torch.tensor(chosen(SeededChoice(range(rows), SAMPLING), logits.expand(rows, -1))),
        minlength=6,
    )
    possible = logits > NEVER
    assert counts[~possible].sum() == 0
    expected = rows * logits.double().softmax(-1)
    found = chisquare(counts[possible].double(), expected[possible])
    assert found.pvalue > 1e-4


def test_the_draws_of_one_row_are_independent_of_each_other():
    logits = torch.zeros(1, 4)
    choice = SeededChoice([3], SAMPLING)
    drawn = [chosen(choice, logits)[0] for _ in range(5000)]
    pairs = torch.zeros(4, 4)
    for before, after in pairwise(drawn):
        pairs[before, after] += 1
    assert chisquare(pairs.flatten()).pvalue > 1e-4


class Zero:
    """A generator that draws 0 for every token."""

    def standard_exponential(self, out: np.ndarray, dtype: type) -> None:
        out.fill(dtype(0))


def test_a_drawn_zero_makes_no_token_certain_and_no_impossible_one_likely():
    logits = torch.tensor([[0.0, NEVER, 3.0, NEVER, 1.0]])
    choice = SeededChoice([1], SAMPLING)
    choice._generators = [Zero()]
    noisy = choice(NO_IDS, logits)
    assert noisy.argmax(-1).tolist() == [2]
    assert not noisy.isnan().any()
    assert noisy[0, [0, 2, 4]].isfinite().all()


def test_a_row_draws_the_same_whoever_is_beside_it_and_after_others_have_left():
    logits = torch.randn(30, 3, 50, generator=torch.Generator().manual_seed(0))
    together, alone = SeededChoice([7, 8, 9], SAMPLING), SeededChoice([9], SAMPLING)
    for step, of_rows in enumerate(logits):
        if step == 10:
            together.keep([2])
        mine = of_rows if step < 10 else of_rows[2:]
        assert chosen(together, mine)[-1] == chosen(alone, of_rows[2:])[0]


def test_the_log_probabilities_are_those_of_the_chosen_tokens():
    logits = torch.randn(4, 9, generator=torch.Generator().manual_seed(1))
    choice = SeededChoice(range(4), SAMPLING)
    first = chosen(choice, logits)
    greedy = SeededChoice(range(4), Sampling(8, temperature=0.0))
    best = chosen(greedy, logits)
    assert best == logits.argmax(-1).tolist()
    known = logits.log_softmax(-1)
    torch.testing.assert_close(choice.take_logprobs()[:, 0], known[range(4), first])
    torch.testing.assert_close(greedy.take_logprobs()[:, 0], known[range(4), best])
