"""Receipts: what a finished stage became in an MLflow server, so that it is registered only once.

    <store>/registered/<lifecycle>/<stage>/<key>.json

A receipt saves a dozen requests whenever a finished stage is reused. It is only a hint: whoever
reads one asks the server whether the version or run is still there.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from pydantic import BaseModel, ConfigDict, ValidationError

from stages.files import write_text
from stages.runtime.manifest import Manifest
from training_core.names import require_name


class Receipt(BaseModel):
    """A registered result.

    Attributes:
        address: of the MLflow server.
        digest: of the result, as in its manifest.
        run_id: the MLflow run.
        name: the registered model; None for a dataset or an evaluation, which have only a run.
        version: number of the model version.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    address: str
    digest: str
    run_id: str
    name: str | None = None
    version: int | None = None


def find_receipt(root: Path, lifecycle: str, manifest: Manifest, address: str) -> Receipt | None:
    """Return the receipt for this result and this server, or None.

    Args:
        root: the store's folder.
        lifecycle: the lifecycle that it was registered for.
        manifest: manifest of the result.
        address: of the MLflow server.
    """
    try:
        receipt = Receipt.model_validate_json(_path(root, lifecycle, manifest).read_bytes())
    except (FileNotFoundError, ValidationError):
        return None
    is_of_this = (receipt.address, receipt.digest) == (address, manifest.digest)
    return receipt if is_of_this else None


def receipt_of_key(root: Path, lifecycle: str, key: str) -> Receipt | None:
    """Return the receipt of a stage key, of any server; None if there is none.

    Args:
        root: the store's folder.
        lifecycle: the lifecycle that it was registered for.
        key: the stage key.
    """
    folder = root / "registered" / require_name("lifecycle", lifecycle)
    for path in folder.glob(f"*/{require_name('stage key', key)}.json"):
        with suppress(FileNotFoundError, ValidationError):
            return Receipt.model_validate_json(path.read_bytes())
    return None


def receipts_of(root: Path, manifest: Manifest, address: str) -> list[Receipt]:
    """Return the receipts of a result in all lifecycles, for this server."""
    folders = sorted((root / "registered").glob("*"))
    found = (find_receipt(root, folder.name, manifest, address) for folder in folders)
    return [receipt for receipt in found if receipt is not None]


def write_receipt(root: Path, lifecycle: str, manifest: Manifest, receipt: Receipt) -> None:
    """Write a receipt; it replaces an earlier one of the same stage key."""
    write_text(_path(root, lifecycle, manifest), receipt.model_dump_json())


def forget_receipts(root: Path, manifest: Manifest) -> None:
    """Delete the receipts of a result in all lifecycles."""
    for folder in (root / "registered").glob("*"):
        (folder / manifest.stage / f"{manifest.key}.json").unlink(missing_ok=True)


def _path(root: Path, lifecycle: str, manifest: Manifest) -> Path:
    return root / "registered" / lifecycle / manifest.stage / f"{manifest.key}.json"
