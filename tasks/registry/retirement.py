"""Take the result of a stage out of MLflow: its model versions and their files; its runs stay."""

from __future__ import annotations

import shutil

from mlflow.exceptions import MlflowException

from stages.runtime.manifest import Manifest
from tasks.registry.mlflow_connection import translated
from tasks.registry.receipts import forget_receipts, receipts_of
from tasks.registry.registry import Registry
from training_core.errors import ConfigError


@translated
def retire(registry: Registry, manifest: Manifest) -> None:
    """Delete the model versions of a result in all lifecycles, with their files.

    Their files are hard links to those of the store, which need the space until both are deleted.
    A version that somebody has deleted already is no error.

    Raises:
        TransientError: if MLflow cannot be reached.
    """
    root, address = registry.store.root, registry.mlflow.address
    for receipt in receipts_of(root, manifest, address):
        if receipt.name is None or receipt.version is None:
            continue
        try:
            version = registry.models.resolve(f"models:/{receipt.name}/{receipt.version}")
        except ConfigError:  # it is gone
            continue
        if (version.stage_key, version.digest) != (manifest.key, manifest.digest):
            continue
        try:
            registry.mlflow.client.delete_model_version(receipt.name, str(receipt.version))
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
        shutil.rmtree(version.path, ignore_errors=True)
    forget_receipts(root, manifest)
