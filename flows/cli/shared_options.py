"""Arguments and options that several commands have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer

from training_core.errors import ConfigError

PresetArgument = Annotated[str, typer.Argument(help="A preset, or the path of a .yaml file.")]
ChangesArgument = Annotated[
    list[str] | None, typer.Argument(help="Changes to the preset, e.g. ppo.kl_coef=0.1.")
]
FlowOption = Annotated[str, typer.Option(help="full-rlhf, iterative-dpo or raft.")]
HostOption = Annotated[
    str, typer.Option(help="Address to listen at; others than loopback need a token.")
]
PortOption = Annotated[
    int, typer.Option(help="Port to listen at; 0 takes a free one.", min=0, max=65535)
]
TokenVariableOption = Annotated[
    str, typer.Option(help="Environment variable that holds the token of the service.")
]
ColumnsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column", metavar="ROLE=COLUMN", help="Name of a column, e.g. chosen=good; repeatable."
    ),
]


def columns_of(assignments: Sequence[str]) -> Mapping[str, str]:
    """Return role -> column of `--column chosen=good`.

    Raises:
        ConfigError: for one without a role or a column.
    """
    found: dict[str, str] = {}
    for assignment in assignments:
        role, _, column = assignment.partition("=")
        if not role or not column:
            raise ConfigError(
                f"--column: expected <role>=<column>, found '{assignment}'; e.g. chosen=good"
            )
        found[role] = column
    return found
