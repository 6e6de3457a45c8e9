"""Tables from files, saved datasets and the hub. Only this module imports `datasets`."""

from __future__ import annotations

import gzip
import json
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import datasets
from datasets.exceptions import DatasetGenerationError

from stages.configs.data_config import FileDataConfig, HubDataConfig
from stages.files import files_at
from training_core.errors import DataError

UNREADABLE = (
    DatasetGenerationError,
    FileNotFoundError,
    gzip.BadGzipFile,
    zlib.error,
    EOFError,
    StopIteration,  # raised for an empty file
)
LOADERS = {"json": "json", "jsonl": "json", "csv": "csv", "parquet": "parquet", "arrow": "arrow"}
SAVED = ("dataset_dict.json", "dataset_info.json")


@dataclass(frozen=True)
class Table:
    """Rows of one file or dataset; `numbers` are their positions in it, 1-based."""

    origin: str
    columns: tuple[str, ...]
    rows: Iterable[Mapping[str, object]]
    numbers: Sequence[int]


def tables(data: FileDataConfig | HubDataConfig, first_rows: int | None = None) -> list[Table]:
    """Load the tables of a source and select the configured rows.

    Args:
        data: files or a hub dataset.
        first_rows: use at most so many rows, in addition to the limits in `data`.

    Raises:
        DataError: if a source does not exist, cannot be read, or has no rows.
    """
    loaded = (
        list(_files(data)) if isinstance(data, FileDataConfig) else [(_from_hub(data), data.repo)]
    )
    total = sum(len(table) for table, _ in loaded)
    if total == 0:
        raise DataError(f"{', '.join(origin for _, origin in loaded)}: there are no rows")
    size = min(total, data.limit or total)
    kept = range(size)
    if data.sample is not None and data.sample < size:
        kept = sorted(random.Random(data.sample_seed).sample(kept, data.sample))
    return _chosen(loaded, kept[:first_rows])


def _chosen(loaded: Sequence[tuple[datasets.Dataset, str]], kept: Sequence[int]) -> list[Table]:
    found, start = [], 0
    for table, origin in loaded:
        here = [i - start for i in kept if start <= i < start + len(table)]
        start += len(table)
        if here:
            # Without a format, a Dataset yields dictionaries; its annotations allow more types.
            rows = cast("Iterable[Mapping[str, object]]", table.select(here))
            found.append(Table(origin, tuple(table.column_names), rows, [i + 1 for i in here]))
    return found


def _files(data: FileDataConfig) -> Iterator[tuple[datasets.Dataset, str]]:
    for named in (data.path,) if isinstance(data.path, str) else data.path:
        for path in files_at(named) or [Path(named)]:
            if path.is_dir():
                yield _saved(path, data.split), path.name
            elif data.split is not None:
                raise DataError(
                    f"{path}: `split` is '{data.split}', but a file has none; remove it, "
                    "or give a folder that `save_to_disk` wrote"
                )
            else:
                yield _file(path), path.name


def _saved(path: Path, split: str | None) -> datasets.Dataset:
    if not any((path / name).exists() for name in SAVED):
        raise DataError(
            f"{path}: expected a folder that `save_to_disk` wrote (with {' or '.join(SAVED)}); "
            f"for the files of a folder use a glob, e.g. {path}/*.jsonl"
        )
    try:
        found = datasets.load_from_disk(str(path))
    except (*UNREADABLE, ValueError, OSError) as error:
        raise DataError(f"{path} cannot be read as a saved dataset: {error}") from error
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


def _file(path: Path) -> datasets.Dataset:
    endings = [suffix.lstrip(".") for suffix in path.suffixes]
    loader = next((LOADERS[e] for e in reversed(endings) if e in LOADERS), None)
    if loader is None:
        raise DataError(f"{path}: expected a file ending in one of {', '.join(LOADERS)} (also .gz)")
    try:
        return datasets.load_dataset(loader, data_files=str(path), split="train")
    except UNREADABLE as error:
        reason = _bad_line(path) if loader == "json" else None
        reason = reason or str(error.__cause__ or error) or "it is empty"
        raise DataError(f"{path} cannot be read as {loader}: {reason}") from error


def _from_hub(data: HubDataConfig) -> datasets.Dataset:
    named = f"hub dataset {data.repo}@{data.revision}, split '{data.split}'"
    try:
        return datasets.load_dataset(
            data.repo, data.config, split=data.split, revision=data.revision
        )
    except ConnectionError as error:
        raise DataError(
            f"{named}: the hub is not reachable, and the dataset is not in the cache ({error}); "
            "check the network and HF_HUB_OFFLINE, or use a local copy with `name: files`"
        ) from error
    except (ValueError, *UNREADABLE) as error:
        raise DataError(f"{named} cannot be loaded: {error}") from error


def _bad_line(path: Path) -> str | None:
    """Find the first line that is not JSON; pyarrow's own row numbers start at 0."""
    opener = gzip.open if path.suffix == ".gz" else open
    with suppress(OSError, EOFError, zlib.error), opener(path, "rt", encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            try:
                json.loads(line)
            except ValueError as error:
                return f"row {number} is not JSON: {error}"
    return None
