"""Generated bad inputs: each is read rightly, or refused with an error of ours that says where.

Nothing else may come out: no other class of error, and no row that is not in the file.
"""

import copy
import gzip
import io
import json
import math
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.catalog import STAGES
from stages.configs.block import StageConfig
from stages.configs.data_config import FileDataConfig
from stages.configs.explanation import explain
from stages.datasets import kinds, read
from tests.properties.examples import examples
from training_core.errors import DataError
from training_core.number_text import as_text

REMEDY = "mend|copy|convert|fill|remove|set|use|give|raise|lower|map|choose|correct|check|add|skip"
GOOD_ROW = {"prompt": "two tea", "response": "here are two tea"}


# ------------------------------------------- configs of stages

NEEDED = {"prompts": {"name": "cafe"}, "model": {"name": "local", "path": "./model"}}
PLAIN = {
    name: record.config.model_validate(
        {key: NEEDED[key] for key, info in record.config.model_fields.items() if info.is_required()}
    ).model_dump(mode="json")
    for name, record in STAGES.items()
}
ODD_NUMBERS = [math.nan, math.inf, -math.inf, 1e300, -1, 0, 1, 10**9, 2**70, 0.5, True, None]
ODD_TEXTS = ["", "x", "auto", "nan", "*", "\x00"]
ODD_BLOCKS = [[], [1], {}, {"name": "x"}, {"name": "cafe"}]
ODD_VALUES = st.sampled_from([*ODD_NUMBERS, *ODD_TEXTS, *ODD_BLOCKS])


def places(block: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in block.items():
        yield (*path, key)
        if isinstance(value, dict):
            yield from places(value, (*path, key))


@st.composite
def changed_configs(draw):
    stage = draw(st.sampled_from(sorted(PLAIN)))
    config, paths = copy.deepcopy(PLAIN[stage]), []
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(sorted(places(config))))
        block = config
        for key in path[:-1]:
            block = block[key]
        block[path[-1]] = copy.deepcopy(draw(ODD_VALUES))
        paths.append(path)
    return stage, config, paths


def numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from numbers_in(item)
    elif isinstance(value, int | float):
        yield value


@examples(400)
@given(changed_configs())
def test_a_changed_config_is_valid_as_a_whole_or_the_message_names_what_is_wrong(case):
    stage, values, paths = case
    model = STAGES[stage].config
    try:
        config = model.model_validate(values)
    except ValidationError as error:
        said = explain(error, model)
        assert all(line.strip() for line in said.splitlines())
        assert any(key in said for path in paths for key in path), said
        return
    assert isinstance(config, StageConfig)
    dumped = config.model_dump(mode="json")
    assert model.model_validate(json.loads(json.dumps(dumped, allow_nan=False))) == config
    assert all(abs(number) <= 1e300 for number in numbers_in(dumped))
    if rollouts := dumped.get("rollouts"):
        assert rollouts["max_response_tokens"] < rollouts["max_tokens"]
    if training := dumped.get("training"):
        assert training["batch_size"] >= dumped["resources"]["num_workers"]
    else:
        assert dumped["resources"]["num_workers"] == 1


# ------------------------------------------- rows

texts = st.sampled_from(["", " ", "two tea", "no", "false", "NA", "\n\nHuman: a", "\ufeff", "ки"])
messages = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["user", "assistant", "system", "tool", "judge"])},
        optional={"content": texts | st.none() | st.integers(0, 1), "tool_calls": st.just("x")},
    ),
    max_size=4,
)
values = st.one_of(
    texts, texts, texts, messages, st.none(), st.booleans(), st.integers(-2, 2), st.floats(-1, 2)
)
COLUMNS = (
    *("prompt", "response", "chosen", "rejected", "messages", "text", "input", "value", "steps"),
    *("label", "labels", "score", "margin", "finished", "reward", "system", "instruction", "extra"),
)
KINDS = {
    "demonstrations": kinds.DEMONSTRATIONS,
    "preferences": kinds.PREFERENCES,
    "prompts": kinds.PROMPTS,
    "texts": kinds.TEXTS,
    "ratings": kinds.unpaired_responses(None),
    "scores": kinds.unpaired_responses(0.5),
    "solutions": kinds.solutions("ки", None),
}


@st.composite
def files_of_rows(draw):
    columns = draw(st.lists(st.sampled_from(COLUMNS), min_size=1, max_size=4, unique=True))
    rows = draw(
        st.lists(st.fixed_dictionaries(dict.fromkeys(columns, values)), min_size=1, max_size=3)
    )
    return draw(st.sampled_from(sorted(KINDS))), rows


@pytest.fixture(scope="module")
def folder():
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


number = iter(range(10**6))


