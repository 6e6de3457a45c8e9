"""Load and save Hugging Face directories: weights, config, tokenizer and chat template together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from training_core.errors import DataError
from training_core.storage import writing


def load_tokenizer(directory: str | Path, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a directory or hub id."""
    with _naming(directory, "a tokenizer"):
        return AutoTokenizer.from_pretrained(str(directory), revision=revision)


def load_policy(
    directory: str | Path, *, dtype: torch.dtype = torch.float32, revision: str | None = None
) -> Any:
    """Load a causal language model; dropout is off until someone calls `train()`."""
    with _naming(directory, "a causal language model"):
        model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=dtype, revision=revision)
    return model.eval()


def load_scalar_model(directory: str | Path, *, dtype: torch.dtype = torch.float32) -> Any:
    """Load a reward model or critic; from a causal language model the head starts at zero.

    A zero head makes every first score 0, whatever the seed of the process.
    """
    with _naming(directory, "a model"):
        model, report = AutoModelForSequenceClassification.from_pretrained(
            str(directory), num_labels=1, dtype=dtype, output_loading_info=True
        )
    if any("score" in name for name in report["missing_keys"]):
        torch.nn.init.zeros_(model.score.weight)
    return model.eval()


def save(model: Any, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Save as one Hugging Face directory (safetensors).

    Raises:
        StorageFullError: if the disk is full.
    """
    with writing(f"the model in {directory}"):
        model.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def freeze(model: Any) -> Any:
    """Switch gradients off for good: references, reward models."""
    return model.requires_grad_(False).eval()


class _naming:  # noqa: N801 - reads as a verb where it is used
    """Translate what transformers raises for a bad directory."""

    def __init__(self, directory: str | Path, expected: str) -> None:
        self._directory, self._expected = directory, expected

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | ValueError | KeyError):
            raise DataError(
                f"{self._directory} does not hold {self._expected} that transformers can load: "
                f"{error}"
            ) from error
