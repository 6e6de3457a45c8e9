"""The one door to MLflow: runs that mirror a stage's curves, and model versions that people load.

Nothing here is the truth. The store's manifests are, and `Registry.resync` makes all of it again
from them, except the promotions (see `tasks.ledger`). So every method may be called twice, by two
processes at once, or after an outage. Every method that talks to the server raises `TransientError`
if it cannot be reached, and `ConfigError` if it refuses.
"""

from tasks.registry.registry import Registry
from tasks.registry.runs import ATTEMPT, MIRRORED

__all__ = ["ATTEMPT", "MIRRORED", "Registry"]
