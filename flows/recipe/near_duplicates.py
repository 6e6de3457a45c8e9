"""Near duplicates of a few texts among very many, by MinHash (Broder 1997).

Two texts are compared by the set of their sequences of 5 bytes (after case and white space were
made equal). Their Jaccard similarity J is the share of all sequences that both have. The smallest
value that a random function gives to the sequences of a text is the same for two texts with
probability J. 64 such values are the signature of a text, and its parts of r values are looked up
in an index: in one of b parts two texts agree with probability 1 - (1 - J^r)^b (Leskovec et al.,
Mining of Massive Datasets, section 3.4). What the index finds is compared exactly. So there are no
false alarms, and a pair at the limit is missed with a chance of at most 1 %.

Only the few texts stay in memory; the many come in batches, each of which is computed at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

SEQUENCE = 5
"""Bytes in a sequence; of a shorter text the end is filled up."""

FUNCTIONS = 64
"""Random functions, i.e. values in a signature."""

MISSED = 0.01
SEED = 1997

Numbers = NDArray[np.uint64]
Signatures = NDArray[np.uint32]


class NearDuplicates:
    """An index of a few texts.

    Args:
        texts: the texts.
        similarity: Jaccard similarity from which two texts are near duplicates, in (0, 1].
    """

    def __init__(self, texts: Iterable[str], similarity: float) -> None:
        self._similarity = similarity
        self._texts = list(dict.fromkeys(texts))
        self._sequences = [np.unique(_windows(_plain(text))) for text in self._texts]
        self._parts, self._rows = parts_for(similarity)
        keys = self._keys_of(self._texts)
        self._order = np.argsort(keys, axis=0, kind="stable")
        self._sorted = np.take_along_axis(keys, self._order, axis=0)

    def like(self, batch: Sequence[str]) -> Iterator[tuple[int, str, float]]:
        """Find near duplicates of the texts of a batch.

        Yields:
            Place in the batch, text of the index, and their similarity, in the order of the batch.
        """
        for place, number in sorted(self._candidates(batch)):
            ours, theirs = self._sequences[number], np.unique(_windows(_plain(batch[place])))
            shared = len(np.intersect1d(ours, theirs, assume_unique=True))
            found = shared / (len(ours) + len(theirs) - shared)
            if found >= self._similarity:
                yield place, self._texts[number], found

    def _candidates(self, batch: Sequence[str]) -> set[tuple[int, int]]:
        """Return (place in the batch, number of a text) for texts that agree in some part."""
        found: set[tuple[int, int]] = set()
        for part, keys in enumerate(self._keys_of(batch).T):
            known = self._sorted[:, part]
            first = np.searchsorted(known, keys, side="left")
            last = np.searchsorted(known, keys, side="right")
            for place in np.flatnonzero(last > first):
                numbers = self._order[first[place] : last[place], part]
                found |= {(int(place), int(number)) for number in numbers}
        return found

    def _keys_of(self, texts: Sequence[str]) -> Numbers:
        """Return one number for each text and part of its signature, [texts, parts]."""
        values = signatures(texts).astype(np.uint64)
        keys = np.zeros((len(texts), self._parts), dtype=np.uint64)
        for row in range(self._rows):
            keys = _mixed(keys ^ values[:, row : row + self._parts * self._rows : self._rows])
        return keys


def parts_for(similarity: float) -> tuple[int, int]:
    """Return (parts, values of each): the most values with which a pair at the limit is found."""
    fitting = [
        (FUNCTIONS // rows, rows)
        for rows in range(1, FUNCTIONS + 1)
        if (1 - similarity**rows) ** (FUNCTIONS // rows) <= MISSED
    ]
    return fitting[-1] if fitting else (FUNCTIONS, 1)


def signatures(texts: Sequence[str]) -> Signatures:
    """Return the signatures of texts, [texts, FUNCTIONS]."""
    if not texts:
        return np.empty((0, FUNCTIONS), dtype=np.uint32)
    parts = [_plain(text) for text in texts]
    counts = np.array([len(part) - SEQUENCE + 1 for part in parts])
    starts = np.cumsum(counts) - counts
    # A window that begins in the last four bytes of a text would reach into the next one.
    begins = np.arange(counts.sum()) + np.repeat(np.arange(len(parts)) * (SEQUENCE - 1), counts)
    mixed = _mixed(_windows(b"".join(parts))[begins])
    hashed = (mixed >> np.uint64(32)).astype(np.uint32)
    draw = np.random.default_rng(SEED)
    factors = draw.integers(0, 2**31, FUNCTIONS, dtype=np.uint32) * np.uint32(2) + np.uint32(1)
    shifts = draw.integers(0, 2**32, FUNCTIONS, dtype=np.uint32)
    found = np.empty((len(parts), FUNCTIONS), dtype=np.uint32)
    for number in range(FUNCTIONS):  # an odd factor permutes the 32-bit numbers
        found[:, number] = np.minimum.reduceat(hashed * factors[number] + shifts[number], starts)
    return found


def _plain(text: str) -> bytes:
    return " ".join(text.casefold().split()).encode(errors="replace").ljust(SEQUENCE, b"\0")


def _windows(data: bytes) -> Numbers:
    """Return every sequence of bytes as a number; five bytes fit into 64 bits."""
    values = np.frombuffer(data, dtype=np.uint8).astype(np.uint64)
    size = len(values) - SEQUENCE + 1
    found = np.zeros(size, dtype=np.uint64)
    for place in range(SEQUENCE):
        found = (found << np.uint64(8)) | values[place : place + size]
    return found


def _mixed(values: Numbers) -> Numbers:
    """Mix the bits of numbers: the finalizer of SplitMix64 (Steele et al. 2014), modulo 2^64."""
    values = values + np.uint64(0x9E3779B97F4A7C15)
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
