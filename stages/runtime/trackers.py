"""Optional copies of the curves in TensorBoard and Weights & Biases.

Only this module imports them. They are copies of `metrics.jsonl`, which stays authoritative; a
resumed stage continues its curves.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from stages.attempt import Attempt
from stages.configs.block import LoggingConfig, WandbConfig
from stages.contract import MetricSink
from stages.files import read_jsonl
from stages.runtime.metric_files import FileSink
from stages.runtime.store import Request
from training_core.errors import ConfigError

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

RUN_ID_DIGITS = 32
"""Number of digits of the stage key in a run's id; Weights & Biases allows 64 characters."""


@contextmanager
def open_sinks(attempt: Attempt, request: Request, logging: LoggingConfig) -> Iterator[MetricSink]:
    """Open the file sink, and those that `logging` enables; close them when the body ends.

    Args:
        attempt: their files are written into its directory.
        request: contains stage and key.
        logging: the sinks to open.

    Raises:
        ConfigError: if the package of a sink is not installed.
    """
    copies: list[TensorBoardSink | WandbSink] = []
    if logging.tensorboard:
        _require("tensorboard")
        copies.append(TensorBoardSink(attempt, request.stage))
    if logging.wandb is not None:
        _require("wandb")
        copies.append(WandbSink(attempt, request, logging.wandb))
    try:
        files = FileSink(attempt, request.stage)
        yield Sinks((files, *copies)) if copies else files
    finally:
        for sink in copies:
            sink.close()


def _require(package: str) -> None:
    if find_spec(package) is None:
        raise ConfigError(
            f"logging.{package} needs the package {package}, which is not installed; "
            f"`pip install ratchet-rlhf[{package}]`, or remove the setting"
        )


class Sinks:
    """Several sinks as one, the file sink first."""

    def __init__(self, sinks: Sequence[MetricSink]) -> None:
        self._sinks = sinks

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Record in each sink."""
        for sink in self._sinks:
            sink.log(step, metrics)

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Record in each sink."""
        for sink in self._sinks:
            sink.progress(done, total, text)

    def rewind(self, history: Path, step: int) -> None:
        """Rewind each sink; the others read the file that the first, the file sink, has kept."""
        for sink in self._sinks:
            sink.rewind(history, step)


class TensorBoardSink:
    """Event files in `<attempt>/tensorboard`, which a resumed stage writes again from the start.

    Args:
        attempt: the event files are written into its directory.
        stage: put before each metric's name.
    """

    def __init__(self, attempt: Attempt, stage: str) -> None:
        self._stage, self._folder = stage, attempt.tensorboard
        self._metrics = attempt.metrics
        self._writer: SummaryWriter | None = None

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._add(step, {f"{self._stage}/{name}": value for name, value in metrics.items()}, None)

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Do nothing: that is in `progress.json`."""

    def rewind(self, history: Path, step: int) -> None:
        """Write the curves that the file sink has kept."""
        del history, step
        self.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        for line in read_jsonl(self._metrics):
            self._add(line["step"], line["metrics"], line["time"])

    def _add(self, step: int, named: Mapping[str, float], wall_time: float | None) -> None:
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            self._writer = SummaryWriter(str(self._folder))
        for name, value in named.items():
            self._writer.add_scalar(name, value, step, walltime=wall_time)

    def close(self) -> None:
        """Write what is still in memory."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


class WandbSink:
    """A run whose id has the stage key, so that every attempt at it continues the same curves.

    Steps that an attempt repeats after a resume are the same bit for bit; Weights & Biases keeps
    the first. The API key comes from the node's environment (WANDB_API_KEY).

    Args:
        attempt: its files are written into its directory.
        request: contains stage, key and the config that is shown with the run.
        settings: project and mode.
    """

    def __init__(self, attempt: Attempt, request: Request, settings: WandbConfig) -> None:
        import wandb

        self._stage = request.stage
        try:
            self._run = wandb.init(
                project=settings.project,
                id=f"{request.stage}-{request.key[:RUN_ID_DIGITS]}",
                name=f"{request.step}-{request.key[:12]}",
                mode=settings.mode,
                resume="allow",
                dir=str(attempt.directory),
                config=request.config,
            )
        except wandb.Error as error:
            raise ConfigError(
                f"Weights & Biases did not start a run in project '{settings.project}': {error}; "
                "set WANDB_API_KEY on the node, or set logging.wandb.mode to offline"
            ) from error

    def log(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add one point to each curve."""
        self._run.log({f"{self._stage}/{n}": v for n, v in metrics.items()}, step=step)

    def progress(self, done: int, total: int, text: str = "") -> None:
        """Do nothing: that is in `progress.json`."""

    def rewind(self, history: Path, step: int) -> None:
        """Do nothing: sent points stay, and repeated points are the same."""

    def close(self) -> None:
        """Send what is still in memory."""
        self._run.finish()
