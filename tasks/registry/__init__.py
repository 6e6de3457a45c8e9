"""MLflow: runs with the curves of stages, and model versions. Only this package imports MLflow.

MLflow holds copies. `Registry.resync` creates them again from the store's manifests, except the
promotions (see `tasks.ledger`). Therefore every method may be called twice, by two processes at
once, or after an outage. Every method that talks to the server raises `TransientError` if the
server cannot be reached, and `ConfigError` if it refuses the request.
"""

from tasks.registry.flow_runs import FlowRun
from tasks.registry.registry import Registry
from tasks.registry.runs import ATTEMPT, MIRRORED

__all__ = ["ATTEMPT", "MIRRORED", "FlowRun", "Registry"]
