"""Model folders and hub ids: what a name means, and which files a folder must have.

Imports neither torch nor transformers.
"""

from __future__ import annotations

from pathlib import Path

from huggingface_hub.utils import HFValidationError, validate_repo_id

from training_core.errors import DataError

WEIGHTS = ("*.safetensors", "*.bin")
TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "*.spm", "spiece.*")


def is_hub_id(name: str) -> bool:
    """Tell whether `name` has the form of an id on the hub: owner/name, or a name alone."""
    try:
        validate_repo_id(name)
    except HFValidationError:
        return False
    return True


def require_model_files(directory: str | Path) -> None:
    """Check that a folder has a config and weights; see `require_folder`."""
    if (folder := _require_folder(directory)) is None:
        return
    if not (folder / "config.json").is_file():
        raise DataError(f"{folder} has no config.json, so it is no model; {_found(folder)}")
    if not any(True for pattern in WEIGHTS for _ in folder.glob(pattern)):
        raise DataError(
            f"{folder} has no weights ({' or '.join(WEIGHTS)}); copy them there. {_found(folder)}"
        )


def require_tokenizer_files(directory: str | Path) -> None:
    """Check that a folder has a tokenizer; see `require_folder`."""
    folder = _require_folder(directory)
    if folder and not any(True for pattern in TOKENIZERS for _ in folder.glob(pattern)):
        raise DataError(
            f"{folder} has no tokenizer, e.g. {TOKENIZERS[0]}; copy it there. {_found(folder)}"
        )


def _require_folder(directory: str | Path) -> Path | None:
    """Return the folder, or None for a hub id.

    Without this, transformers would answer a missing folder with "Repo id must be in the form …".

    Raises:
        DataError: if there is no such folder.
    """
    folder = Path(directory)
    if folder.is_dir():
        return folder
    if isinstance(directory, str) and is_hub_id(directory):
        return None
    what = "a file" if folder.exists() else "nothing"
    raise DataError(f"{folder}: expected the folder of a Hugging Face model, found {what} there")


def _found(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir())
    return f"it has: {', '.join(names[:8])}{', …' if names[8:] else ''}" if names else "it is empty"
