"""What every piece of configuration is made of: frozen blocks whose fields say what they change."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field


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


class ResourcesConfig(Block):
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


class WandbConfig(Block):
    """Curves at Weights & Biases."""

    project: str = operational(..., "Project that the run belongs to.", min_length=1)
    mode: Literal["online", "offline"] = operational(
        "online", "`offline` keeps the run in the attempt's folder, for `wandb sync`."
    )


class LoggingConfig(Block):
    """Where curves go besides `metrics.jsonl` and MLflow."""

    tensorboard: bool = operational(False, "Event files in the attempt's folder.")
    wandb: WandbConfig | None = operational(None, "Weights & Biases; None sends nothing.")


class StageConfig(Block):
    """What a person writes about one stage; every stage's Config derives from it."""

    seed: int = semantic(0, "Seed of every random choice in the stage.", ge=0)
    resources: ResourcesConfig = operational(
        ResourcesConfig(), "What the job reserves on the cluster."
    )
    logging: LoggingConfig = operational(LoggingConfig(), "Where curves go besides metrics.jsonl.")
