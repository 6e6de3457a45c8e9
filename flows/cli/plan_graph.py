"""`ratchet plan --mermaid`: the steps of a preset as a graph."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from flows.cli import terminal
from flows.cli.recipes import recipe_of
from flows.config.presets import load_config
from flows.recipe.outline import MATCH, Outline, outline_of

SHAPES = {"dataset": ("[(", ")]"), "evaluation": ("{{", "}}")}
"""Mermaid's brackets by kind of output: a cylinder, a hexagon; models are boxes."""


def show_graph(preset: str, flow: str, overrides: Mapping[str, object]) -> bool:
    """Print a Mermaid flowchart: one node per step, one arrow per input.

    Returns:
        True.

    Raises:
        ConfigError: for an unknown flow, a config that is not valid, or a step that does not get
            its inputs.
    """
    outline = outline_of(recipe_of(flow), load_config(preset, overrides))
    for line in ("flowchart LR", *_nodes(outline), *_arrows(outline)):
        terminal.echo(line)
    return True


def _nodes(outline: Outline) -> Iterator[str]:
    for step, ref in outline.refs.items():
        opened, closed = SHAPES.get(ref.kind, ("[", "]"))
        stage = "" if ref.stage == step else f"<br/>{ref.stage}"
        yield f'  {step}{opened}"{step}{stage}"{closed}'


def _arrows(outline: Outline) -> Iterator[str]:
    for step, inputs in outline.inputs.items():
        roles: dict[str, list[str]] = {}
        for role, source in inputs.items():
            roles.setdefault(source, []).append(role)
        for source, given in roles.items():
            label = ", ".join("policy" if role == f"policy_{source}" else role for role in given)
            yield f"  {source} -->|{label}| {step}"
    if MATCH in outline.refs:
        yield f"  evaluation --> {MATCH}"
