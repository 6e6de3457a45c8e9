"""Load and save Hugging Face directories: weights, config, tokenizer and chat template together."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from safetensors import SafetensorError
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
from training_core.models.folders import require_model_files, require_tokenizer_files
from training_core.models.language_model import LanguageModel
from training_core.models.options import LoadOptions
from training_core.models.parts import (
    SCALAR_HEADS,
    has_adapter,
    require_known_head,
    scalar_head,
    unwrapped,
)
from training_core.models.preparing import keep_weights_unpacked, loading_arguments, prepare
from training_core.models.weight_index import require_indexed_files
from training_core.storage import writing

NO_CODE: Mapping[str, Any] = {"trust_remote_code": False}
"""Argument of every load. By default transformers asks on the terminal whether it may run Python
code from the model's folder, and a `y` on standard input answers it."""

BAD_FILES = (
    OSError,
    ValueError,
    LookupError,
    TypeError,
    AttributeError,
    ArithmeticError,
    ImportError,  # of a package that only this tokenizer or model needs
    SafetensorError,
    StrictDataclassError,  # of a config whose numbers do not fit together
    UnpicklingError,
)
"""What transformers and its libraries raise for files that are cut short, damaged or missing."""

BAD_FILE_WORDS = ("mismatch", "PytorchStreamReader")
"""Parts of torch's RuntimeErrors about them."""


def load_tokenizer(directory: str | Path, revision: str | None = None) -> PreTrainedTokenizerBase:
    """Load the tokenizer of a directory or hub id."""
    require_tokenizer_files(directory)
    with _naming(directory, "a tokenizer"):
        return AutoTokenizer.from_pretrained(str(directory), revision=revision, **NO_CODE)


def load_config(directory: str | Path, revision: str | None = None) -> Any:
    """Load transformers' config of a directory or hub id.

    Raises:
        DataError: if there is none.
    """
    require_model_files(directory)
    with _naming(directory, "a model"):
        return AutoConfig.from_pretrained(str(directory), revision=revision, **NO_CODE)


def recorded_dtype(directory: str | Path, revision: str | None = None) -> torch.dtype:
    """Return the dtype in a model's config, or float32 if the config has none."""
    found = load_config(directory, revision).dtype
    return found if isinstance(found, torch.dtype) else torch.float32


def load_policy(
    directory: str | Path,
    *,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    options: LoadOptions | None = None,
) -> LanguageModel:
    """Load a causal language model in eval mode, i.e. with dropout off.

    Args:
        directory: local directory or hub id of a full model with merged adapters.
        dtype: dtype of the weights; None uses the one in `options`, by default float32.
        revision: commit of a hub id.
        options: load options; None loads a plain model, for inference or for training every weight.

    Raises:
        DataError: if `directory` holds no such model, or only an adapter.
        ConfigError: if the model changes its logits in an unknown way, or an option does not fit.
    """
    _require_full(directory)
    with _naming(directory, "a causal language model"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            str(directory),
            revision=revision,
            output_loading_info=True,
            **NO_CODE,
            **loading_arguments(options, dtype),
        )
    model, report = loaded
    _require_plain(model, directory)
    keep_weights_unpacked(model)
    _require_whole(report["missing_keys"], directory)
    _require_no_scores(report["unexpected_keys"], directory)
    require_known_head(model)
    return prepare(model, options).eval()


def load_scalar_model(
    directory: str | Path,
    *,
    dtype: torch.dtype | None = None,
    revision: str | None = None,
    options: LoadOptions | None = None,
) -> LanguageModel:
    """Load a reward model or critic; from a causal language model the head starts at zero.

    With a zero head every initial score is 0 for any seed. The head is in float32 even if the body
    is in bfloat16; use it through `parts.head_outputs`.

    Args:
        directory: local directory or hub id of a sequence classifier with one label, or of a causal
            language model.
        dtype: dtype of the body; None uses the one in `options`, by default float32.
        revision: commit of a hub id.
        options: load options; see `load_policy`.

    Raises:
        DataError: if `directory` holds no such model, only an adapter, or a model with several
            labels.
        ConfigError: if the model has no head with one output directly on the last hidden state.
    """
    return _load_scorer(
        AutoModelForSequenceClassification,
        directory,
        1,
        dtype=dtype,
        revision=revision,
        options=options,
    )


