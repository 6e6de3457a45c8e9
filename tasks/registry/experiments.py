"""The MLflow experiment of a lifecycle."""

from __future__ import annotations

from mlflow.utils.mlflow_tags import MLFLOW_RUN_NOTE

from stages.runtime.store import Store
from tasks.registry.mlflow_connection import MlflowConnection, unless_it_exists
from training_core.errors import ConfigError


def experiment_of(mlflow: MlflowConnection, store: Store, lifecycle: str) -> str:
    """Return the id of a lifecycle's experiment; create it, with its artifacts in the store.

    Raises:
        ConfigError: if somebody has deleted it.
    """
    found = mlflow.client.get_experiment_by_name(lifecycle)
    if found is None:
        folder = store.root.resolve() / "mlflow" / lifecycle
        tags = {
            "mlflow.experimentKind": "custom_model_development",  # opens the list of runs
            MLFLOW_RUN_NOTE: (
                f"One run per run of a flow of `{lifecycle}`, and below it one run per stage that "
                "it has run. A finished stage that a later flow run reuses has no second run: the "
                "description of that flow run links to the first one."
            ),
        }
        with unless_it_exists():
            return mlflow.client.create_experiment(lifecycle, folder.as_uri(), tags)
        found = mlflow.client.get_experiment_by_name(lifecycle)
    if found is None or found.lifecycle_stage != "active":
        raise ConfigError(
            f"expected an active MLflow experiment '{lifecycle}', found a deleted one; "
            "restore it in MLflow, or remove it for good with `mlflow gc`"
        )
    return found.experiment_id
