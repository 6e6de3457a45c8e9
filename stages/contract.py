"""The types that every stage uses: `Inputs`, `Context` and `Result`.

A stage is a module with `run(config, inputs, context) -> Result`. Its config class and its record
are in `stages.configs`. It imports neither Prefect nor MLflow.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeVar

from stages.attempt import Attempt
from training_core.dist_info import SINGLE_PROCESS, DistInfo
from training_core.errors import ConfigError

if TYPE_CHECKING:
    from stages.configs.placement_config import ApartConfig, ApartScoringConfig
    from training_core.rewards.reward import Reward
    from training_core.rollout.engine_process import EngineHost

T = TypeVar("T")


class MetricSink(Protocol):
    """Where a stage writes its curves."""

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record `metrics` at `step`: an optimizer step, a round of PPO, or an item."""
        ...

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Record that `done` of `total` steps or items are finished."""
        ...

    def rewind(self, history: Path, step: int) -> None:
        """Start the curves with what the file `history` has up to `step`."""
        ...


class Cluster(Protocol):
    """Gives parts of a stage resources of their own."""

    def engine_host(self, placement: ApartConfig) -> EngineHost:
        """Return where rollout engines are started."""
        ...

    def reward(self, placement: ApartScoringConfig, build: Callable[[], Reward]) -> Reward:
        """Return a reward that processes elsewhere compute.

        Args:
            placement: number of processes, and the resources of each.
            build: builds the reward in each of them; it can be pickled.
        """
        ...


@dataclass(frozen=True)
class Context:
    """What a stage receives in addition to its config and inputs.

    Attributes:
        attempt: this attempt; checkpoints and artifact are written into its directory.
        earlier_attempts: earlier attempts at the same key, newest first; only for reading.
        sink: where curves and progress go.
        should_stop: becomes true after SIGTERM; a training stage then saves and raises
            `StoppedError`.
        input_digests: content digest of each input, by role.
        cache_dir: folder of results that another stage may use again, named by content; None
            keeps nothing.
        dist_info: rank of this process, and the number of processes of the stage.
        cluster: places what is apart; None without one, e.g. outside of a Ray job.
    """

    attempt: Attempt
    sink: MetricSink
    earlier_attempts: tuple[Attempt, ...] = ()
    should_stop: Callable[[], bool] = lambda: False
    input_digests: Mapping[str, str] = field(default_factory=dict)
    cache_dir: Path | None = None
    dist_info: DistInfo = SINGLE_PROCESS
    cluster: Cluster | None = None

    @property
    def artifact_dir(self) -> Path:
        """Folder for the stage's output; with several ranks, only that of the first is kept."""
        return self.attempt.of_rank(self.dist_info.rank).artifact

    @property
    def checkpoint_roots(self) -> tuple[Path, ...]:
        """Folders that may hold checkpoints of this stage, starting with this attempt's."""
        return tuple(a.checkpoints for a in (self.attempt, *self.earlier_attempts))


@dataclass(frozen=True)
class Result:
    """Numbers that describe the artifact, which the stage wrote into `context.artifact_dir`.

    Attributes:
        metrics: of the artifact.
        sampled_tokens: how long all responses were that the stage sampled to make it.
    """

    metrics: Mapping[str, float] = field(default_factory=dict)
    sampled_tokens: int = 0


Inputs = Mapping[str, Path]
"""Local directories that earlier steps of the flow provide, by role.

`policy`, `reference`, `reward_model`, `dataset`, …
"""


def resolve_source(field: str, configured: T | None, role: str, inputs: Inputs) -> T | Path:
    """Return the source from the config, or else the input from an earlier step.

    Raises:
        ConfigError: if both or neither are given.
    """
    given = inputs.get(role)
    if configured is not None and given is not None:
        raise ConfigError(
            f"`{field}` is set, but an earlier step provides the input '{role}'; remove `{field}`"
        )
    chosen = given if configured is None else configured
    if chosen is None:
        raise ConfigError(
            f"`{field}` is not set, and no earlier step provides the input '{role}'; set it"
        )
    return chosen
