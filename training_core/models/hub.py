"""Load and save Hugging Face directories: weights, config, tokenizer and chat template together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    AutoTokenizer,
    PreTrainedTokenizerBase,
)

from training_core.errors import DataError
from training_core.hidden_packages import hidden
from training_core.models.language_model import LanguageModel
from training_core.models.options import LoadOptions
from training_core.models.parts import has_adapter, require_known_head, scalar_head, unwrapped
from training_core.models.preparing import keep_weights_unpacked, loading_arguments, prepare
from training_core.storage import writing


def load_tokenizer(directory: str | Path, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a directory or hub id."""
    with _naming(directory, "a tokenizer"):
        return AutoTokenizer.from_pretrained(str(directory), revision=revision)


def recorded_dtype(directory: str | Path) -> torch.dtype:
    """Return the dtype that a model's config names, or float32 where it names none."""
    with _naming(directory, "a model"):
        found = AutoConfig.from_pretrained(str(directory)).dtype
    return found if isinstance(found, torch.dtype) else torch.float32


def load_policy(
    directory: str | Path,
    *,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    options: LoadOptions | None = None,
) -> LanguageModel:
    """Load a causal language model; dropout is off until someone calls `train()`.

    Args:
        directory: local directory or hub id of a full model, adapters merged.
        dtype: of the weights; None takes that of `options`, which is float32 by default.
        revision: commit of a hub id.
        options: what the model is loaded as; None loads it plain, for inference or for training
            every weight.

    Raises:
        DataError: if there is no such model there, or only an adapter.
        ConfigError: if the model does something unknown to its logits, or an option does not fit.
    """
    _require_full(directory)
    with _naming(directory, "a causal language model"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(directory),
            revision=revision,
            output_loading_info=True,
            **loading_arguments(options, dtype),
        )
    model, report = loaded
    _require_plain(model, directory)
    keep_weights_unpacked(model)
    _require_whole(report["missing_keys"], directory)
    require_known_head(model)
    return prepare(model, options).eval()


def load_scalar_model(
    directory: str | Path, *, dtype: torch.dtype | None = None, options: LoadOptions | None = None
) -> LanguageModel:
    """Load a reward model or critic; from a causal language model the head starts at zero.

    A zero head makes every first score 0, whatever the seed of the process. The head is in float32
    even where the body is in bfloat16; use it through `parts.head_outputs`.

    Args:
        directory: local directory of a sequence classifier of one label, or of a causal language
            model.
        dtype: of the body; None takes that of `options`, which is float32 by default.
        options: what the model is loaded as; see `load_policy`.

    Raises:
        DataError: if there is no such model there, only an adapter, or one with several labels.
        ConfigError: if it has no head of one output right on the last hidden state.
    """
    return _load_scorer(
        AutoModelForSequenceClassification, directory, 1, dtype=dtype, options=options
    )


STEP_LABELS = {0: "wrong", 1: "right"}


def load_step_model(directory: str | Path, *, options: LoadOptions | None = None) -> LanguageModel:
    """Load a process reward model: two outputs per token; see `load_scalar_model`."""
    labels = {"id2label": STEP_LABELS, "label2id": {v: k for k, v in STEP_LABELS.items()}}
    return _load_scorer(
        AutoModelForTokenClassification, directory, 2, dtype=None, options=options, labels=labels
    )


def _load_scorer(
    kind: Any,
    directory: str | Path,
    outputs: int,
    *,
    dtype: torch.dtype | None,
    options: LoadOptions | None,
    labels: Mapping[str, Any] | None = None,
) -> LanguageModel:
    _require_full(directory)
    with _naming(directory, f"a model with {outputs} output(s)"):
        model, report = kind.from_pretrained(
            str(directory),
            num_labels=outputs,
            output_loading_info=True,
            **(labels or {}),
            **loading_arguments(options, dtype),
        )
    _require_plain(model, directory)
    keep_weights_unpacked(model)
    head = scalar_head(model, outputs=outputs)
    own = {name for name, p in model.named_parameters() if p in set(head.parameters())}
    missing = set(report["missing_keys"])
    _require_whole(missing - own, directory)
    if missing:
        for parameter in head.parameters():
            nn.init.zeros_(parameter)
    if head.weight.dtype == torch.bfloat16:
        head.float()
    return prepare(model, options).eval()


def save(model: nn.Module, tokenizer: PreTrainedTokenizerBase, directory: Path) -> None:
    """Save as one full Hugging Face directory (safetensors), adapters merged into the weights.

    The model can be trained on afterwards: merging is done on the way to the disk.

    Raises:
        StorageFullError: if the disk is full.
    """
    # accelerate would import deepspeed to see whether the model is one of its engines; it never is
    with writing(f"the model in {directory}"), hidden("deepspeed"):
        whole = unwrapped(model)
        if has_adapter(whole):
            from training_core.models.adapters import plain_twin  # noqa: PLC0415 - imports peft

            whole = plain_twin(whole)
        whole.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def freeze(model: LanguageModel) -> LanguageModel:
    """Switch gradients off for good: references, reward models."""
    return model.requires_grad_(False).eval()


def _require_full(directory: str | Path) -> None:
    """Say so where only an adapter is there, before its base is looked for."""
    if (Path(directory) / "adapter_config.json").exists():
        raise _adapter_alone(directory)


def _require_plain(model: nn.Module, directory: str | Path) -> None:
    """Transformers loads a hub id's adapter silently, and saves nothing else afterwards."""
    if has_adapter(model):
        raise _adapter_alone(directory)


def _require_whole(missing: Collection[str], directory: str | Path) -> None:
    """Transformers fills what is missing with random numbers, as the output layer of a policy."""
    if missing:
        raise DataError(
            f"{directory} lacks {len(missing)} of the model's tensors, as {sorted(missing)[0]}: "
            "a reward model is no policy, and a base without its output layer is none either; "
            "give a directory of the right kind"
        )


def _adapter_alone(directory: str | Path) -> DataError:
    return DataError(
        f"{directory} holds a PEFT adapter, expected a full model: "
        "merge it first with `ratchet merge <base> <adapter> <output>`"
    )


class _naming:  # noqa: N801 - reads as a verb where it is used
    """Translate what transformers raises for a bad directory."""

    def __init__(self, directory: str | Path, expected: str) -> None:
        self._directory, self._expected = directory, expected

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, OSError | ValueError | KeyError) or "mismatch" in str(error):
            raise DataError(
                f"{self._directory} does not hold {self._expected} that transformers can load: "
                f"{error}"
            ) from error