STEP_LABELS = {0: "wrong", 1: "right"}


def load_step_model(directory: str | Path, *, options: LoadOptions | None = None) -> LanguageModel:
    """Load a process reward model with two outputs per token; see `load_scalar_model`."""
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
    revision: str | None = None,
    labels: Mapping[str, Any] | None = None,
) -> LanguageModel:
    _require_full(directory)
    with _naming(directory, f"a model with {outputs} output(s)"):
        model, report = kind.from_pretrained(
            str(directory),
            num_labels=outputs,
            revision=revision,
            output_loading_info=True,
            **(labels or {}),
            **NO_CODE,
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
    """Save a full Hugging Face directory (safetensors) with adapters merged into the weights.

    The model itself is not changed, so its training can continue.

    Raises:
        StorageFullError: if the disk is full.
    """
    # accelerate would import deepspeed only to check whether the model is a DeepSpeed engine
    with writing(f"the model in {directory}"), hidden("deepspeed"):
        whole = unwrapped(model)
        if has_adapter(whole):
            from training_core.models.adapters import plain_twin  # noqa: PLC0415 - imports peft

            whole = plain_twin(whole)
        whole.save_pretrained(directory)
        tokenizer.save_pretrained(directory)


def freeze(model: LanguageModel) -> LanguageModel:
    """Disable gradients permanently, e.g. for references and reward models."""
    return model.requires_grad_(False).eval()


def _require_full(directory: str | Path) -> None:
    """Refuse a directory with missing files or only an adapter, before transformers reads it."""
    if (Path(directory) / "adapter_config.json").exists():
        raise _adapter_alone(directory)
    require_indexed_files(directory)
    require_model_files(directory)


def _require_plain(model: nn.Module, directory: str | Path) -> None:
    """Refuse a hub id with an adapter: transformers would save only the adapter, without error."""
    if has_adapter(model):
        raise _adapter_alone(directory)


def _require_whole(missing: Collection[str], directory: str | Path) -> None:
    """Refuse missing tensors, e.g. an output layer: transformers fills them with random numbers."""
    if missing:
        raise DataError(
            f"{directory} lacks {len(missing)} of the model's tensors, e.g. {sorted(missing)[0]}: "
            "it is probably another kind of model, e.g. a reward model instead of a policy, or a "
            "body without its output layer; give another directory"
        )


def _require_no_scores(unexpected: Collection[str], directory: str | Path) -> None:
    """Refuse a reward model with a tied output layer: no tensor of a policy is missing there."""
    heads = sorted(name for name in unexpected if name.split(".")[0] in SCALAR_HEADS)
    if heads:
        raise DataError(
            f"{directory} is a reward model or another classifier (it has {heads[0]}), expected a "
            "causal language model; give the policy's directory"
        )


def _adapter_alone(directory: str | Path) -> DataError:
    return DataError(
        f"{directory} holds a PEFT adapter, expected a full model: "
        "merge it first with `ratchet merge <base> <adapter> <output>`"
    )


class _naming:  # noqa: N801 - reads as a verb where it is used
    """Translate errors of transformers about a bad directory."""

    def __init__(self, directory: str | Path, expected: str) -> None:
        self._directory, self._expected = directory, expected

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError) and "trust_remote_code" in str(error):
            raise DataError(
                f"{self._directory} needs Python code from its own folder or repository "
                "(`auto_map` in its JSON files), and Ratchet never runs such code; choose "
                f"{self._expected} whose architecture transformers has"
            ) from None  # the text of transformers recommends an option that Ratchet lacks
        if isinstance(error, UnpicklingError):
            raise DataError(
                f"{self._directory} has weights in a pickle file that holds something else than "
                "tensors, so it was not loaded, because that could run code; give weights in "
                "safetensors files"
            ) from None
        is_bad = isinstance(error, BAD_FILES) or type(error) is Exception  # tokenizers raises that
        if is_bad or any(words in str(error) for words in BAD_FILE_WORDS):
            cause = " ".join(str(error).split()) or type(error).__name__
            raise DataError(
                f"{self._directory} does not hold {self._expected} that transformers can load: "
                f"{cause}; check its files, or copy them again"
            ) from error
