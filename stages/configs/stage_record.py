"""The record of a stage: everything that other code needs to know about it.

The config module of each stage ends with its record `STAGE`; `stages.catalog` collects them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from stages.configs.block import StageConfig
from stages.configs.canary_record import CanaryName
from training_core.errors import ConfigError

ArtifactKind = Literal["policy", "reward_model", "process_reward_model", "dataset", "evaluation"]
RowsName = Literal[
    "demonstrations", "texts", "preferences", "unpaired_responses", "solutions", "prompts"
]


@dataclass(frozen=True)
class DatasetUse:
    """How a stage uses a dataset of its config.

    Attributes:
        rows: kind of the rows; a field `rows` in the config overrides it.
        is_trained_on: whether this stage, or a later stage through the output of this one, trains
            on these rows. An evaluation on them would be meaningless.
    """

    rows: RowsName
    is_trained_on: bool = False


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """The record of a stage, for flows, tasks, registry, data check and report.

    Attributes:
        name: name of the stage in the store, in job ids and on the command line. The module
            `stages.<name>` runs it.
        version: raised if the results change for an unchanged config; part of the stage key.
        config: class of its config.
        makes: kind of the artifact.
        rows: kind of its rows, for a dataset.
        required: kind of each required input, by role.
        optional: kind of each optional input, by role.
        families: kind of further inputs, by prefix of their roles, e.g. `policy_`; their number is
            not limited.
        reads: use of the datasets in its config, by field; dotted for a field of a block.
        trains: whether it runs the training loop.
        canaries: checks before the first step, in their order.
        headline: its line in the report; `{metric}` is a number, `{before->after}` is a change.
        heldout_headline: its line instead, if it has measured all metrics of this one.
        curves: titles of the curves in the report, by metric.
    """

    name: str
    version: int
    config: type[StageConfig]
    makes: ArtifactKind
    rows: RowsName | None = None
    required: Mapping[str, ArtifactKind] = field(default_factory=dict)
    optional: Mapping[str, ArtifactKind] = field(default_factory=dict)
    families: Mapping[str, ArtifactKind] = field(default_factory=dict)
    reads: Mapping[str, DatasetUse] = field(default_factory=dict)
    trains: bool = False
    canaries: Sequence[CanaryName] = ()
    headline: str = ""
    heldout_headline: str = ""
    curves: Mapping[str, str] = field(default_factory=dict)

    def kind_of(self, role: str) -> ArtifactKind | None:
        """Return the kind of the input `role`, or None if the stage has no such input."""
        for start, kind in self.families.items():
            if role.startswith(start):
                return kind
        return self.required.get(role) or self.optional.get(role)

    def require_roles(self, roles: Collection[str]) -> None:
        """Check that all required roles are given, and no unknown ones.

        Raises:
            ConfigError: if a role is missing or unknown; the message names it.
        """
        if missing := sorted(set(self.required) - set(roles)):
            raise ConfigError(f"stage '{self.name}' needs the input {missing}; add it")
        self.require_known_roles(roles)

    def require_known_roles(self, roles: Collection[str]) -> None:
        """Check that the stage has all these inputs.

        Raises:
            ConfigError: for an unknown role; the message names the nearest.
        """
        for role in roles:
            if self.kind_of(role) is None:
                takes = (*self.required, *self.optional)
                near = get_close_matches(role, takes, n=1)
                known = ", ".join((*takes, *(f"{family}<name>" for family in self.families)))
                hint = f"did you mean '{near[0]}'?" if near else f"it takes: {known}"
                raise ConfigError(f"stage '{self.name}' takes no input '{role}'; {hint}")


def trained_rows(rows: RowsName) -> dict[str, DatasetUse]:
    """Return the field `reads` for a stage that trains on `data` and evaluates on `eval_data`."""
    return {"data": DatasetUse(rows, is_trained_on=True), "eval_data": DatasetUse(rows)}


TRAINED_PROMPTS = {"prompts": DatasetUse("prompts", is_trained_on=True)}
LOSS_CURVE = {"loss": "Loss"}
PAIR_CURVES = {
    **LOSS_CURVE,
    "accuracy": "Pairs ranked right (fraction)",
    "reward_margin": "Reward margin, chosen over rejected",
}
