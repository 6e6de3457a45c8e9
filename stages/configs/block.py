"""The base classes of all configuration: frozen blocks whose fields are semantic or operational."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


def semantic(default: Any = ..., description: str = "", **constraints: Any) -> Any:
    """Declare a config field that can change a stage's result, so it is part of the stage key."""
    extra: dict[str, Any] = {"semantic": True}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


def operational(default: Any = ..., description: str = "", **constraints: Any) -> Any:
    """Declare a config field that cannot change a stage's result; the stage key leaves it out."""
    extra: dict[str, Any] = {"semantic": False}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


class Block(BaseModel):
    """A frozen piece of configuration; unknown keys are errors."""

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=()
    )


class ResourcesConfig(Block):
    """What a stage reserves on the Ray cluster."""

    num_workers: int = operational(
        1, "Number of processes that train together; changes results only by rounding.", gt=0
    )
    num_cpus: float = operational(
        1, "CPU cores per worker; each worker uses as many threads.", gt=0
    )
    num_gpus: float = operational(0, "GPUs per worker.", ge=0)
    memory_gib: float | None = operational(
        None, "Memory that Ray reserves per worker, in GiB; None reserves no memory."
    )


class WandbConfig(Block):
    """Curves at Weights & Biases."""

    project: str = operational(..., "Name of the project.", min_length=1)
    mode: Literal["online", "offline"] = operational(
        "online", "`offline` stores the run in the attempt's folder, for `wandb sync`."
    )


class LoggingConfig(Block):
    """Where curves are written in addition to `metrics.jsonl` and MLflow."""

    tensorboard: bool = operational(False, "Write event files in the attempt's folder.")
    wandb: WandbConfig | None = operational(
        None, "Send curves to Weights & Biases; None sends nothing."
    )


class StageConfig(Block):
    """The fields of every stage's config class, which derives from this class."""

    seed: int = semantic(0, "Seed of all random numbers in the stage.", ge=0)
    resources: ResourcesConfig = operational(
        ResourcesConfig(), "What the stage reserves on the cluster."
    )
    logging: LoggingConfig = operational(
        LoggingConfig(), "Where curves are written in addition to metrics.jsonl."
    )
