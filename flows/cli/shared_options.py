"""Arguments and options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

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
