"""The base classes of all configuration: frozen blocks whose fields are semantic or operational."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

SEED_LIMIT = 2**26
"""Seeds of single responses are this seed times 1e11 plus their number, and have 63 bits."""


def semantic(default: Any = ..., description: str = "", **constraints: Any) -> Any:
    """Declare a config field that can change a stage's result, so it is part of the stage key."""
    extra: dict[str, Any] = {"semantic": True}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


def operational(default: Any = ..., description: str = "", **constraints: Any) -> Any:
    """Declare a config field that cannot change a stage's result; the stage key leaves it out."""
    extra: dict[str, Any] = {"semantic": False}
    return Field(default, description=description, json_schema_extra=extra, **constraints)


class Block(BaseModel):
    """A frozen piece of configuration; unknown keys are errors.

    Nothing is converted except an integer to a float: `true` and "8" are no numbers. Numbers are
    finite, because JSON has no others.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), strict=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _is_plain(cls, fields: object) -> object:
        """Take lists as tuples, since YAML and JSON have no tuples; refuse NUL in texts."""
        if not isinstance(fields, dict):
            return fields
        for key, value in fields.items():
            texts = value if isinstance(value, list | tuple) else [value]
            if any(isinstance(text, str) and "\0" in text for text in texts):
                raise ValueError(f"`{key}`: expected a text without NUL; remove the character")
        return {k: tuple(v) if isinstance(v, list) else v for k, v in fields.items()}


class TableEntryConfig(Block):
    """A block whose `name` selects a row of a table, e.g. of losses.

    Its other fields are keyword arguments of that row's function.
    """

    @property
    def entry(self) -> str:
        """Name of the row."""
        return type(self).model_fields["name"].default

    @property
    def hyperparameters(self) -> dict[str, float]:
        """Keyword arguments of the row's function."""
        return self.model_dump(exclude={"name"})


class ResourcesConfig(Block):
    """What a stage reserves on the Ray cluster."""

    num_workers: int = operational(
        1,
        "Number of processes that train together; changes results only by rounding.",
        gt=0,
        le=10_000,
    )
    num_cpus: float = operational(
        1, "CPU cores per worker; each worker uses as many threads.", gt=0
    )
    num_gpus: float = operational(0, "GPUs per worker.", ge=0)
    gpu_memory_gib: float | None = operational(
        None, "Memory of one GPU, in GiB; `ratchet plan` compares its estimates with it.", gt=0
    )
    memory_gib: float | None = operational(
        None, "Memory that Ray reserves per worker, in GiB; None reserves no memory.", gt=0
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

    takes_workers: ClassVar[bool] = False
    """Whether several processes may do the stage together."""

    seed: int = semantic(0, "Seed of all random numbers in the stage.", ge=0, lt=SEED_LIMIT)
    resources: ResourcesConfig = operational(
        ResourcesConfig(), "What the stage reserves on the cluster."
    )
    logging: LoggingConfig = operational(
        LoggingConfig(), "Where curves are written in addition to metrics.jsonl."
    )

    @model_validator(mode="after")
    def _runs_on_its_workers(self) -> Self:
        """Refuse several workers for a stage that trains nothing."""
        if self.resources.num_workers > 1 and not self.takes_workers:
            raise ValueError(
                f"resources.num_workers is {self.resources.num_workers}, and only stages that "
                "train a model run on several workers; set it to 1"
            )
        return self
