"""The commands that use a model after its training; `main` adds them to `ratchet`."""

from __future__ import annotations

import re
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from flows.cli.quick_imports import quick_imports
from flows.cli.shared_options import (
    ColumnsOption,
    HostOption,
    PortOption,
    TokenVariableOption,
    columns_of,
)

app = typer.Typer()

Model = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="<lifecycle>@<alias>, e.g. tiny@champion; <lifecycle>/<version>; a directory; "
        "or an id of the hub.",
    ),
]


class Engine(StrEnum):
    """What samples."""

    AUTO = "auto"
    VLLM = "vllm"
    TRANSFORMERS = "transformers"


class Dtype(StrEnum):
    """Type of a model's weights."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"


EngineOption = Annotated[
    Engine, typer.Option(help="auto: vLLM if it can run the model here, else transformers.")
]
TemperatureOption = Annotated[
    float, typer.Option(help="Of the sampled distribution; 0 takes the likeliest token.")
]
TopPOption = Annotated[
    float, typer.Option(help="Keep the likeliest tokens with this total probability.")
]
DtypeOption = Annotated[
    Dtype, typer.Option(help="Of the weights; vLLM has a dtype of its own on a GPU.")
]
ExportDtypeOption = Annotated[
    Dtype | None, typer.Option(help="Of the weights. By default that of the model.")
]


def _size(text: str) -> str:
    if not re.fullmatch(r"[1-9]\d*[KMGT]B", text):
        raise typer.BadParameter(f"expected a size as 500MB or 5GB, found {text!r}")
    return text


ShardOption = Annotated[
    str, typer.Option(help="Size of a file of weights, at most, e.g. 500MB.", callback=_size)
]
TemplateOption = Annotated[
    str | None,
    typer.Option(
        help="In place of the model's own: plain (for a base model), roles, chatml, …, or Jinja."
    ),
]


@app.command()
def generate(
    model: Model,
    *,
    prompts: Annotated[
        Path, typer.Option(help="A file as the stages read it, or .txt with a prompt per line.")
    ],
    out: Annotated[Path, typer.Option(help="File of JSON lines, one per response.")],
    responses: Annotated[int, typer.Option(help="Responses to each prompt.", min=1)] = 1,
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 1.0,
    top_k: Annotated[
        int | None, typer.Option(help="Keep the k likeliest tokens; by default all.")
    ] = None,
    min_p: Annotated[
        float, typer.Option(help="Keep tokens with this share of the largest probability.")
    ] = 0.0,
    max_response_tokens: Annotated[
        int | None,
        typer.Option(help="Limit of a response, in tokens; by default 256, or max_tokens / 2."),
    ] = None,
    max_tokens: Annotated[
        int | None,
        typer.Option(
            help="Limit of prompt and response; by default that of the model, at most 1024."
        ),
    ] = None,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same responses.")] = 0,
    engine: EngineOption = Engine.AUTO,
    dtype: DtypeOption = Dtype.FLOAT32,
    chat_template: TemplateOption = None,
) -> None:
    """Write responses of a model to a file of prompts. Run it again after an interruption."""
    with quick_imports():
        from flows.cli.generate import GenerateOptions
        from flows.cli.generate import generate as generate_responses

    rollouts = {
        "temperature": temperature,
        "top_p": top_p,
        "top_k": top_k,
        "min_p": min_p,
        "max_response_tokens": max_response_tokens,
        "max_tokens": max_tokens,
        "engine": engine.value,
    }
    options = GenerateOptions(rollouts, responses, seed, dtype.value, chat_template)
    generate_responses(model, prompts, out, options)


@app.command()
def chat(
    model: Model,
    other: Annotated[
        str | None,
        typer.Argument(metavar="MODEL2", help="A second model, to compare the answers."),
    ] = None,
    *,
    temperature: TemperatureOption = 1.0,
    top_p: TopPOption = 1.0,
    max_response_tokens: Annotated[int, typer.Option(help="Limit of an answer, in tokens.")] = 256,
    seed: Annotated[int, typer.Option(min=0, help="The same seed gives the same answers.")] = 0,
    dtype: DtypeOption = Dtype.FLOAT32,
) -> None:
    """Talk to a model in the terminal, or to two side by side. Lines from a pipe are answered."""
    with quick_imports():
        from flows.cli.talk import chat as talk

    rollouts = {
        "temperature": temperature,
        "top_p": top_p,
        "max_response_tokens": max_response_tokens,
    }
    names = [model] if other is None else [model, other]
    talk(names, rollouts, seed=seed, dtype=dtype.value)


@app.command()
def score(
    model: Annotated[
        str | None,
        typer.Argument(
            metavar="MODEL",
            help="A reward model: <lifecycle>@<alias>, e.g. tiny@reward_model, or as elsewhere.",
        ),
    ] = None,
    *,
    data: Annotated[Path, typer.Option(help="Rows with prompt and response, or pairs.")],
    out: Annotated[Path, typer.Option(help="File of JSON lines, one per row.")],
    column: ColumnsOption = None,
    reward: Annotated[
        list[str] | None,
        typer.Option(
            help="Fields of another reward, e.g. --reward name=maths; see docs/rewards.md."
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Do not normalise the scores of the reward model.")
    ] = False,
    dtype: DtypeOption = Dtype.FLOAT32,
) -> None:
    """Score responses or pairs with a reward model. Run it again after an interruption."""
    with quick_imports():
        from flows.cli.score import score as score_rows
        from flows.config.presets import parse_assignments

    columns, fields = columns_of(column or []), parse_assignments(reward or [])
    score_rows(model, data, out, columns=columns, reward=fields, raw=raw, dtype=dtype.value)


@app.command()
def export(
    model: Model,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New or empty directory.")],
    dtype: ExportDtypeOption = None,
    max_shard_size: ShardOption = "5GB",
) -> None:
    """Write a model as a clean directory; an adapter is merged into its base model."""
    with quick_imports():
        from flows.cli.export import export as export_to

    chosen = None if dtype is None else dtype.value
    export_to(model, directory, dtype=chosen, max_shard_size=max_shard_size)


@app.command()
def push(
    model: Model,
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Id on the hub: owner/name.")],
    *,
    private: Annotated[
        bool, typer.Option("--private", help="Only the owner of the repository may see it.")
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the model card and the files; upload nothing.")
    ] = False,
    dtype: ExportDtypeOption = None,
    max_shard_size: ShardOption = "5GB",
) -> None:
    """Upload a model with a model card (its lineage, data, metrics and gate) to the hub."""
    with quick_imports():
        from flows.cli.push import push as push_to

    push_to(
        model,
        repo,
        private=private,
        dry_run=dry_run,
        dtype=None if dtype is None else dtype.value,
        max_shard_size=max_shard_size,
    )


@app.command()
def serve(
    model: Model,
    *,
    port: PortOption = 8000,
    host: HostOption = "127.0.0.1",
    token_variable: TokenVariableOption = "RATCHET_SERVE_TOKEN",
    engine: EngineOption = Engine.AUTO,
    dtype: DtypeOption = Dtype.FLOAT32,
    max_tokens: Annotated[
        int | None,
        typer.Option(help="vLLM's limit of prompt and response; by default the model's.", min=2),
    ] = None,
) -> None:
    """Serve a model with OpenAI's interface: /v1/models, chat/completions and completions."""
    with quick_imports():
        from flows.cli import serve as service

    service.serve(
        model,
        host=host,
        port=port,
        token_variable=token_variable,
        engine=engine.value,
        dtype=dtype.value,
        max_tokens=max_tokens,
    )


@app.command()
def merge(
    base: Annotated[str, typer.Argument(help="Directory or hub id of the full model.")],
    adapter: Annotated[Path, typer.Argument(help="Directory that PEFT wrote.")],
    output: Annotated[Path, typer.Argument(help="New directory for the merged model.")],
    reward_model: Annotated[
        bool,
        typer.Option("--reward-model", help="It is a reward model: keep the head that scores."),
    ] = False,
) -> None:
    """Merge a PEFT adapter into its base model, and write the full model with its tokenizer."""
    with quick_imports():
        from flows.cli import terminal
        from training_core.models.merging import merge as merge_adapter

    merge_adapter(base, adapter, output, is_reward_model=reward_model)
    terminal.echo(output)
