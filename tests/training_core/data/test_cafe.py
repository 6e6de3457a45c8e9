"""The café: a task whose true reward is known."""

from itertools import pairwise

import pytest

from training_core.data.cafe import rows, true_reward

GUEST = "we take two tea and one cake please"


@pytest.mark.parametrize(
    ("answer", "reward"),
    [
        # 0.6 * served + 0.3 * wished + 0.1 * brief
        ("here are two tea and one cake . enjoy !", 1.0),
        ("here are one cake and two tea . enjoy your meal !", 1.0),  # in any order
        ("here are two tea and one cake .", 0.7),  # no wish
        ("here are two tea . enjoy !", 0.7),  # 0.6 * 1/2 + 0.3 + 0.1
        ("here are three tea and one cake .", 0.4),  # 0.6 * 1/2 + 0.1
        ("here are two tea and one cake and one pie .", 0.5),  # 0.6 * 2/3 + 0.1
        ("well let me see , here are two tea and one cake . enjoy !", 0.9),  # not brief
        ("enjoy !", 0.3),  # brief counts only for who serves
        ("", 0.0),
        ("enjoy ! here are two tea and one cake .", 0.7),  # a wish stands at the end
    ],
)
def test_the_true_reward_of_a_handmade_answer(answer, reward):
    assert true_reward(GUEST, answer) == pytest.approx(reward)


def test_serving_the_same_dish_many_times_does_not_pay():
    repeated = "here are two tea and two tea and two tea and two tea ."
    assert true_reward(GUEST, repeated) == pytest.approx(0.6 * 1 / 4 + 0.1)


def order_of(row):
    words = row["prompt"][0]["content"].split()
    numbers = {"one", "two", "three", "four", "five"}
    return frozenset((n, d) for n, d in pairwise(words) if n in numbers)


def test_no_order_of_one_split_occurs_in_the_other_whatever_the_seeds():
    train = {
        order_of(r) for seed in (0, 1) for r in rows("prompts", split="train", size=1500, seed=seed)
    }
    heldout = {
        order_of(r)
        for seed in (0, 5)
        for r in rows("prompts", split="heldout", size=300, seed=seed)
    }
    assert len(train) > 2000
    assert len(heldout) > 500
    assert not train & heldout


@pytest.mark.parametrize("kind", ["demonstrations", "pairs", "prompts"])
def test_the_same_arguments_give_the_same_rows_and_another_seed_gives_others(kind):
    first = rows(kind, split="train", size=20, seed=4)
    assert len(first) == 20
    assert rows(kind, split="train", size=20, seed=4) == first
    assert rows(kind, split="train", size=20, seed=5) != first


def test_a_golden_row_is_the_same_on_every_machine():
    (row,) = rows("prompts", split="train", size=1, seed=0)
    order = "three omelette and five bread and three coffee"
    assert row == {"prompt": [{"role": "user", "content": f"hello i would like {order} please"}]}


def is_right(pair):
    guest = pair["prompt"][0]["content"]
    chosen, rejected = (true_reward(guest, pair[k][0]["content"]) for k in ("chosen", "rejected"))
    assert chosen != rejected
    return chosen > rejected


def test_without_flips_the_chosen_answer_is_always_the_better_one():
    assert all(is_right(p) for p in rows("pairs", split="train", size=300, seed=0))


def test_the_flipped_fraction_of_labels_is_wrong():
    pairs = rows("pairs", split="train", size=2000, seed=0, flipped_fraction=0.2)
    wrong = sum(not is_right(p) for p in pairs) / 2000
    assert wrong == pytest.approx(0.2, abs=0.03)  # three deviations: sqrt(0.16 / 2000) = 0.009


def test_the_demonstrations_leave_something_to_learn():
    demonstrations = rows("demonstrations", split="train", size=500, seed=0)
    rewards = [true_reward(*(m["content"] for m in row["messages"])) for row in demonstrations]
    assert 0.4 < sum(rewards) / 500 < 0.7
    assert max(rewards) == pytest.approx(1.0)
