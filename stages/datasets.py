"""Rows of a dataset, in one shape each: demonstrations, pairs, prompts.

The only module that imports `datasets`. Recognised columns: `messages`; or `prompt` with `response`
(also `completion`); or `prompt`, `chosen`, `rejected`; or `chosen` and `rejected` as whole
conversations. Each may be a text or a list of messages. Other names are mapped with `columns`.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar, cast

import datasets
from datasets.exceptions import DatasetGenerationError

from stages.settings.data import CafeData, Data, FileData, HubData
from training_core.data import cafe
from training_core.errors import DataError

T = TypeVar("T")
Messages = tuple[Mapping[str, str], ...]

UNREADABLE = (
    DatasetGenerationError,
    FileNotFoundError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    StopIteration,  # what an empty file leaves as
)
LOADERS = {"json": "json", "jsonl": "json", "csv": "csv", "parquet": "parquet", "arrow": "arrow"}


@dataclass(frozen=True)
class Demonstration:
    """A prompt and the response to imitate; `is_finished` is False where sampling cut it short."""

    prompt: Messages
    response: str
    is_finished: bool = True


@dataclass(frozen=True)
class Preference:
    """A prompt and two responses, the better one first; see `Demonstration` for `…_finished`."""

    prompt: Messages
    chosen: str
    rejected: str
    chosen_finished: bool = True
    rejected_finished: bool = True


class _Row:
    """One row, its origin for errors, and the mapping from role to column."""

    def __init__(
        self, values: Mapping[str, Any], origin: str, number: int, columns: Mapping[str, str]
    ) -> None:
        self._values, self._where, self._columns = values, f"{origin}, row {number}", columns

    def has(self, role: str) -> bool:
        return self._values.get(self._columns.get(role, role)) is not None

    def messages(self, role: str, author: str) -> Messages:
        value = self._value(role)
        if isinstance(value, str):
            return ({"role": author, "content": value},)
        if _is_messages(value):
            return tuple({"role": m["role"], "content": m["content"]} for m in value)
        raise self.error(role, "a text or a list of {role, content} messages", value)

    def text(self, role: str) -> str:
        last = self.messages(role, "assistant")[-1]
        if last["role"] != "assistant" or not last["content"].strip():
            raise self.error(role, "a non-empty assistant message", last)
        return last["content"]

    def scalar(self, name: str, kind: Callable[[Any], T]) -> T:
        try:
            return kind(self._value(name))
        except (TypeError, ValueError) as error:
            raise self.error(name, f"a {kind.__name__}", self._value(name)) from error

    def flag(self, name: str) -> bool:
        said = self._values.get(name)
        return True if said is None else bool(said)  # a column that some rows lack is None there

    def error(self, role: str, expected: str, found: object) -> DataError:
        column = self._columns.get(role, role)
        return DataError(
            f"{self._where}, field '{column}': expected {expected}, found {str(found)[:120]!r}"
        )

    def _value(self, role: str) -> Any:
        if not self.has(role):
            column = self._columns.get(role, role)
            raise DataError(
                f"{self._where}: there is no field '{column}' "
                f"(found: {', '.join(k for k, v in self._values.items() if v is not None)}); "
                f"map it with `columns: {{{role}: <column>}}`"
            )
        return self._values[self._columns.get(role, role)]


def demonstrations(data: Data | Path) -> list[Demonstration]:
    """Load prompts with responses.

    Raises:
        DataError: for a row that is not one, naming file, row, field, and what was expected.
    """
    return [_demonstration(row) for row in _rows(data, "demonstrations")]


def preferences(data: Data | Path) -> list[Preference]:
    """Load prompts with a chosen and a rejected response; see `demonstrations`."""
    return [_preference(row) for row in _rows(data, "pairs")]


def prompts(data: Data | Path) -> list[Messages]:
    """Load prompts alone; see `demonstrations`."""
    return [row.messages("prompt", "user") for row in _rows(data, "prompts")]


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def read_lexicon(path: Path) -> dict[str, float]:
    """Read a lexicon: JSON lines (also .gz) with `token` and `mean`.

    Raises:
        DataError: for a file or row that is not one, naming it.
    """
    rows = _rows(FileData(path=str(path)), "prompts")
    return {row.scalar("token", str).lower(): row.scalar("mean", float) for row in rows}


def _demonstration(row: _Row) -> Demonstration:
    if row.has("messages"):
        *prompt, last = row.messages("messages", "user")
        if last["role"] != "assistant" or not last["content"].strip() or not prompt:
            raise row.error("messages", "a prompt, then a non-empty assistant message", last)
        return Demonstration(tuple(prompt), last["content"])
    role = "response" if row.has("response") else "completion"
    return Demonstration(row.messages("prompt", "user"), row.text(role), row.flag("finished"))


def _preference(row: _Row) -> Preference:
    if row.has("prompt"):
        return Preference(
            row.messages("prompt", "user"),
            row.text("chosen"),
            row.text("rejected"),
            row.flag("chosen_finished"),
            row.flag("rejected_finished"),
        )
    *prompt, _ = row.messages("chosen", "assistant")
    *other, _ = row.messages("rejected", "assistant")
    if not prompt or prompt != other:
        expected = (
            "a field 'prompt', or whole conversations in chosen and rejected that differ in the "
            "last message only"
        )
        raise row.error("chosen", expected, prompt)
    return Preference(tuple(prompt), row.text("chosen"), row.text("rejected"))


def _rows(data: Data | Path, kind: cafe.Kind) -> list[_Row]:
    if isinstance(data, CafeData):
        values = cafe.rows(
            kind,
            split=data.split,
            size=data.size,
            seed=data.seed,
            flipped_fraction=data.flipped_fraction,
        )
        return [_Row(v, "cafe", i, {}) for i, v in enumerate(values, 1)]
    if isinstance(data, Path):
        data = FileData(path=str(data / "data.jsonl"))
    table, origin = _load(data)
    size = min(len(table), data.limit or len(table))
    if size == 0:
        raise DataError(f"{origin} has no rows")
    # Unformatted, a Dataset yields dictionaries; its annotations allow for every other format too.
    chosen = cast("Iterable[Mapping[str, Any]]", table.select(range(size)))
    return [_Row(v, origin, i, data.columns) for i, v in enumerate(chosen, 1)]


def _load(data: Any) -> tuple[datasets.Dataset, str]:
    if not isinstance(data, FileData):
        return _load_from_hub(data), data.repo
    path = Path(data.path)
    endings = [suffix.lstrip(".") for suffix in path.suffixes]
    loader = next((LOADERS[e] for e in reversed(endings) if e in LOADERS), None)
    if loader is None:
        raise DataError(f"{path}: expected a file ending in one of {', '.join(LOADERS)} (also .gz)")
    try:
        return datasets.load_dataset(loader, data_files=str(path), split="train"), path.name
    except UNREADABLE as error:
        reason = _bad_line(path) if loader == "json" else None
        reason = reason or str(error.__cause__ or error) or "it is empty"
        raise DataError(f"{path} cannot be read as {loader}: {reason}") from error


def _load_from_hub(data: HubData) -> datasets.Dataset:
    try:
        return datasets.load_dataset(data.repo, split=data.split, revision=data.revision)
    except (ValueError, FileNotFoundError, *UNREADABLE) as error:
        raise DataError(
            f"hub dataset {data.repo}@{data.revision}, split '{data.split}', failed: {error}"
        ) from error


def _bad_line(path: Path) -> str | None:
    """Find the first line that is not JSON; pyarrow's own count starts at 0."""
    opener = gzip.open if path.suffix == ".gz" else open
    with suppress(OSError, EOFError, zlib.error), opener(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                json.loads(line)
            except ValueError as error:
                return f"row {number} is not JSON: {error}"
    return None


def _is_messages(value: object) -> bool:
    return (
        isinstance(value, list | tuple)
        and len(value) > 0
        and all(
            isinstance(m, Mapping) and isinstance(m.get("content"), str) and "role" in m
            for m in value
        )
    )
