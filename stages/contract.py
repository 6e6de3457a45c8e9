"""What every stage agrees on: Config, Inputs, Context, Result, and how a process ends.

A stage is one page with a `Config`, and `run(config, inputs, context) -> Result`. It knows neither
Prefect nor MLflow.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field

from training_core.ranks import ALONE, Ranks

ArtifactKind = Literal["policy", "reward_model", "process_reward_model", "dataset", "evaluation"]


class ExitCode(IntEnum):
    """Why a stage's process ended; the task that follows it retries only what is transient."""

    DONE = 0
    LOST_THE_RACE = 10
    BAD_INPUT = 20
    NON_FINITE = 30
    MISMATCH = 31
    DISK_FULL = 40
    TRANSIENT = 75
    STOPPED = 143


def semantic(default: Any = ..., description: str = "", **constraints: Any) -> Any:
    """Declare a config field that can change a stage's result, and so is part of the stage key."""
    extra: dict[str, Any] = {"semantic": True}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


def operational(default: Any = ..., description: str = "", **constraints: Any) -> Any:
    """Declare a config field that changes only how fast, where or how visibly a stage runs."""
    extra: dict[str, Any] = {"semantic": False}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


class Block(BaseModel):
    """A frozen piece of configuration; unknown keys are errors."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=()
    )


class Resources(Block):
    """What a stage asks of the Ray cluster."""

    num_workers: int = operational(
        1, "Processes that train together; changes only the rounding.", gt=0
    )
    num_cpus: float = operational(
        1, "CPU cores that each worker reserves and uses as threads.", gt=0
    )
    num_gpus: float = operational(0, "GPUs that each worker reserves.", ge=0)
    memory_gib: float | None = operational(
        None, "Memory that each worker reserves, in GiB; None reserves none."
    )


class WandbLogging(Block):
    """Curves at Weights & Biases."""

    project: str = operational(..., "Project that the run belongs to.", min_length=1)
    mode: Literal["online", "offline"] = operational(
        "online", "`offline` keeps the run in the attempt's folder, for `wandb sync`."
    )


class Logging(Block):
    """Where curves go besides `metrics.jsonl` and MLflow."""

    tensorboard: bool = operational(False, "Event files in the attempt's folder.")
    wandb: WandbLogging | None = operational(None, "Weights & Biases; None sends nothing.")


class StageConfig(Block):
    """What a person writes about one stage; every stage's Config derives from it."""

    seed: int = semantic(0, "Seed of every random choice in the stage.", ge=0)
    resources: Resources = operational(Resources(), "What the job reserves on the cluster.")
    logging: Logging = operational(Logging(), "Where curves go besides metrics.jsonl.")


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
        attempt_dir: this attempt's own directory; checkpoints and the artifact go below it.
        earlier_attempts: directories of earlier attempts at the same key, newest first; read only.
        sink: where curves and progress go.
        should_stop: becomes true after SIGTERM; a training stage then saves and raises
            `StoppedError`.
        input_digests: content digest of each input, by role.
        cache_dir: where a stage keeps what another one may need again, named by content; None
            keeps nothing.
        ranks: this process among those that run the stage together.
    """

    attempt_dir: Path
    sink: MetricSink
    earlier_attempts: tuple[Path, ...] = ()
    should_stop: Callable[[], bool] = lambda: False
    input_digests: Mapping[str, str] = field(default_factory=dict)
    cache_dir: Path | None = None
    ranks: Ranks = ALONE

    @property
    def artifact_dir(self) -> Path:
        """Where the stage leaves what it made; of several ranks the first one's is kept."""
        own = self.attempt_dir
        return (own if self.ranks.is_first else own / f"rank-{self.ranks.rank}") / "artifact"

    @property
    def checkpoint_roots(self) -> tuple[Path, ...]:
        """Directories that may hold checkpoints of this stage, this attempt's own first."""
        return tuple(d / "checkpoints" for d in (self.attempt_dir, *self.earlier_attempts))


@dataclass(frozen=True)
class Result:
    """What a stage made: the files below `context.artifact_dir`, and numbers that describe them."""

    kind: ArtifactKind
    metrics: Mapping[str, float] = field(default_factory=dict)


Inputs = Mapping[str, Path]
"""Local directories that the graph provides, by role.

`policy`, `reference`, `reward_model`, `dataset`, …
"""


@dataclass(frozen=True)
class StageSpec:
    """One row of the stage table.

    Attributes:
        name: the stage's name, as in the store, in job ids and on the command line.
        page: the module that holds `Config` and `run`.
        version: raised when the stage's results change for an unchanged config; part of the stage
            key.
        required: input roles that must be given.
        optional: input roles that may be given.
        families: beginnings of further roles, as `policy_`, of which any number may be given.
    """

    name: str
    page: str
    version: int
    required: tuple[str, ...] = ()
    optional: tuple[str, ...] = ()
    families: tuple[str, ...] = ()

    def config_class(self) -> type[StageConfig]:
        """Import the stage's page (which is light) and return its Config."""
        return importlib.import_module(self.page).Config

    def run(self, config: StageConfig, inputs: Inputs, context: Context) -> Result:
        """Run the stage in this process."""
        return importlib.import_module(self.page).run(config, inputs, context)
