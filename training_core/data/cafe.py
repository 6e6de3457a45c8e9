"""The café: a synthetic task with data generated from a seed and a known true reward.

A guest orders two or three things, and the waiter answers in one sentence:

    guest   hello i would like two tea and one cake please
    waiter  here are two tea and one cake . enjoy !

A good answer serves exactly what was ordered, ends with a good wish, and adds nothing else. The
demonstrations are of mixed quality: they forget or change items, lack the wish, or begin with
unnecessary words. So a model that imitates them can still improve with preferences and
reinforcement learning.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

NUMBERS = ("one", "two", "three", "four", "five")
DISHES = (
    "tea", "coffee", "cocoa", "juice", "water", "milk", "cake", "pie", "bread", "soup",
    "salad", "toast", "bagel", "waffle", "cookie", "muffin", "sandwich", "omelette",
)  # fmt: skip
OPENINGS = (
    "hello i would like",
    "good morning i want",
    "could i have",
    "we take",
    "please bring us",
)
RAMBLES = ("well let me see ,", "hmm one moment ,", "oh dear what a day ,")
WISHES = ("enjoy !", "enjoy your meal !")

Order = tuple[tuple[str, str], ...]
CafeRows = Literal["demonstrations", "pairs", "prompts"]
Split = Literal["train", "heldout"]


def rows(
    kind: CafeRows, *, split: Split, size: int, seed: int, flipped_fraction: float = 0.0
) -> list[dict[str, Any]]:
    """Generate a dataset; the same arguments give the same rows on every machine.

    Args:
        kind: `demonstrations` (messages), `pairs` (prompt, chosen, rejected) or `prompts` (prompt).
        split: no order of `heldout` is in `train`, for any seeds.
        size: number of rows; no two rows have the same order.
        seed: seed of the generator.
        flipped_fraction: share of pairs with swapped labels, to imitate human errors.

    Returns:
        Rows in the conversational formats of TRL and OpenRLHF.
    """
    rng = random.Random(f"{kind}-{split}-{seed}")
    make = {"demonstrations": _demonstration, "pairs": _pair, "prompts": _prompt}[kind]
    return [make(rng, order, flipped_fraction) for order in _orders(rng, split, size)]


def true_reward(guest: str, waiter: str) -> float:
    """Score a waiter's answer; the preference pairs are labelled with this reward.

        (6 * served + 3 * wished + brief) / 10

    `served` is the number of correct (number, dish) pairs, divided by the number of ordered or of
    served pairs, whichever is larger.

    Args:
        guest: the guest's text.
        waiter: the waiter's answer.

    Returns:
        A number in [0, 1].
    """
    ordered, served = _mentions(guest), _mentions(waiter)
    right = len(set(ordered) & set(served))
    share = right / max(len(ordered), len(served), 1)
    wished = any(waiter.endswith(wish) for wish in WISHES)
    brief = not any(ramble.rstrip(" ,") in waiter for ramble in RAMBLES)
    return (6 * share + 3 * wished + (brief and bool(served))) / 10


def _mentions(text: str) -> list[tuple[str, str]]:
    words = text.split()
    return [(n, d) for n, d in pairwise(words) if n in NUMBERS and d in DISHES]


def _orders(rng: random.Random, split: Split, size: int) -> Iterator[Order]:
    seen: set[Order] = set()
    while len(seen) < size:
        dishes = rng.sample(DISHES, rng.choice((2, 3)))
        order = tuple((rng.choice(NUMBERS), dish) for dish in dishes)
        if order not in seen and _split_of(order) == split:
            seen.add(order)
            yield order


def _split_of(order: Order) -> Split:
    # Neither the guest's wording nor the sequence of the dishes makes a different order.
    return "heldout" if zlib.crc32(repr(sorted(order)).encode()) % 8 == 0 else "train"


def _listing(order: Order) -> str:
    return " and ".join(f"{number} {dish}" for number, dish in order)


def _guest(rng: random.Random, order: Order) -> list[dict[str, str]]:
    return [{"role": "user", "content": f"{rng.choice(OPENINGS)} {_listing(order)} please"}]


def _waiter(rng: random.Random, order: Order) -> str:
    served = [_maybe_wrong(rng, item) for item in order if rng.random() > 0.1]  # noqa: PLR2004
    ramble = f"{rng.choice(RAMBLES)} " if rng.random() < 0.4 else ""  # noqa: PLR2004
    wish = f" {rng.choice(WISHES)}" if rng.random() < 0.35 else ""  # noqa: PLR2004
    return f"{ramble}here are {_listing(tuple(served or order[:1]))} .{wish}"


def _maybe_wrong(rng: random.Random, item: tuple[str, str]) -> tuple[str, str]:
    number, dish = item
    luck = rng.random()
    if luck < 0.1:  # noqa: PLR2004
        return rng.choice(NUMBERS), dish
    if luck < 0.2:  # noqa: PLR2004
        return number, rng.choice(DISHES)
    return item


def _demonstration(rng: random.Random, order: Order, _: float) -> dict[str, Any]:
    answer = {"role": "assistant", "content": _waiter(rng, order)}
    return {"messages": [*_guest(rng, order), answer]}


def _prompt(rng: random.Random, order: Order, _: float) -> dict[str, Any]:
    return {"prompt": _guest(rng, order)}


def _pair(rng: random.Random, order: Order, flipped_fraction: float) -> dict[str, Any]:
    prompt = _guest(rng, order)
    guest = prompt[0]["content"]
    better = worse = _waiter(rng, order)
    while true_reward(guest, better) == true_reward(guest, worse):
        worse = _waiter(rng, order)
    if (true_reward(guest, better) < true_reward(guest, worse)) != (
        rng.random() < flipped_fraction
    ):
        better, worse = worse, better
    answers = {"chosen": better, "rejected": worse}
    return {"prompt": prompt} | {
        k: [{"role": "assistant", "content": v}] for k, v in answers.items()
    }
