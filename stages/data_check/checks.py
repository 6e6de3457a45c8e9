"""Numbers about a dataset, and its problems."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

from transformers import PreTrainedTokenizerBase

from stages.batches.sequences import Encoded, examples_in
from stages.batches.unknown_tokens import count_unknown
from stages.data_check.step_datasets import Dataset
from stages.data_check.token_view import captions
from stages.datasets import DataRow, Preference, Solution, UnpairedResponse, read
from stages.datasets.configured import prompt_key, prompt_of
from training_core.data.chat import bos_id, eos_id
from training_core.errors import DataError
from training_core.types import Example, Prompt

NO_LIMIT = 2**31


@dataclass(frozen=True)
class Problem:
    """A problem in a dataset; `stops` is True if the step would fail because of it."""

    where: str
    text: str
    stops: bool


@dataclass(frozen=True)
class Checked:
    """The result of checking one dataset.

    Attributes:
        dataset: the dataset.
        rows: number of good rows.
        numbers: name -> value, formatted for printing.
        problems: in the order in which they were found.
        examples: the first rows, tokenised: caption and sequence.
        prompt_keys: key of every row's prompt, to find the same prompt in another dataset.
        forms: how its tables were read, in words, each once; the café has none.
    """

    dataset: Dataset
    rows: int = 0
    numbers: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    examples: list[tuple[str, Example]] = field(default_factory=list)
    prompt_keys: frozenset[str] = frozenset()
    forms: tuple[str, ...] = ()


def check(
    dataset: Dataset,
    tokenizer: PreTrainedTokenizerBase | None,
    *,
    first_rows: int | None = None,
    num_examples: int = 2,
) -> Checked:
    """Read, tokenise and measure a dataset.

    Args:
        dataset: from `datasets_of`.
        tokenizer: tokenizer of the lifecycle; with None only the rows are checked.
        first_rows: check at most so many rows; None checks all.
        num_examples: number of rows to keep as examples.
    """
    problems: list[Problem] = []

    def note(text: str, *, stops: bool = False) -> None:
        problems.append(Problem(dataset.name, text, stops))

    try:
        reading = read(dataset.kind, dataset.data, first_rows)
    except DataError as error:
        note(str(error), stops=True)
        return Checked(dataset, problems=problems)
    if reading.bad:
        done = "are dropped" if reading.are_bad_rows_dropped else "stop the step"
        note(
            f"{len(reading.bad)} bad rows {done}; the first: {reading.bad[0]}",
            stops=not reading.are_bad_rows_dropped or not reading.rows,
        )
    rows = reading.rows
    for text in (*reading.notes, *_about_rows(rows)):
        note(text, stops=not rows and not reading.bad)
    if len({row.is_desirable for row in rows if isinstance(row, UnpairedResponse)}) == 1:
        is_trained = dataset.is_training and first_rows is None
        note("every response has the same label; KTO needs both labels", stops=is_trained)
    numbers = {"rows": f"{len(rows):,}", **_labels(rows)}
    examples: list[tuple[str, Example]] = []
    if tokenizer is not None and rows:
        encoded, refused = _encode(dataset, tokenizer, rows)
        if refused:
            note(f"{len(refused)} rows stop the step; the first: {refused[0]}", stops=True)
        sequences = [(e, examples_in(e)) for e in encoded]
        numbers |= _lengths([s for _, s in sequences], dataset.max_tokens)
        ids = (example.input_ids for _, some in sequences for example in some)
        unknown = count_unknown(tokenizer, rows, ids)
        if unknown.count:
            numbers["unknown"] = f"{unknown.share:.1%}"
            note(str(unknown), stops=unknown.share > dataset.unknown_limit)
        for text, stops in _about_tokens(tokenizer, encoded, dataset):
            note(text, stops=stops)
        for item, some in sequences[:num_examples]:
            examples += zip(captions(item), some, strict=True)
    keys = frozenset(prompt_key(row) for row in rows)
    forms = tuple(dict.fromkeys(reading.forms))
    return Checked(dataset, len(rows), numbers, problems, examples, keys, forms)


def overlap(held_out: Checked, trained: Checked) -> Problem | None:
    """Find prompts of a held-out dataset that are also in a training dataset."""
    shared = len(held_out.prompt_keys & trained.prompt_keys)
    if not shared:
        return None
    text = (
        f"{shared} of {len(held_out.prompt_keys)} different prompts are also in "
        f"{trained.dataset.name}, word for word"
    )
    return Problem(held_out.dataset.name, text, stops=False)


def _encode(
    dataset: Dataset, tokenizer: PreTrainedTokenizerBase, rows: Sequence[DataRow]
) -> tuple[list[Encoded], list[str]]:
    """Encode rows without a length limit, to know their lengths; one by one if a row is refused."""
    limit = dataset.max_tokens if isinstance(rows[0], str) else NO_LIMIT

    def encode(some: Sequence[DataRow]) -> list[Encoded]:
        found = dataset.encode(tokenizer, some, max_tokens=limit)
        return [item for item in found if item is not None]

    try:
        return encode(rows), []
    except DataError:
        pass
    encoded: list[Encoded] = []
    refused: list[str] = []
    for row in rows:
        try:
            encoded += encode([row])
        except DataError as error:
            refused.append(str(error))
    return encoded, refused


def _about_rows(rows: Sequence[DataRow]) -> Iterator[str]:
    times = Counter(repr(row) for row in rows)
    if repeated := sum(n - 1 for n in times.values()):
        yield f"{repeated} rows are exact copies of another row"
    prompts = [prompt_of(row) for row in rows]
    is_blank = [
        not (p.strip() if isinstance(p, str) else "".join(m["content"] for m in p).strip())
        for p in prompts
    ]
    if any(is_blank):
        yield f"{sum(is_blank)} rows have an empty prompt"
    equal = sum(isinstance(r, Preference) and r.chosen == r.rejected for r in rows)
    if equal:
        yield f"{equal} pairs have the same text as chosen and rejected"
    if len(set(_step_labels(rows))) == 1:
        yield "every labelled step has the same label"


def _labels(rows: Sequence[DataRow]) -> dict[str, str]:
    shares = {
        "desirable": [row.is_desirable for row in rows if isinstance(row, UnpairedResponse)],
        "right steps": _step_labels(rows),
        "unlabelled steps": [
            label is None for row in rows if isinstance(row, Solution) for label in row.labels
        ],
    }
    return {name: f"{fmean(values):.1%}" for name, values in shares.items() if values}


def _step_labels(rows: Sequence[DataRow]) -> list[float]:
    solutions = [row for row in rows if isinstance(row, Solution)]
    return [label for row in solutions for label in row.labels if label is not None]


def _lengths(rows: Sequence[Sequence[Example]], max_tokens: int) -> dict[str, str]:
    if not rows:
        return {}
    lengths = sorted(max(len(example) for example in row) for row in rows)
    tokens = sum(len(example) for row in rows for example in row)
    trained = sum(sum(example.loss_mask) for row in rows for example in row)
    at = {"median": 0.5, "p90": 0.9, "p99": 0.99}
    shown = {k: f"{lengths[min(int(q * len(lengths)), len(lengths) - 1)]:,}" for k, q in at.items()}
    share = {"trained": f"{trained / tokens:.1%}"} if trained else {}
    return {
        **{f"tokens {name}": value for name, value in shown.items()},
        "tokens max": f"{lengths[-1]:,}",
        f"over {max_tokens:,}": f"{sum(n > max_tokens for n in lengths):,}",
        **share,
    }


def _about_tokens(
    tokenizer: PreTrainedTokenizerBase, encoded: Sequence[Encoded], dataset: Dataset
) -> Iterator[tuple[str, bool]]:
    sizes = [max(len(e) for e in examples_in(item)) for item in encoded]
    if too_long := sum(size > dataset.max_tokens for size in sizes):
        is_all = too_long == len(sizes)
        text = f"{too_long} of {len(sizes)} rows are longer than {dataset.max_tokens} tokens"
        yield f"{text} and are dropped, never cut", is_all
    examples = [e for item in encoded for e in examples_in(item)]
    bos, end = bos_id(tokenizer), eos_id(tokenizer)
    twice = sum(bos is not None and e.input_ids[:2] == (bos, bos) for e in examples)
    if twice:
        yield f"{twice} sequences begin with two bos tokens", True
    without = sum(bos is not None and e.input_ids[0] != bos for e in examples)
    if without:
        token = tokenizer.bos_token
        yield f"{without} sequences do not begin with the tokenizer's bos token {token}", False
    if encoded and not isinstance(encoded[0], Prompt):
        if untrained := sum(not any(e.loss_mask) for e in examples):
            yield f"{untrained} sequences have no trained token", True
        ended = sum(e.input_ids[-1] == end for e in examples)
        if ended < len(examples) and dataset.kind.name != "solutions":
            missing = len(examples) - ended
            yield f"{missing} sequences do not end with the end token {tokenizer.eos_token}", False
