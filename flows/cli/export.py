"""`ratchet export`: a model as a clean directory."""

from __future__ import annotations

from pathlib import Path

from flows.cli import terminal
from flows.model_use.model_export import DtypeName, export_model
from flows.model_use.named_model import find_model


def export(name: str, directory: Path, *, dtype: DtypeName | None, max_shard_size: str) -> None:
    """Write a model to a new directory, and print its files.

    Args:
        name: the model; see `find_model`.
        directory: must not exist, or must be empty.
        dtype: of the weights; None keeps that of the model.
        max_shard_size: size of a file of weights, at most.

    Raises:
        ConfigError: if there is no such model, or `directory` is not empty.
        DataError: if the model cannot be loaded.
    """
    terminal.hide_loading_bars()
    model = find_model(name)
    export_model(model, directory, dtype=dtype, max_shard_size=max_shard_size)
    for path in sorted(directory.iterdir()):
        terminal.echo(f"{path.stat().st_size:>15,}  {path.name}")
    terminal.echo(f"{model.name} is in {directory}")
