"""Shapes of a base model from its `config.json`, if that is at hand. Loads no weights."""

from __future__ import annotations

from pathlib import Path

from stages.configs.model_config import (
    BaseModelConfig,
    HubModelConfig,
    LocalModelConfig,
    ScratchModelConfig,
)
from training_core.errors import DataError
from training_core.sizes.decoder import Decoder
from training_core.sizes.decoder_config import decoder_of
from training_core.strict_json import read_object

CONFIG = "config.json"


def base_decoder(base: BaseModelConfig, *, downloads: bool = True) -> Decoder:
    """Return the shapes of a base model.

    A scratch model gets its vocabulary from its data, so its shapes have none here.

    Args:
        base: the model.
        downloads: whether the hub may be asked for a file that its cache does not have.

    Raises:
        DataError: if its config.json is not at hand: neither in its folder, in the cache of the
            hub, nor on the hub.
        ConfigError: if its architecture is not known.
        IntegrityError: if its config.json is damaged.
    """
    if isinstance(base, ScratchModelConfig):
        return Decoder(
            hidden=base.hidden_size,
            layers=base.num_layers,
            heads=base.num_heads,
            kv_heads=base.num_heads,
            head_size=base.hidden_size // base.num_heads,
            intermediate=base.intermediate_size,
            vocabulary=0,
            is_tied=True,
        )
    if isinstance(base, LocalModelConfig):
        return _read(Path(base.path) / CONFIG, base.path)
    return _read(_from_hub(base, downloads), base.repo)


def _read(path: Path, where: str) -> Decoder:
    try:
        return decoder_of(read_object(path, remedy="copy the model again"), where)
    except FileNotFoundError as error:
        raise DataError(f"{where} has no {CONFIG}; copy the model again") from error


def _from_hub(base: HubModelConfig, downloads: bool) -> Path:
    """Return the file in the hub's cache; it may be downloaded if it is not there."""
    from huggingface_hub import hf_hub_download  # noqa: PLC0415 - `ratchet --help` needs no hub
    from huggingface_hub.utils import httpx  # noqa: PLC0415

    try:
        file = hf_hub_download(
            *(base.repo, CONFIG), revision=base.revision,
            etag_timeout=5, local_files_only=not downloads,
        )  # fmt: skip
        return Path(file)
    except (httpx.HTTPError, OSError, ValueError) as error:
        raise DataError(
            f"the {CONFIG} of {base.repo} is neither in the cache nor could it be downloaded"
        ) from error
