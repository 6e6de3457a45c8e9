"""The index of a model whose weights are in several files."""

from __future__ import annotations

from pathlib import Path

from training_core.errors import DataError, IntegrityError
from training_core.names import EXPECTED_FILE, is_file_below
from training_core.strict_json import read_object

REMEDY = "download the model again, or give another directory"


def require_indexed_files(directory: str | Path) -> None:
    """Check that the weight indexes of a model name only files of its directory.

    transformers would load any file that an index names, but only the directory's content is part
    of the stage key. A hub id has no directory yet and is not checked.

    Raises:
        DataError: if an index is broken, or names a file that does not exist or is elsewhere.
    """
    folder = Path(directory)
    for index in sorted(folder.glob("*.index.json")) if folder.is_dir() else ():
        try:
            weights = read_object(index, remedy=REMEDY).get("weight_map")
        except IntegrityError as error:
            raise DataError(str(error)) from error
        if not isinstance(weights, dict):
            raise DataError(
                f"{index}: expected a block `weight_map`, found {weights!r:.80}; {REMEDY}"
            )
        for name in sorted(set(map(str, weights.values()))):
            if not is_file_below(name):
                raise DataError(f"{index}: {EXPECTED_FILE}, found {name!r:.120}; {REMEDY}")
            if not (folder / name).is_file():
                raise DataError(f"{index}: there is no file {folder / name}; {REMEDY}")
