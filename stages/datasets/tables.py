"""Tables from files, saved datasets and the hub. Only this module imports `datasets`."""

from __future__ import annotations

import errno
import glob
import random
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import datasets
from datasets.exceptions import DatasetGenerationError

from stages.configs.data_config import FileDataConfig, HubDataConfig
from stages.datasets.file_problems import (
    CUT_SHORT,
    good_lines,
    is_json_array,
    problem_of,
    require_objects,
)
from stages.datasets.tab_separated import tab_options
from stages.datasets.trees import FLAT, trees_of
from stages.files import files_at, unreadable
from training_core.errors import DataError

UNREADABLE = (
    DatasetGenerationError,
    OSError,
    ValueError,  # also the errors of pyarrow and pandas
    TypeError,
    KeyError,
    NotImplementedError,
    StopIteration,  # raised for an empty file
    RecursionError,
    *CUT_SHORT,
)
NOT_THE_FILES_FAULT = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.ESTALE)
LOADERS = {
    **{"json": "json", "jsonl": "json", "csv": "csv", "tsv": "csv"},
    **{"parquet": "parquet", "arrow": "arrow"},
}
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "json": {"parse_agent_traces": False},  # a file of messages is not a log of an agent
    "csv": {
        "keep_default_na": False,
        "na_values": [""],  # only an empty cell has no value
        "index_col": False,  # a separator at the end of each row shifts no column
    },
}
TOO_MANY_VALUES = "Length of header or names does not match length of data"
"""A warning of pandas; it then leaves the last values out."""
COMPRESSED = ("gz", "bz2", "xz")
SAVED = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True)
class Table:
    """Rows of one file or dataset; `numbers` are their positions in it, 1-based.

    `bad` has the reason for each line of the file that is no row, if such lines are skipped.
    """

    origin: str
    columns: tuple[str, ...]
    rows: Iterable[Mapping[str, object]]
    numbers: Sequence[int]
    bad: Sequence[str] = ()


@dataclass(frozen=True)
class _Source:
    """All rows of one file or dataset, from which `tables` selects."""

    origin: str
    columns: Sequence[str]
    rows: datasets.Dataset | Sequence[Mapping[str, object]]
    numbers: Sequence[int]
    bad: Sequence[str] = ()

    def select(self, places: Sequence[int]) -> Table:
        # Without a format, a Dataset yields dictionaries; its annotations allow more types.
        rows = (
            cast("Iterable[Mapping[str, object]]", self.rows.select(places))
            if isinstance(self.rows, datasets.Dataset)
            else [self.rows[i] for i in places]
        )
        numbers = [self.numbers[i] for i in places]
        return Table(self.origin, tuple(self.columns), rows, numbers, self.bad)


def tables(
    data: FileDataConfig | HubDataConfig, first_rows: int | None = None, *, has_trees: bool = False
) -> list[Table]:
    """Load the tables of a source and select the configured rows.

    Args:
        data: files or a hub dataset.
        first_rows: largest number of rows to use, in addition to the limits in `data`.
        has_trees: whether messages with the ids of their parents become rows with one tree each.

    Raises:
        DataError: if a source does not exist, cannot be read, or has no rows.
    """
    loaded = list(_files(data)) if isinstance(data, FileDataConfig) else [_from_hub(data)]
    loaded = [_with_trees(source) for source in loaded] if has_trees else loaded
    total = sum(len(source.numbers) for source in loaded)
    if total == 0:
        reasons = [reason for source in loaded for reason in source.bad[:1]]
        raise DataError(
            f"every row is bad; the first: {reasons[0]}"
            if reasons
            else f"{', '.join(s.origin for s in loaded)}: there are no rows; add some"
        )
    size = min(total, data.limit or total)
    kept = range(size)
    if data.sample is not None and data.sample < size:
        kept = sorted(random.Random(data.sample_seed).sample(kept, data.sample))
    return _chosen(loaded, kept[:first_rows])


def _chosen(loaded: Sequence[_Source], kept: Sequence[int]) -> list[Table]:
    found, start = [], 0
    for source in loaded:
        size = len(source.numbers)
        here = [i - start for i in kept if start <= i < start + size]
        start += size
        if here or source.bad:
            found.append(source.select(here))
    return found


def _with_trees(source: _Source) -> _Source:
    """Return a source of messages with ids of parents as one of trees; others as they are."""
    if not set(FLAT) <= set(source.columns):
        return source
    rows = cast("Iterable[Mapping[str, Any]]", source.rows)
    trees, lost = trees_of(zip(source.numbers, rows, strict=True))
    bad = [f"{source.origin}, row {number}, field 'parent_id': {why}" for number, why in lost]
    columns = [*(name for name in source.columns if name not in (*FLAT, "replies")), "tree"]
    numbers = [number for number, _ in trees]
    return _Source(source.origin, columns, [row for _, row in trees], numbers, [*source.bad, *bad])


def _whole(table: datasets.Dataset, origin: str) -> _Source:
    if len(table) and not table.column_names:
        raise DataError(f"{origin}: its rows have no fields; add some, or remove the file")
    return _Source(origin, table.column_names, table, range(1, len(table) + 1))


