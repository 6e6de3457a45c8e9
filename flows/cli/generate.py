"""`ratchet generate`: responses of a model to a file of prompts, one JSON line each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from transformers import PreTrainedTokenizerBase

from flows.cli import terminal
from flows.cli.row_progress import RowProgress
from flows.model_use.model_kind import require_kind
from flows.model_use.named_model import NamedModel, find_model
from flows.model_use.row_file import RowFile, row_file
from flows.model_use.sampling_options import rollout_config
from stages import datasets
from stages.configs.data_config import FileDataConfig
from stages.configs.sampling_config import TruncatedRolloutConfig
from stages.datasets import PromptRow
from stages.runtime.stage_key import digest_of_file, semantic_part
from stages.sampling.rollouts import encode_rows, engine_kind, sampling_of
from stages.training.engines import best_device
from training_core.data.templates import CHAT_TEMPLATES, chat_template
from training_core.errors import ConfigError, DataError
from training_core.models import hub
from training_core.rollout.engine_spec import EngineSpec
from training_core.rollout.sampling import RolloutRequest
from training_core.rollout.transformers_engine import MAX_ROWS
from training_core.types import Prompt, Rollout

BATCH_ROWS = {"transformers": MAX_ROWS, "vllm": 8 * MAX_ROWS}
"""Responses that are written at once; an interruption loses at most so many."""

USUAL_MAX_TOKENS, USUAL_RESPONSE_TOKENS = 1024, 256
GPU_MEMORY_FRACTION = 0.9
"""Share of a GPU for vLLM: nothing else is there."""


@dataclass(frozen=True)
class GenerateOptions:
    """What a person chooses beside model and files.

    Attributes:
        rollouts: fields of `TruncatedRolloutConfig`; those that are None keep their defaults.
        responses: number of responses to each prompt.
        seed: the same seed, prompts, settings and model give the same responses.
        dtype: type of the weights in the transformers engine.
        template: name of a chat template, or one in Jinja, in place of the model's own.
    """

    rollouts: Mapping[str, Any]
    responses: int = 1
    seed: int = 0
    dtype: str = "float32"
    template: str | None = None


@dataclass(frozen=True)
class _Job:
    """Everything that the sampling needs."""

    model: NamedModel
    tokenizer: PreTrainedTokenizerBase
    kind: Literal["vllm", "transformers"]
    rollouts: TruncatedRolloutConfig
    options: GenerateOptions
    prompts: Sequence[Prompt]
    keys: Sequence[Mapping[str, Any]]


def generate(name: str, prompts: Path, out: Path, options: GenerateOptions) -> None:
    """Write responses of a model to a file; go on where an earlier call was interrupted.

    Args:
        name: the model; see `find_model`.
        prompts: a file of any format that the stages read, or a `.txt` file with a prompt per line.
        out: the file of responses.
        options: how they are sampled.

    Raises:
        ConfigError: for a wrong option, or if `out` was made with other settings.
        DataError: if prompts or model cannot be read.
    """
    terminal.hide_loading_bars()
    rows = prompt_rows(prompts)
    model = find_model(name)
    config = hub.load_config(model.directory)
    require_kind(config, "policy", model.name)
    tokenizer = _tokenizer_of(model, options.template)
    rollouts = _rollouts(options.rollouts, config)
    kind = engine_kind(rollouts, config)
    encoded = encode_rows(rows, tokenizer, rollouts)
    keys = [
        {"id": prompt.columns.get("id", prompt.id), "number": number}
        for prompt in encoded
        for number in range(1, options.responses + 1)
    ]
    settings = {
        "command": "generate",
        "model": model.digest,
        "prompts": digest_of_file(prompts),
        "chat_template": options.template,
        "responses": options.responses,
        "seed": options.seed,
        **semantic_part(rollouts),
        "engine": kind,
        "dtype": options.dtype,
    }
    with row_file(out, settings, keys) as file:
        if file.done < len(keys):
            _fill(file, _Job(model, tokenizer, kind, rollouts, options, encoded, keys))
    terminal.echo(f"{len(keys)} responses to {len(encoded)} prompts are in {out}")


def prompt_rows(path: Path) -> list[PromptRow]:
    """Read the prompts of a file; in a `.txt` file every line that is not blank is one.

    Raises:
        DataError: if it cannot be read, or has none.
    """
    if path.suffix != ".txt":
        return datasets.prompts(FileDataConfig(path=str(path)))
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as text: {error}; give another file") from error
    rows = [
        PromptRow(({"role": "user", "content": line},), where=f"{path.name}, line {number}")
        for number, line in enumerate(lines, 1)
        if line.strip()
    ]
    if not rows:
        raise DataError(f"{path}: expected a prompt per line, found none; add some")
    return rows


def _tokenizer_of(model: NamedModel, template: str | None) -> PreTrainedTokenizerBase:
    tokenizer = hub.load_tokenizer(model.directory)
    if template is not None:
        tokenizer.chat_template = chat_template(template)
    if not tokenizer.chat_template:
        raise ConfigError(
            f"the tokenizer of {model.name} has no chat template, so no prompt can be rendered; "
            "give --chat-template plain to continue the texts of the prompts, one of "
            f"{', '.join(sorted(CHAT_TEMPLATES))}, or a Jinja template"
        )
    return tokenizer


def _rollouts(fields: Mapping[str, Any], model: Any) -> TruncatedRolloutConfig:
    """Return the config of the options; a model that takes few tokens has other defaults."""
    given = {name: value for name, value in fields.items() if value is not None}
    limit = getattr(model, "max_position_embeddings", None)
    max_tokens = given.get("max_tokens") or min(limit or USUAL_MAX_TOKENS, USUAL_MAX_TOKENS)
    if limit is not None and max_tokens > limit:
        raise ConfigError(
            f"max_tokens {max_tokens} is more than the {limit} tokens that the model takes; lower "
            "--max-tokens"
        )
    usual = {
        "max_tokens": max_tokens,
        "max_response_tokens": min(USUAL_RESPONSE_TOKENS, max_tokens // 2),
        "gpu_memory_fraction": GPU_MEMORY_FRACTION,
    }
    return rollout_config(usual | given)


def _fill(file: RowFile, job: _Job) -> None:
    engine = EngineSpec(
        kind=job.kind,
        directory=job.model.directory,
        tokenizer=job.tokenizer,
        dtype=getattr(torch, job.options.dtype),
        device=best_device().type,
        max_tokens=job.rollouts.max_tokens,
        gpu_memory_fraction=job.rollouts.gpu_memory_fraction,
    ).open()
    with RowProgress("responses", file.done, len(job.keys)) as progress:

        def make(numbers: range) -> list[dict[str, Any]]:
            engine.submit([_request(job, i) for i in numbers])
            found: dict[str, Rollout] = {}
            for number, rollout in engine.finished():
                found[number] = rollout
                if int(number) >= file.done:
                    progress.advance()
            return [_row(job.keys[i], found[str(i)]) for i in numbers]

        file.fill(len(job.keys), make, batch_rows=BATCH_ROWS[job.kind])
    engine.close()


def _request(job: _Job, number: int) -> RolloutRequest:
    """Return the request with the seed that the stages give to this place, too."""
    prompt = job.prompts[number // job.options.responses]
    seed = job.options.seed * 1_000_003 + number
    return RolloutRequest(str(number), prompt, sampling_of(job.rollouts), seed)


def _row(key: Mapping[str, Any], rollout: Rollout) -> dict[str, Any]:
    """Return the line of a response; other columns of its prompt are kept, e.g. the answer."""
    row = {
        **key,
        "prompt": list(rollout.prompt.messages),
        "response": rollout.text,
        "finish_reason": "stop" if rollout.is_finished else "length",
        "finished": rollout.is_finished,  # the name that the stages read
        "tokens": len(rollout.response_ids),
        "logprob_mean": fmean(rollout.logprobs),
    }
    return {**row, **{k: v for k, v in rollout.prompt.columns.items() if k not in row}}