def written(folder: Path, name: str, content: bytes) -> Path:
    """A new file: `datasets` remembers old ones."""
    path = folder / str(next(number)) / name
    path.parent.mkdir()
    path.write_bytes(content)
    return path


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, int | float):  # read as text where a text is expected
        yield str(as_text(value))
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from texts_in(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from texts_in(item)


def require_clear(error: DataError, path: Path) -> None:
    said = str(error)
    assert path.name in said, said
    assert any(word in said for word in ("expected", "; ", "Map other")), said
    assert len(said) < 2000
    assert "Traceback" not in said


@examples(150)
@given(files_of_rows())
def test_a_row_is_read_with_its_own_text_or_named(folder, case):
    kind, rows = case
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    path = written(folder, "rows.jsonl", lines.encode())
    try:
        found = read(KINDS[kind], FileDataConfig(path=str(path)))
    except DataError as error:
        require_clear(error, path)
        return
    per_row = 2 if kind in ("ratings", "scores") and "chosen" in rows[0] else 1
    assert len(found.rows) + len(found.bad) * per_row == len(rows) * per_row
    for reason in found.bad:
        assert "rows.jsonl, row " in reason
        assert "expected" in reason or "there is no field" in reason, reason
    known = "\n".join(texts_in(rows))
    for row in found.rows:
        said = [row] if isinstance(row, str) else texts_in([m["content"] for m in row.prompt])
        parts = (part for text in said for part in text.split("\n\n"))
        assert all(part.strip() in known for part in parts)
        for flag in ("is_finished", "is_desirable", "chosen_finished"):
            assert getattr(row, flag, True) in (True, False)
        for value in (getattr(row, "margin", 0.0), getattr(row, "reward", 0.0) or 0.0):
            assert math.isfinite(value)
        assert getattr(row, "margin", 0.0) >= 0


# ------------------------------------------- files


def csv(rows):
    return "prompt,response\n" + "".join(f"{row['prompt']},{row['response']}\n" for row in rows)


def table(rows, form):
    file = io.BytesIO()
    Dataset.from_list(rows).to_parquet(file) if form == "parquet" else None
    return file.getvalue()


ROWS = [{**GOOD_ROW, "prompt": f"{GOOD_ROW['prompt']} é{i}"} for i in range(3)]
JSONL = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
FILES = {
    "rows.jsonl": JSONL.encode(),
    "rows.json": json.dumps(ROWS, ensure_ascii=False).encode(),
    "rows.csv": csv(ROWS).encode(),
    "rows.jsonl.gz": gzip.compress(JSONL.encode(), mtime=0),
    "rows.parquet": table(ROWS, "parquet"),
}
EXPECTED = [(row["prompt"], row["response"]) for row in ROWS]
damages = st.one_of(
    st.tuples(st.just("cut"), st.integers(0, 10_000)),
    st.tuples(st.just("insert"), st.integers(0, 10_000), st.binary(min_size=1, max_size=4)),
    st.tuples(st.just("encode"), st.sampled_from(["utf-16", "utf-16-le", "latin-1", "cp1252"])),
    st.tuples(st.just("lines"), st.sampled_from([b"\n\n", b"null\n", b"{}\n", b"[]\n", b"3\n"])),
    st.tuples(st.just("name"), st.sampled_from(sorted(FILES))),
    st.tuples(st.just("none")),
)


def damaged(name: str, content: bytes, damage: tuple[Any, ...]) -> tuple[str, bytes]:
    match damage:
        case ("cut", at):
            return name, content[: at % len(content)]
        case ("insert", at, some) if "parquet" not in name:  # pyarrow trusts its own files
            place = at % len(content)
            return name, content[:place] + some + content[place:]
        case ("encode", encoding) if name in ("rows.jsonl", "rows.json", "rows.csv"):
            return name, content.decode().encode(encoding)
        case ("lines", line) if name in ("rows.jsonl", "rows.csv"):
            return name, line + content + line
        case ("name", other):
            return other, content
    return name, content


@examples(150)
@given(st.sampled_from(sorted(FILES)), damages, st.booleans())
def test_a_damaged_file_is_read_as_it_is_or_refused_with_the_cause(folder, name, damage, skip):
    called, content = damaged(name, FILES[name], damage)
    path = written(folder, called, content)
    try:
        found = read(kinds.DEMONSTRATIONS, FileDataConfig(path=str(path), skip_bad_rows=skip))
    except DataError as error:
        require_clear(error, path)
        if "cannot be read as" in str(error):
            assert any(f"{word} " in str(error).lower() for word in REMEDY.split("|")), error
        return
    rows = [(row.prompt[0]["content"], row.response) for row in found.rows]
    if content == FILES[name] and called == name:
        assert rows == EXPECTED
    if damage[0] in ("cut", "encode", "lines"):  # what is left is as it was, in order
        ends = [pair for pair in rows if pair not in EXPECTED]
        assert len(ends) <= 1  # a CSV may be cut in a cell
        assert [pair for pair in rows if pair in EXPECTED] == EXPECTED[: len(rows) - len(ends)]
    assert len(rows) <= len(ROWS) + 2