def _files(data: FileDataConfig) -> Iterator[_Source]:
    for named in (data.path,) if isinstance(data.path, str) else data.path:
        for path in files_at(named) or [Path(named)]:
            if problem := unreadable(path):
                raise DataError(problem)
            if not path.exists():
                raise DataError(f"there is no file or folder {path}; correct `path`")
            if path.is_dir():
                yield _whole(_saved(path, data.split), path.name)
            elif data.split is not None:
                raise DataError(
                    f"{path}: `split` is '{data.split}', but a file has none; remove it, "
                    "or give a folder that `save_to_disk` wrote"
                )
            else:
                yield _file(path, skip_bad_rows=data.skip_bad_rows)


def _saved(path: Path, split: str | None) -> datasets.Dataset:
    if not any((path / name).exists() for name in SAVED):
        raise DataError(
            f"{path}: expected a folder that `save_to_disk` wrote (with {' or '.join(SAVED)}); "
            f"for the files of a folder use a glob, e.g. {path}/*.jsonl"
        )
    try:
        found = datasets.load_from_disk(str(path))
    except UNREADABLE as error:
        _require_no_fault_of_the_disk(error)
        raise DataError(
            f"{path} cannot be read as a saved dataset: {_cause(error)}; save it again"
        ) from error
    if isinstance(found, datasets.Dataset):
        if split is not None:
            raise DataError(f"{path}: `split` is '{split}', but this dataset has none; remove it")
        return found
    if split is None and len(found) == 1:
        return next(iter(found.values()))
    if split not in found:
        raise DataError(
            f"{path}: expected `split` to be one of {', '.join(map(str, found))}, found '{split}'"
        )
    return found[split]


def _file(path: Path, *, skip_bad_rows: bool) -> _Source:
    endings = [suffix.lstrip(".") for suffix in path.suffixes]
    loader = next((LOADERS[e] for e in reversed(endings) if e in LOADERS), None)
    if loader is None or endings[-1] not in (*LOADERS, *COMPRESSED):
        raise DataError(
            f"{path}: expected a file ending in one of {', '.join(LOADERS)} "
            f"(also compressed: {', '.join(COMPRESSED)}); convert or decompress it"
        )
    named = glob.escape(str(path))
    is_tabbed = "tsv" in endings[-2:]
    try:
        if loader == "json":
            require_objects(path)
        options = {**OPTIONS.get(loader, {}), **(tab_options(path) if is_tabbed else {})}
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=TOO_MANY_VALUES)
            table = datasets.load_dataset(loader, data_files=named, split="train", **options)
        table.data.validate(full=True)  # e.g. text that is not UTF-8
    except UNREADABLE as error:
        _require_no_fault_of_the_disk(error)
        reason = problem_of(path, loader)
        if loader == "json" and skip_bad_rows and (found := _good_lines(path)):
            return found
        reason = reason or f"{_cause(error)}; mend or replace it"
        raise DataError(f"{path} cannot be read as {loader}: {reason}") from error
    return _whole(table, path.name)


def _good_lines(path: Path) -> _Source | None:
    """Read those lines of a file of JSON lines that are objects; None if it is another file."""
    try:
        if is_json_array(path):
            return None
        good, bad = good_lines(path)
    except (*CUT_SHORT, OSError):
        return None
    rows = [row for _, row in good]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not columns and not bad:
        return None
    return _Source(path.name, columns, rows, [number for number, _ in good], bad)


def _require_no_fault_of_the_disk(error: Exception) -> None:
    """Raise the cause again if it is e.g. a full disk: then the file may be good."""
    for one in (error, error.__cause__):
        if isinstance(one, OSError) and one.errno in NOT_THE_FILES_FAULT:
            raise one


def _cause(error: Exception) -> str:
    cause = error.__cause__ or error
    if "corresponds to no data" in str(cause):  # said by `datasets`
        return "it has no rows, or rows without fields"
    if TOO_MANY_VALUES in str(cause):
        return "its rows have more values than its first line has names"
    return " ".join(str(cause).split()) or type(cause).__name__


def _from_hub(data: HubDataConfig) -> _Source:
    named = f"hub dataset {data.repo}@{data.revision}, split '{data.split}'"
    if Path(data.repo).exists():  # `datasets` would read this folder
        raise DataError(
            f"{named}: a folder of this name is in {Path.cwd()}, and it would be read instead of "
            "the hub; use `name: files`, or start from another folder"
        )
    try:
        table = datasets.load_dataset(
            data.repo, data.config, split=data.split, revision=data.revision
        )
    except ConnectionError as error:
        raise DataError(
            f"{named}: the hub is not reachable, and the dataset is not in the cache ({error}); "
            "check the network and HF_HUB_OFFLINE, or use a local copy with `name: files`"
        ) from error
    except UNREADABLE as error:
        if isinstance(error, OSError) and not isinstance(error, FileNotFoundError):
            raise  # of the network; another attempt may succeed
        raise DataError(f"{named} cannot be loaded: {_cause(error)}") from error
    except RuntimeError as error:
        if "scripts are no longer supported" not in str(error):
            raise
        raise DataError(
            f"{named} is a Python script, and such code is never run; use a dataset of plain files"
        ) from error
    return _whole(table, data.repo)
