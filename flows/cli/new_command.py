"""The command `ratchet new`; `main` adds it to `ratchet`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from flows.cli.shared_options import ColumnsOption, columns_of

app = typer.Typer()

FolderArgument = Annotated[
    Path, typer.Argument(metavar="DIR", help="Folder for the preset; created if needed.")
]
ModelOption = Annotated[
    str | None,
    typer.Option(help="Model to start from: a folder, a hub id, or models:/<name>@<alias>."),
]
DataOption = Annotated[
    str | None, typer.Option(help="File with the rows: json, jsonl, csv, parquet, …; or a glob.")
]
MethodOption = Annotated[
    str | None,
    typer.Option(
        help="sft, continued-pretraining, dpo, orpo, simpo, kto, grpo, ppo, rejection-sampling, "
        "iterative-dpo, reward-model, process-reward or distillation. By default what the columns "
        "of the file suggest."
    ),
]
HeldOutOption = Annotated[
    str | None, typer.Option(help="File with held-out rows of the same kind.")
]
TeacherOption = Annotated[
    str | None, typer.Option(help="Model to learn from; only for distillation.")
]
GpusOption = Annotated[
    int | None, typer.Option(help="GPUs to train on. By default those of this machine.", min=0)
]
LoraOption = Annotated[
    bool, typer.Option("--lora", help="Train a low-rank adapter instead of all weights.")
]
OverwriteOption = Annotated[
    bool, typer.Option("--overwrite", help="Replace the preset if there is one.")
]
YesOption = Annotated[
    bool, typer.Option("--yes", "-y", help="Ask nothing; take what the file suggests.")
]


@app.command()
def new(
    directory: FolderArgument,
    *,
    model: ModelOption = None,
    data: DataOption = None,
    method: MethodOption = None,
    eval_data: HeldOutOption = None,
    teacher: TeacherOption = None,
    column: ColumnsOption = None,
    gpus: GpusOption = None,
    lora: LoraOption = False,
    overwrite: OverwriteOption = False,
    yes: YesOption = False,
) -> None:
    """Write a commented preset for your own data, check the data, and print the next command.

    In a terminal it asks for what is not given. Exit code 1 if a problem in the data would stop
    the run; the preset is written all the same.
    """
    from flows.cli.new import Wishes, write_new

    wishes = Wishes(
        model,
        data,
        method,
        eval_data=eval_data,
        teacher=teacher,
        columns=columns_of(column or []),
        gpus=gpus,
        lora=lora,
        may_overwrite=overwrite,
        may_ask=not yes,
    )
    raise typer.Exit(0 if write_new(directory, wishes) else 1)
