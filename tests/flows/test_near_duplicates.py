"""Near duplicates of a few texts among many: MinHash finds what the exact similarity says."""

from __future__ import annotations

import random

import pytest

from flows.recipe.near_duplicates import NearDuplicates, parts_for

WORDS = [
    *("one", "two", "three", "four", "five", "six", "tea", "coffee", "cake", "please"),
    *("with", "and", "a", "the", "my", "for", "here"),
]


def windows(text: str) -> set[str]:
    plain = " ".join(text.casefold().split()).ljust(5, "\0")
    return {plain[i : i + 5] for i in range(len(plain) - 4)}


def jaccard(one: str, other: str) -> float:
    a, b = windows(one), windows(other)
    return len(a & b) / len(a | b)


def test_a_changed_word_case_and_space_are_found_and_other_texts_are_not():
    long = "please bring four cups of coffee and a large cake for everyone at the window table"
    near = NearDuplicates([long, "one tea"], 0.8)
    asked = ["something else", long.upper().replace(" ", "  "), long.replace("four", "nine"), ""]
    found = {(place, text): round(j, 2) for place, text, j in near.like(asked)}
    # "four" is in eight windows: 70 of the 86 windows of both texts together are shared
    assert found == {(1, long): 1.0, (2, long): round(jaccard(long, asked[2]), 2)}
    assert list(near.like([])) == []


def test_texts_shorter_than_a_sequence_are_equal_or_not():
    near = NearDuplicates(["tea", "te"], 0.9)
    assert [(p, t) for p, t, _ in near.like(["Tea", "tee", "te"])] == [(0, "tea"), (2, "te")]


@pytest.mark.parametrize("similarity", [0.5, 0.8, 0.95])
def test_what_is_found_is_what_a_comparison_of_all_pairs_finds(similarity):
    draw = random.Random(3)
    known = [" ".join(draw.choices(WORDS, k=14)) for _ in range(60)]
    asked = []
    for text in known * 5:  # some words are changed, few or many
        words = text.split()
        for _ in range(draw.randrange(5)):
            words[draw.randrange(len(words))] = draw.choice(WORDS)
        asked.append(" ".join(words))
    pairs = {
        (place, text)
        for place, one in enumerate(asked)
        for text in known
        if jaccard(one, text) >= similarity
    }
    assert len(pairs) > 50
    found = {(place, text) for place, text, _ in NearDuplicates(known, similarity).like(asked)}
    assert found <= pairs  # compared exactly, so there are no false alarms
    # a pair at the limit is missed with a chance of 1 %, and most pairs are above it
    assert len(found) >= 0.99 * len(pairs)


def test_the_parts_of_a_signature_miss_a_pair_at_the_limit_rarely():
    for similarity in (0.3, 0.5, 0.8, 0.9, 1.0):
        parts, rows = parts_for(similarity)
        assert parts * rows <= 64
        assert (1 - similarity**rows) ** parts <= 0.01
    # 12 parts of 5: (1 - 0.8^5)^12 = 0.9 %; 10 parts of 6: (1 - 0.8^6)^10 = 4.8 %
    assert parts_for(0.8) == (12, 5)
