"""What every stage agrees on: Config, Inputs, Context, Result, and its record.

A stage is one page with a `Config`, and `run(config, inputs, context) -> Result`. It knows neither
Prefect nor MLflow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from stages.attempt import Attempt
from stages.configs.block import StageConfig
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.errors import ConfigError

T = TypeVar("T")

ArtifactKind = Literal["policy", "reward_model", "process_reward_model", "dataset", "evaluation"]
RowsName = Literal[
    "demonstrations", "texts", "preferences", "unpaired_responses", "solutions", "prompts"
]


class MetricSink(Protocol):
    """Where a stage writes its curves."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` at optimizer step (or item) `step`."""
        ...

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Tell whoever watches that `done` of `total` is finished."""
        ...

    def rewind(self, history: Path, step: int) -> None:
        """Start the curves with what the file `history` has up to `step`."""
        ...


@dataclass(frozen=True)
class Context:
    """What a stage is given besides its config and inputs.

    Attributes:
        attempt: this attempt; checkpoints and the artifact go below its directory.
        earlier_attempts: at the same key, newest first; read only.
        sink: where curves and progress go.
        should_stop: becomes true after SIGTERM; a training stage then saves and raises
            `StoppedError`.
        input_digests: content digest of each input, by role.
        cache_dir: where a stage keeps what another one may need again, named by content; None
            keeps nothing.
        dist_info: this process among those that run the stage together.
    """

    attempt: Attempt
    sink: MetricSink
    earlier_attempts: tuple[Attempt, ...] = ()
    should_stop: Callable[[], bool] = lambda: False
    input_digests: Mapping[str, str] = field(default_factory=dict)
    cache_dir: Path | None = None
    dist_info: DistInfo = SINGLE_PROCESS

    @property
    def artifact_dir(self) -> Path:
        """Where the stage leaves what it made; of several ranks the first one's is kept."""
        return self.attempt.of_rank(self.dist_info.rank).artifact

    @property
    def checkpoint_roots(self) -> tuple[Path, ...]:
        """Directories that may hold checkpoints of this stage, this attempt's own first."""
        return tuple(a.checkpoints for a in (self.attempt, *self.earlier_attempts))


@dataclass(frozen=True)
class Result:
    """What a stage made: the files below `context.artifact_dir`, and numbers that describe them."""

    kind: ArtifactKind
    metrics: Mapping[str, float] = field(default_factory=dict)


Inputs = Mapping[str, Path]
"""Local directories that the graph provides, by role.

`policy`, `reference`, `reward_model`, `dataset`, …
"""


def resolve_source(field: str, configured: T | None, role: str, inputs: Inputs) -> T | Path:
    """Return what the config says, or what the graph gives.

    Raises:
        ConfigError: if there are both or neither.
    """
    given = inputs.get(role)
    if configured is not None and given is not None:
        raise ConfigError(
            f"`{field}` is set, but the graph gives the input '{role}', too; drop one"
        )
    chosen = given if configured is None else configured
    if chosen is None:
        raise ConfigError(f"set `{field}`, or give the input '{role}' from the graph")
    return chosen


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
class StageSpec:
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

    def run(self, config: StageConfig, inputs: Inputs, context: Context) -> Result:
        """Run the stage in this process; its page is imported now, because it loads torch."""
        return importlib.import_module(f"stages.{self.name}").run(config, inputs, context)
