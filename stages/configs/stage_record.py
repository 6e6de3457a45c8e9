"""The record of a stage: all that anybody else knows of it.

Each stage's config module ends with one, called `STAGE`; `stages.catalog` collects them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Literal

from stages.configs.block import StageConfig
from training_core.errors import ConfigError

ArtifactKind = Literal["policy", "reward_model", "process_reward_model", "dataset", "evaluation"]
RowsName = Literal[
    "demonstrations", "texts", "preferences", "unpaired_responses", "solutions", "prompts"
]


@dataclass(frozen=True)
class DatasetUse:
    """What a stage does with a dataset that its config names.

    Attributes:
        rows: what a row is; a config with a field `rows` says it itself.
        is_trained_on: whether the stage, or a later stage through what this one makes, learns from
            these rows. Evaluation on them would then prove nothing.
    """

    rows: RowsName
    is_trained_on: bool = False


@dataclass(frozen=True, kw_only=True)
class StageRecord:
    """The record of a stage: everything that flows, tasks, registry and report know of it.

    Attributes:
        name: the stage's name, as in the store, in job ids and on the command line; its page is
            the module `stages.<name>`.
        version: raised when the stage's results change for an unchanged config; part of the stage
            key.
        config: what a person writes.
        makes: kind of the artifact.
        required: kind of each input that must be given, by role.
        optional: kind of each input that may be given, by role.
        families: kind of further inputs by the beginning of their roles, e.g. `policy_`; any number
            of them may be given.
        reads: the datasets that its config names, by field.
        trains: whether it runs the training loop.
        headline: its line in the report; `{metric}` is the number, `{before->after}` a change.
        curves: title of each curve that the report draws, by metric.
    """

    name: str
    version: int
    config: type[StageConfig]
    makes: ArtifactKind
    required: Mapping[str, ArtifactKind] = field(default_factory=dict)
    optional: Mapping[str, ArtifactKind] = field(default_factory=dict)
    families: Mapping[str, ArtifactKind] = field(default_factory=dict)
    reads: Mapping[str, DatasetUse] = field(default_factory=dict)
    trains: bool = False
    headline: str = ""
    curves: Mapping[str, str] = field(default_factory=dict)

    def kind_of(self, role: str) -> ArtifactKind | None:
        """Return the kind of the input `role`, or None if the stage does not take it."""
        for start, kind in self.families.items():
            if role.startswith(start):
                return kind
        return self.required.get(role) or self.optional.get(role)

    def require_roles(self, roles: Collection[str]) -> None:
        """Check that inputs of these roles are what the stage needs and takes.

        Raises:
            ConfigError: naming what is missing, or the first role that the stage does not take.
        """
        if missing := sorted(set(self.required) - set(roles)):
            raise ConfigError(f"stage '{self.name}' needs the input {missing}")
        for role in roles:
            if self.kind_of(role) is None:
                takes = (*self.required, *self.optional)
                near = get_close_matches(role, takes, n=1)
                known = ", ".join((*takes, *(f"{family}<name>" for family in self.families)))
                hint = f"did you mean '{near[0]}'?" if near else f"it takes: {known}"
                raise ConfigError(f"stage '{self.name}' takes no input '{role}'; {hint}")


def trained_rows(rows: RowsName) -> dict[str, DatasetUse]:
    """Return the datasets of a stage that trains on `data` and is measured on `eval_data`."""
    return {"data": DatasetUse(rows, is_trained_on=True), "eval_data": DatasetUse(rows)}


TRAINED_PROMPTS = {"prompts": DatasetUse("prompts", is_trained_on=True)}
LOSS_CURVE = {"loss": "Loss"}
PAIR_CURVES = {
    **LOSS_CURVE,
    "accuracy": "Pairs ranked right (fraction)",
    "reward_margin": "Reward margin, chosen over rejected",
}
