"""The choices of a person as the text of a commented preset."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from flows.new_preset.methods import METHODS
from flows.new_preset.model_facts import ModelFacts

TEMPLATES = Path(__file__).with_name("templates")
MAX_TOKENS = 2048
"""Longest example by default (Zephyr's SFT, OpenRLHF's Llama 3 examples)."""

MAX_CPUS = 8
"""CPU cores of a worker, at most; more do not help to feed a GPU or a small model."""

LARGEST_BATCH = 64
SMALLEST_BATCH = 16
"""KTO's baseline is a mean over the batch, and needs so many rows."""
STEPS_PER_PASS = 50
"""Fewer optimizer steps than that learn little, so that fewer rows have a smaller batch."""

BLANK_LINES_IN_BLOCKS = re.compile(r"\n(?:[ \t]*\n)+(?= )")
BLANK_LINES = re.compile(r"\n{3,}")


@dataclass(frozen=True)
class Machine:
    """Where the preset is to run; with `gpus` 0 on CPUs. A memory of None is not known."""

    cpus: int = 2
    gpus: int = 0
    gpu_memory_gib: int | None = None

    @property
    def resources_of_one(self) -> dict[str, int]:
        """What one worker with a GPU reserves."""
        cpus = max(1, min(MAX_CPUS, self.cpus // max(1, self.gpus)))
        memory = {"gpu_memory_gib": self.gpu_memory_gib} if self.gpu_memory_gib else {}
        return {"num_cpus": cpus, "num_gpus": 1, **memory}

    @property
    def resources(self) -> dict[str, int]:
        """What a stage reserves that trains on all GPUs."""
        return {"num_workers": self.gpus, **self.resources_of_one}


@dataclass(frozen=True)
class Choices:
    """What a person has chosen, and what is known of it.

    Attributes:
        name: of the lifecycle.
        method: an entry of `METHODS`.
        file: path of the preset, for the commands in its comments.
        model: the model as a text of `given`.
        base: the same as a block of `sft.base`.
        path: the data, relative to the preset.
        rows: their number.
        columns: role -> column, where the file has other names.
        eval_path: held-out data of the same kind.
        teacher: the second model of distillation.
        answers: column with the correct answers.
        answers_are_numbers: whether they can be compared as mathematics.
        facts: what is known of the model; None if it is not at hand.
        machine: where it is to run.
        lora: whether to train an adapter.
    """

    name: str
    method: str
    file: str
    model: str
    base: Mapping[str, str]
    path: str
    rows: int
    columns: Mapping[str, str] = field(default_factory=dict)
    eval_path: str | None = None
    teacher: str | None = None
    answers: str | None = None
    answers_are_numbers: bool = False
    facts: ModelFacts | None = None
    machine: Machine = field(default_factory=Machine)
    lora: bool = False

    @property
    def about(self) -> str:
        """What the method does."""
        return METHODS[self.method].about

    @property
    def example(self) -> str:
        """A change of one key."""
        return METHODS[self.method].example

    @property
    def batch_size(self) -> int:
        """The largest power of two with enough steps per pass, and a row for each worker."""
        sizes = [SMALLEST_BATCH, 32, LARGEST_BATCH]
        fitting = [size for size in sizes if self.rows // size >= STEPS_PER_PASS]
        return max(self.machine.gpus, *fitting, SMALLEST_BATCH)

    @property
    def steps(self) -> int:
        """Optimizer steps per pass."""
        return max(1, self.rows // self.batch_size)

    @property
    def max_tokens(self) -> int:
        """Longest example: a usual length, or what the model can read."""
        positions = self.facts.positions if self.facts else None
        return min(MAX_TOKENS, positions or MAX_TOKENS)

    @property
    def max_response_tokens(self) -> int:
        """Half of what the model can read is left for the prompt."""
        return self.max_tokens // 2

    @property
    def micro_batch_tokens(self) -> int:
        """Some examples at once."""
        return 4 * self.max_tokens

    @property
    def prompts_per_step(self) -> int:
        """Prompts of a round of reinforcement learning."""
        return max(1, self.machine.gpus, min(LARGEST_BATCH, self.rows))

    @property
    def rounds(self) -> int:
        """Rounds until every prompt was used once."""
        return max(1, self.rows // self.prompts_per_step)

    @property
    def is_divided(self) -> bool:
        """Whether several GPUs divide the state of all weights; an adapter is small."""
        return self.machine.gpus > 1 and not self.lora


def preset_text(choices: Choices) -> str:
    """Return the YAML of the preset, with a comment for each key."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["yaml"] = _as_yaml
    text = environment.get_template("preset.yaml.j2").render(it=choices)
    return BLANK_LINES.sub("\n\n", BLANK_LINES_IN_BLOCKS.sub("\n", text)).strip() + "\n"


def _as_yaml(value: Any) -> str:
    """Return a value in YAML's flow style, on one line."""
    value = dict(value) if isinstance(value, Mapping) else value
    text = yaml.safe_dump(
        value, default_flow_style=True, width=float("inf"), sort_keys=False, allow_unicode=True
    )
    return text.removesuffix("...\n").strip()
