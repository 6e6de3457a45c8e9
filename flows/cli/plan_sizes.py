"""`ratchet plan`: memory per GPU, tokens and FLOPs of each step, before anything starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from rich.table import Table
from rich.text import Text

from flows.cli.terminal import Terminal
from flows.config.lifecycle_config import LifecycleConfig
from flows.recipe.outline import StepRunner
from stages.catalog import stage_of
from stages.configs.block import StageConfig
from stages.configs.model_config import ScratchModelConfig
from stages.configs.stage_record import ArtifactKind
from stages.sizes.dataset_rows import rows_made
from stages.sizes.estimates import size_of
from stages.sizes.model_at_hand import base_decoder
from stages.sizes.remedies import remedies
from stages.sizes.stage_size import GIB, StageSize
from tasks.refs import StageRef, pending_ref
from training_core.errors import RatchetError
from training_core.sizes.decoder import Decoder
from training_core.sizes.training_memory import Parts

Align = Literal["left", "right"]
PARTS = ("weights", "gradients", "optimizer", "activations", "kv_cache")
"""Columns of the table of memory; see `Parts`."""
NEXT_UNIT = 0.095


@dataclass
class SizedSteps:
    """Walks a recipe and estimates each step; see `StepRunner`."""

    config: LifecycleConfig
    decoder: Decoder
    refs: dict[str, StageRef] = field(default_factory=dict)
    sizes: dict[str, tuple[StageConfig, StageSize]] = field(default_factory=dict)
    _rows: dict[str, int | None] = field(default_factory=dict)

    def run(self, step: str, config: StageConfig, **inputs: StageRef | None) -> StageRef:
        """Estimate the step; its rows are those that earlier steps make."""
        given = [ref.step for ref in inputs.values() if ref is not None]
        made = [self._rows[name] for name in given if name in self._rows]
        known = [rows for rows in made if rows is not None]
        total = sum(known) if known and len(known) == len(made) else None
        policies = len([role for role in inputs if role == "baseline" or "policy" in role])
        size = size_of(config, self.decoder, given_rows=total, policies=policies)
        if size is not None:
            self.sizes[step] = (config, size)
        record = stage_of(config)
        if record.makes == "dataset":
            self._rows[step] = rows_made(config)
        self.refs[step] = pending_ref(record.name, step, record.makes)
        return self.refs[step]

    def registered(self, name: str, uri: str, kind: ArtifactKind) -> StageRef:
        """Take it: it costs nothing."""
        return pending_ref(uri, name, kind)

    def champion_ref(self) -> StageRef | None:
        """No champion: it has the shapes of the base model, too."""
        return None

    def promote_if_better(
        self, candidate: StageRef, evaluation: StageRef, reward_model: StageRef | None
    ) -> bool:
        """Do nothing: the match with the champion is like the evaluation."""
        del candidate, evaluation, reward_model
        return False


def show_sizes(
    console: Terminal,
    config: LifecycleConfig,
    steps: Callable[[StepRunner], None],
    *,
    downloads: bool = True,
) -> bool:
    """Print the sizes of all steps; one line instead if the base model's shapes are not at hand.

    Args:
        console: where to print.
        config: the lifecycle.
        steps: its recipe.
        downloads: whether the hub may be asked; it is asked again and again if it does not answer.

    Returns:
        Whether every step fits, as far as the config tells the memory of its workers.
    """
    start = config.start()
    if start is None or start.base is None:
        console.print("no estimate of memory and FLOPs: all given models are in the registry")
        return True
    base = start.base
    try:
        decoder = base_decoder(base, downloads=downloads)
    except RatchetError as error:
        console.print(f"no estimate of memory and FLOPs: {error}", soft_wrap=True)
        return True
    walk = SizedSteps(config, decoder)
    steps(walk)
    console.print(_memory(walk))
    console.print(_work(walk))
    if isinstance(base, ScratchModelConfig):
        console.print("Without embeddings: a scratch model's vocabulary comes from its data.")
    for step, (_, size) in walk.sizes.items():
        if host := size.together.host:
            gib = f"{host / GIB:.1f} GiB"
            console.print(f"{step}: each worker also holds {gib} of offloaded state in CPU memory")
    problems = [
        problem
        for step, (stage, size) in walk.sizes.items()
        if (problem := _problem(step, stage, size))
    ]
    for problem in problems:
        console.print(problem, style="red", soft_wrap=True)
    return not problems


def _memory(walk: SizedSteps) -> Table:
    table = _table(
        "memory per GPU in GiB, where a step needs most",
        ("step", "GPUs", "model"),
        (*(name.replace("_", " ") for name in PARTS), "all"),
    )
    for step, (_, size) in walk.sizes.items():
        gpus = f"{size.workers * size.num_gpus + size.gpus_apart:g}"
        first = (step, gpus)
        for role, parts in size.roles.items():
            _add(table, (*first, role.replace("_", " "), *_cells(parts)))
            first = ("", "")
        if len(size.roles) > 1:
            _add(table, ("", "", "together", *_cells(size.together)))
    return table


def _work(walk: SizedSteps) -> Table:
    table = _table(
        "work of each step, if every sequence has max_tokens",
        ("step", "most memory in"),
        ("tokens per step", "steps", "FLOPs per step", "FLOPs"),
    )
    for step, (_, size) in walk.sizes.items():
        work = size.work
        steps = "?" if work.steps is None else f"{work.steps:,}"
        tokens = "?" if work.tokens_per_step is None else f"{work.tokens_per_step:,.0f}"
        _add(
            table,
            (step, size.phase, tokens, steps, _flops(work.flops_per_step), _flops(work.flops)),
        )
    return table


def _table(title: str, texts: tuple[str, ...], numbers: tuple[str, ...]) -> Table:
    table = Table(title=Text(title))
    for name in texts:
        table.add_column(name, overflow="fold")  # a name that is cut could be that of another step
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def _add(table: Table, cells: tuple[str, ...]) -> None:
    table.add_row(*map(Text, cells))


def _cells(parts: Parts) -> list[str]:
    return [_gib(parts.on_gpu[name]) for name in PARTS] + [_gib(parts.total)]


def _gib(size: float) -> str:
    """Return GiB with one decimal, or with one digit if they are few."""
    gib = size / GIB
    return "" if not size else f"{gib:.1f}" if gib >= NEXT_UNIT else f"{gib:.1g}"


def _flops(number: float | None) -> str:
    return "?" if number is None else f"{number:.1e}".replace("e+", "e")


def _problem(step: str, config: StageConfig, size: StageSize) -> str | None:
    if size.fits:
        return None
    role, part = size.largest
    largest = size.roles[role].on_gpu[part] / GIB
    what = "GPU" if size.num_gpus else "worker (resources.memory_gib)"
    return (
        f"{step}: expected at most {size.limit_gib:.1f} GiB per {what}, found an estimate of "
        f"{size.together.total / GIB:.1f} GiB ({size.phase}); the largest part: "
        f"{part.replace('_', ' ')} of the {role.replace('_', ' ')}, {largest:.1f} GiB; "
        f"{remedies(config, part)}"
    )
