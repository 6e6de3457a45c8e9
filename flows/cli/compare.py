"""`ratchet compare`: two results side by side, with what differs in how they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from flows.cli import terminal
from flows.cli.terminal import Terminal
from flows.model_use.named_model import connections_here
from flows.model_use.named_stage import find_stage
from stages.runtime.manifest import Manifest
from stages.runtime.store_graph import StoreGraph
from tasks.formatting import duration, shown
from tasks.report.differences import differences


def compare(first: str, second: str) -> None:
    """Print the metrics, configs and costs of two results, as far as they differ.

    Args:
        first: a result; see `find_stage`.
        second: another one.

    Raises:
        ConfigError: if there is no such result.
    """
    connections = connections_here()
    graph = StoreGraph.of(connections.store)
    names = (first, second)
    made = [find_stage(name, graph, connections) for name in names]
    if made[0].digest == made[1].digest:
        terminal.echo(f"{first} and {second} are the same {made[0].stage}/{made[0].key[:12]}.")
        return
    before = [graph.before(result) for result in made]
    console = Terminal()
    console.print(_metrics(names, made))
    console.print(_configs(names, before))
    console.print(_costs(names, before))


def _table(title: str, names: Sequence[str], first_column: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in (first_column, *names):
        table.add_column(column)
    return table


def _metrics(names: Sequence[str], made: Sequence[Manifest]) -> Table:
    table = _table("metrics", names, "metric")
    for metric in dict.fromkeys(metric for result in made for metric in result.metrics):
        values = [result.metrics.get(metric) for result in made]
        if values[0] != values[1]:
            table.add_row(metric, *map(shown, values))
    return table


def _configs(names: Sequence[str], before: Sequence[Sequence[Manifest]]) -> Table:
    """Return the fields that differ; a step that only one has is one line."""
    table = _table("config", names, "field")
    configs: list[Mapping[str, Any]] = [{m.step: m.config for m in lineage} for lineage in before]
    for step in dict.fromkeys(step for config in configs for step in config):
        if not all(step in config for config in configs):
            table.add_row(step, *("done" if step in config else "not done" for config in configs))
            continue
        for each in differences({step: configs[0][step]}, {"other": {step: configs[1][step]}}):
            table.add_row(each.field, each.now, *each.others)
    return table


def _costs(names: Sequence[str], before: Sequence[Sequence[Manifest]]) -> Table:
    """Return the seconds of all stages of each lineage, and of those that they share."""
    table = _table("time of the stages", names, "")
    keys = [{manifest.key for manifest in lineage} for lineage in before]
    shared = keys[0] & keys[1]
    seconds = [sum(m.cost.get("seconds", 0.0) for m in lineage) for lineage in before]
    table.add_row("in all", *map(duration, seconds))
    common = sum(m.cost.get("seconds", 0.0) for m in before[0] if m.key in shared)
    table.add_row(f"in the {len(shared)} that both have", *[duration(common)] * 2)
    return table
