"""Write a model as a clean directory that transformers and other programs load."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import torch

from flows.model_use.model_kind import kind_of
from flows.model_use.named_model import NamedModel
from training_core.errors import ConfigError, DataError
from training_core.hidden_packages import hidden
from training_core.models import hub
from training_core.models.language_model import LanguageModel
from training_core.models.options import LoadOptions
from training_core.storage import writing

DtypeName = Literal["float32", "bfloat16"]


def export_model(
    model: NamedModel, directory: Path, *, dtype: DtypeName | None, max_shard_size: str
) -> None:
    """Write config, generation config, tokenizer and weights; an adapter is merged into its base.

    The directory appears in one step.

    Args:
        model: a policy, a reward model or a process reward model.
        directory: must not exist, or must be empty.
        dtype: of the weights; None keeps that of the model.
        max_shard_size: size of a file of weights, at most, e.g. `5GB`.

    Raises:
        ConfigError: if `directory` is not empty.
        DataError: if the model cannot be loaded.
        StorageFullError: if the disk is full.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise ConfigError(f"{directory} is not empty; give a new directory")
    directory.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=directory.parent, prefix=f".{directory.name}.") as scratch:
        draft = Path(scratch, "model")
        with _whole(model, Path(scratch, "merged")) as source:
            loaded = _load(source, dtype)
            # accelerate would import deepspeed only to check what the model is
            with writing(f"the model in {directory}"), hidden("deepspeed"):
                loaded.save_pretrained(draft, max_shard_size=max_shard_size)
                hub.load_tokenizer(source).save_pretrained(draft)
        draft.rename(directory)  # an empty directory is replaced


@contextmanager
def _whole(model: NamedModel, merged: Path) -> Iterator[Path]:
    """Yield a directory with the full model; that of a merged adapter is deleted afterwards."""
    adapter = model.directory / "adapter_config.json"
    if not adapter.is_file():
        yield model.directory
        return
    config: dict[str, Any] = json.loads(adapter.read_text())
    base = config.get("base_model_name_or_path")
    if not base:
        raise DataError(
            f"{adapter} does not name its base model (base_model_name_or_path); "
            "merge the adapter with `ratchet merge <base> <adapter> <output>`"
        )
    from training_core.models.merging import merge  # noqa: PLC0415 - imports peft

    merge(base, model.directory, merged, is_reward_model=config.get("task_type") == "SEQ_CLS")
    yield merged
    shutil.rmtree(merged)


def _load(source: Path, dtype: DtypeName | None) -> LanguageModel:
    config = hub.load_config(source)
    wanted = getattr(torch, dtype) if dtype else hub.recorded_dtype(source)
    match kind_of(config):
        case "policy":
            return hub.load_policy(source, dtype=wanted)
        case "reward_model":
            return hub.load_scalar_model(source, dtype=wanted)
        case _:
            is_half = wanted == torch.bfloat16
            return hub.load_step_model(
                source, options=LoadOptions(dtype="bfloat16" if is_half else "float32")
            )
