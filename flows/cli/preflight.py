"""`ratchet preflight`: every step and gate of a preset, tiny, on this machine's CPUs."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from rich.table import Table
from rich.text import Text
from transformers.utils.logging import disable_progress_bar

from flows.cli.recipes import recipe_of
from flows.cli.terminal import Terminal
from flows.config.lifecycle_config import LifecycleConfig
from flows.config.presets import load_config
from flows.preflight.miniature import miniature
from flows.preflight.rehearsal import Rehearsal, RehearsalError
from flows.preflight.stand_ins import StandIns
from flows.recipe.outline import step_names


def preflight(
    preset: str, flow: str, overrides: Mapping[str, object], *, max_workers: int | None = None
) -> bool:
    """Rehearse a flow with a preset and print what each step did.

    Args:
        preset: a file of deployments/presets.
        flow: `full-rlhf`, `iterative-dpo` or `raft`.
        overrides: changes to the preset.
        max_workers: workers of a step, at most; None: as many as it has.

    Returns:
        Whether every step was done.

    Raises:
        ConfigError: for an unknown flow or a config that is not valid.
    """
    recipe, console = recipe_of(flow), Terminal()
    config = load_config(preset, overrides)
    disable_progress_bar()
    folder = Path(tempfile.mkdtemp(prefix="ratchet-preflight-"))
    stand_ins = StandIns(folder)
    small = miniature(config, stand_ins, max_workers=max_workers)
    for name, note in stand_ins.notes.items():
        console.print(Text(f"{name}: {note}"), soft_wrap=True)
    steps = step_names(recipe, small)

    def starts(step: str) -> None:
        console.print(Text(f"{len(rehearsal.done) + 1} of {len(steps)}: {step}"))

    fork_servers = Path(tempfile.mkdtemp(prefix="ratchet-"))
    rehearsal = Rehearsal(small, folder, fork_servers, starts)
    try:
        recipe(rehearsal)
    except RehearsalError as error:  # its log stays
        console.print(Text(str(error), style="red"), soft_wrap=True)
        return False
    finally:
        shutil.rmtree(fork_servers)
        console.print(_table(f"{flow}/{preset}, rehearsed", rehearsal))
    shutil.rmtree(folder)
    if rehearsal.verdict:
        console.print(
            "The gate has judged; its numbers mean nothing here, as the models are random:"
        )
        for check in rehearsal.verdict.reasons:
            console.print(Text(f"  {check.name} {check.expected}, found {check.found}"))
    for line in unseen(config):
        console.print(Text(f"Not shown here: {line}"), soft_wrap=True)
    return True


def unseen(config: LifecycleConfig) -> list[str]:
    """Describe what a preset asks for that only its GPUs can show."""
    stages = config.stages()
    gpus = [name for name, s in stages.items() if s.resources.num_gpus]
    flash = [
        name
        for name, s in stages.items()
        if getattr(getattr(s, "model", None), "attention", "") == "flash_attention_2"
    ]
    lines = {
        "memory and speed on GPUs": gpus,
        "FlashAttention": flash,
    }
    return [f"{what} ({', '.join(names)})" for what, names in lines.items() if names]


def _table(title: str, rehearsal: Rehearsal) -> Table:
    table = Table(title=Text(title))
    for column in ("step", "stage", "workers", "seconds", "made"):
        table.add_column(column)
    for s in rehearsal.done:
        cells = (s.step, s.stage, str(s.num_workers), f"{s.seconds:.1f}", s.kind)
        table.add_row(*map(Text, cells))
    return table
