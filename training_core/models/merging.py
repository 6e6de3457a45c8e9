"""Merge a PEFT adapter, e.g. from another trainer, into its base, and write a full directory."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

from peft import PeftModel, get_peft_model_state_dict
from safetensors import safe_open

from training_core.errors import ConfigError, DataError
from training_core.models import hub
from training_core.models.adapters import NAME, PEFT_PREFIX
from training_core.models.language_model import LanguageModel
from training_core.models.parts import SCALAR_HEADS, scalar_head

log = logging.getLogger(__name__)


def merge(
    base: str | Path,
    adapter: Path,
    output: Path,
    *,
    is_reward_model: bool = False,
) -> None:
    """Merge `adapter` into `base` and save model and tokenizer to `output`.

    The weights keep the dtype in the base's config. The tokenizer comes from the adapter's folder
    if there is one, otherwise from the base.

    Args:
        base: directory or hub id of the full model that the adapter was trained on.
        adapter: directory with adapter_config.json and adapter_model.safetensors.
        output: must not exist, or must be empty.
        is_reward_model: whether the result is a reward model instead of a policy.

    Raises:
        DataError: if `adapter` is no adapter or does not fit `base`; if a reward model would have
            no trained head, or a policy would lose one.
        ConfigError: if `output` is not empty.
        StorageFullError: if the disk is full.

    Source:
        Bugs with lost and random heads: OpenRLHF#872, #1039, #1342.
    """
    config, names = _read_adapter(adapter)
    _require_free(output)
    has_head = _has_head(names)
    if has_head and not is_reward_model:
        raise DataError(
            f"{adapter} contains the head of a reward model, which a policy would lose; "
            "add --reward-model"
        )
    load = hub.load_scalar_model if is_reward_model else hub.load_policy
    model = load(base, dtype=hub.recorded_dtype(base))
    if is_reward_model and not has_head and not bool(scalar_head(model).weight.any()):
        raise DataError(
            f"neither {base} nor {adapter} has a trained head ({' or '.join(SCALAR_HEADS)}), so "
            "every score would be 0; train the adapter with its head in modules_to_save, or merge "
            "without --reward-model"
        )
    _warn_if_elsewhere(config, base)
    merged = _merged(model, adapter, names, base)
    tokenizer = hub.load_tokenizer(adapter if _has_tokenizer(adapter) else base)
    merged.config.pad_token_id = tokenizer.pad_token_id
    hub.save(merged, tokenizer, output)


def _read_adapter(adapter: Path) -> tuple[dict[str, Any], set[str]]:
    config, weights = adapter / "adapter_config.json", adapter / "adapter_model.safetensors"
    if missing := [path.name for path in (config, weights) if not path.is_file()]:
        raise DataError(
            f"{adapter} is not an adapter: expected {config.name} and {weights.name}, "
            f"{' and '.join(missing)} missing; give the folder that PEFT's save_pretrained wrote"
        )
    with safe_open(weights, framework="pt") as file:
        names = set(file.keys())
    return json.loads(config.read_text()), names


def _require_free(output: Path) -> None:
    if output.exists() and (not output.is_dir() or any(output.iterdir())):
        raise ConfigError(f"{output} exists already; give a new directory")


def _has_head(names: set[str]) -> bool:
    return any(name.removeprefix(PEFT_PREFIX).split(".")[0] in SCALAR_HEADS for name in names)


def _warn_if_elsewhere(config: dict[str, Any], base: str | Path) -> None:
    recorded = config.get("base_model_name_or_path")
    if recorded and Path(recorded).name != Path(base).name:
        log.warning("the adapter was trained on %s; it is merged into %s", recorded, base)


def _has_tokenizer(directory: Path) -> bool:
    return (directory / "tokenizer_config.json").is_file()


def _merged(
    model: LanguageModel, adapter: Path, names: set[str], base: str | Path
) -> LanguageModel:
    plain = set(model.state_dict())
    try:
        wrapped = PeftModel.from_pretrained(model, str(adapter), adapter_name=NAME)
    except (ValueError, RuntimeError, KeyError) as error:
        raise _wrong_base(adapter, base, str(error)) from error
    expected = get_peft_model_state_dict(wrapped, adapter_name=NAME, save_embedding_layers=False)
    # With a changed vocabulary, PEFT also writes the full embeddings.
    whole = {n for n in names if "lora_" not in n and n.removeprefix(PEFT_PREFIX) in plain}
    if lost := sorted((names - whole) ^ (set(expected) - whole)):
        raise _wrong_base(adapter, base, f"{len(lost)} tensors have no counterpart, e.g. {lost[0]}")
    return wrapped.merge_and_unload(safe_merge=True)


def _wrong_base(adapter: Path, base: str | Path, reason: str) -> DataError:
    return DataError(
        f"{adapter} does not fit {base}: {reason}. Merge it into the model on which it was trained "
        "(base_model_name_or_path in its adapter_config.json)"
    )
