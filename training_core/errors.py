"""Ratchet's own error classes.

    RatchetError
    ├── InputError         the user must change something; never retried
    │   ├── ConfigError    a key or value in a preset, an override or a request
    │   ├── DataError      a row, a field or a file of a dataset; a directory that holds no model
    │   └── AdmissionError a reward model that is not better than its baselines
    ├── NonFiniteError     a loss, gradient or log-probability is NaN or infinite; never retried
    ├── MismatchError      sampler and trainer disagree about the policy; never retried
    ├── BudgetError        a step would take more than its budget; never retried
    ├── CanaryError        a check before the first step of a stage failed; never retried
    ├── StorageFullError   no space left where a stage writes; never retried
    ├── IntegrityError     bytes on disk differ from their manifest or marker
    ├── ConflictError      the basis of a decision has changed; decide again, never overwrite
    ├── StoppedError       the stage got SIGTERM and saved its state; it can be resumed
    └── TransientError     a lost worker, node or connection; retried with backoff
        └── UnreachableError   a cluster that does not answer; waiting for it is no try

Every message contains what was expected, what was found, and what to do.
"""

from __future__ import annotations


class RatchetError(Exception):
    """Base class of all errors that Ratchet raises itself."""


class InputError(RatchetError):
    """An input from the user is wrong, and a retry will not help."""


class ConfigError(InputError):
    """A configuration key or value is unknown, missing or out of range."""


class DataError(InputError):
    """A dataset, row or model directory is not what the stage needs."""


class AdmissionError(InputError):
    """A reward model is not better than its baselines, so no policy is optimised for it."""


class NonFiniteError(RatchetError):
    """A number that training depends on is NaN or infinite."""


class MismatchError(RatchetError):
    """The rollout engine does not sample from the policy that is being trained."""


class BudgetError(RatchetError):
    """A step takes, or will take, more time than its budget allows."""


class CanaryError(RatchetError):
    """A check on the user's own model and rows, before the first step of a stage, failed."""


class StorageFullError(RatchetError):
    """The disk below the store is full."""


class IntegrityError(RatchetError):
    """A file is missing, cut short or changed since it was recorded."""


class ConflictError(RatchetError):
    """Another decision was made first, so the basis of this one is outdated."""


class StoppedError(RatchetError):
    """The stage got the signal to stop; a stage that trains has saved its state."""


class TransientError(RatchetError):
    """A failure outside the stage, e.g. of a node; the same request may succeed later."""


class UnreachableError(TransientError):
    """A cluster does not answer; what it runs may go on."""
