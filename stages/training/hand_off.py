"""Compare the models that a stage takes with each other, before it starts."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stages.configs.block import StageConfig
from stages.configs.contract_rules import SAME_AS_POLICY
from stages.contract import Inputs
from training_core.errors import ConfigError
from training_core.models.model_contract import contract_of


def require_contracts(config: StageConfig, inputs: Inputs) -> None:
    """Check that the models of a stage fit together; `SAME_AS_POLICY` has the rules.

    Args:
        config: of the stage; its `allow_differences` declares what may differ.
        inputs: directories by role.

    Raises:
        ConfigError: for the first role that differs; the message has every field with both values.
    """
    policy = inputs.get("policy")
    allowed: Sequence[str] = getattr(config, "allow_differences", ())
    for role, fields in SAME_AS_POLICY.items():
        compared = [name for name in fields if name not in allowed]
        other = inputs.get(role)
        if policy is not None and other not in (None, policy) and compared:
            _require_equal(role, policy, Path(str(other)), compared)


def _require_equal(role: str, policy: Path, other: Path, fields: Sequence[str]) -> None:
    ours, theirs = contract_of(policy), contract_of(other)
    found = [
        f"{name}: the policy has {ours[name]}, the {role} has {theirs[name]}"
        for name in fields
        if ours[name] != theirs[name]
    ]
    if found:
        raise ConfigError(
            f"the input '{role}' must agree with the policy, found differences:\n  "
            + "\n  ".join(found)
            + f"\ngive a {role} of the policy's family, or declare the change, e.g. "
            "`allow_differences: [chat_template]`"
        )
