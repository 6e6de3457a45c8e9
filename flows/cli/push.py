"""`ratchet push`: a model with its model card on the Hugging Face hub."""

from __future__ import annotations

import tempfile
from pathlib import Path

from huggingface_hub import HfApi, get_token
from huggingface_hub.utils import httpx

from flows.cli import terminal
from flows.model_use.lineage import lineage_of
from flows.model_use.model_card import model_card
from flows.model_use.model_export import DtypeName, export_model
from flows.model_use.model_kind import kind_of
from flows.model_use.named_model import find_model
from stages.files import write_text
from training_core.errors import ConfigError
from training_core.models import hub
from training_core.models.folders import is_hub_id

WEIGHTS = ["*.safetensors", "*.safetensors.index.json", "*.bin", "*.bin.index.json"]
"""Files of an earlier push that must not stay beside the new ones."""


def push(
    name: str,
    repo: str,
    *,
    private: bool,
    dry_run: bool,
    dtype: DtypeName | None,
    max_shard_size: str,
) -> None:
    """Export a model, write its card, and upload both in one commit.

    Args:
        name: the model; see `find_model`.
        repo: id on the hub; created if it does not exist.
        private: whether only its owner may see it.
        dry_run: print the card and the files, and upload nothing.
        dtype: of the weights; None keeps that of the model.
        max_shard_size: size of a file of weights, at most.

    Raises:
        ConfigError: if there is no such model, `repo` is no id, or the hub refuses the upload.
        DataError: if the model cannot be loaded.
    """
    terminal.hide_loading_bars()
    if not is_hub_id(repo):
        raise ConfigError(f"expected an id of the hub, e.g. owner/name, found '{repo}'")
    model = find_model(name)
    with tempfile.TemporaryDirectory(prefix="ratchet-push-") as scratch:
        directory = Path(scratch, "model")
        export_model(model, directory, dtype=dtype, max_shard_size=max_shard_size)
        lineage = lineage_of(model.version) if model.version else None
        card = model_card(repo, kind_of(hub.load_config(directory)), lineage)
        write_text(directory / "README.md", card)
        if dry_run:
            terminal.echo(card)
            for path in sorted(directory.iterdir()):
                terminal.echo(f"{path.stat().st_size:>15,}  {path.name}")
            return
        what = model.version.uri if model.version else "a model"  # no path of this machine
        address = _upload(repo, directory, f"Upload {what} with Ratchet", private=private)
    terminal.echo(f"{model.name} is at {address}")


def _upload(repo: str, directory: Path, message: str, *, private: bool) -> str:
    """Upload a directory in one commit, and return the address of the repository."""
    api = HfApi()
    try:
        # None is the default of the owner on the hub, which may be private.
        address = api.create_repo(repo, private=private or None, exist_ok=True)
        if private and not api.repo_info(repo).private:
            raise ConfigError(
                f"{repo} exists and is public, so --private would publish the model; make it "
                "private on the hub, or give another id"
            )
        api.upload_folder(
            repo_id=repo,
            folder_path=directory,
            commit_message=message,
            delete_patterns=WEIGHTS,
        )
    except (httpx.HTTPError, OSError) as error:
        reason = _without_token(" ".join(str(error).split())) or type(error).__name__
        raise ConfigError(
            f"{repo} was not uploaded: {reason}; check the id, the network, and that HF_TOKEN, or "
            "the token of `hf auth login`, may write there"
        ) from None  # its traceback has the headers of the request
    return str(address)


def _without_token(text: str) -> str:
    token = get_token()
    return text.replace(token, "***") if token else text
