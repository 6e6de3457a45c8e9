"""`ratchet lineage` and `ratchet taint`: what made a result, and what came of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from rich.table import Table

from flows.cli import terminal
from flows.cli.terminal import Terminal
from flows.model_use.lineage import described
from flows.model_use.named_model import connections_here
from flows.model_use.named_stage import find_stage
from stages.runtime.manifest import Manifest
from stages.runtime.store_graph import StoreGraph, sources_in
from tasks.connections import Connections
from tasks.ledger import champion
from tasks.refs import ref_of
from tasks.registry.receipts import Receipt, receipts_of
from tasks.report.results import result_of
from training_core.errors import ConfigError

ROLLBACK = "prefect deployment run promote/default -p version=<number> -p action=rollback"
SHORT = 12
"""Characters of a stage key that are shown."""


def show_lineage(name: str, *, as_mermaid: bool) -> None:
    """Print the stages that a result was made from, with their data, and those made from it.

    Args:
        name: of the result; see `find_stage`.
        as_mermaid: print a flowchart instead of tables.

    Raises:
        ConfigError: if there is no such result.
    """
    connections = connections_here()
    graph = StoreGraph.of(connections.store)
    own = find_stage(name, graph, connections)
    before, after = graph.before(own), graph.after(own.key)
    if as_mermaid:
        _print_graph(before, after)
        return
    console, versions = Terminal(), _Versions(connections)
    console.print(_table(f"{name} was made by", before, graph, versions))
    if after:
        console.print(_table("made from it", after, graph, versions))
    else:
        terminal.echo("Nothing was made from it.")


def show_taint(name: str) -> None:
    """Print all that a result or a dataset has touched.

    Args:
        name: of a result, see `find_stage`; or of a dataset or base model: a hub id, the path or
            the file name.

    Raises:
        ConfigError: if no finished stage is called so or has read it.
    """
    connections = connections_here()
    graph = StoreGraph.of(connections.store)
    touched = graph.reading(name)
    if not touched:
        try:
            touched = [find_stage(name, graph, connections)]
        except ConfigError as error:
            raise ConfigError(
                f"no finished stage of {connections.store.root} has read '{name}' as a dataset or "
                f"base model, and it names no result: {error}"
            ) from error
    keys = [manifest.key for manifest in touched]
    known = {*keys}
    touched += [made for made in graph.after(*keys) if made.key not in known]
    versions = _Versions(connections)
    Terminal().print(_table(f"touched by {name}", touched, graph, versions))
    champions = [title for each in touched for title in versions.of(each) if "champion" in title]
    if champions:
        terminal.echo(f"It has reached {', '.join(champions)}. To roll that back:")
        terminal.echo(
            "prefect deployment run promote/default -p action=rollback -p version=<number>"
        )
    steps = dict.fromkeys(manifest.step for manifest in touched)
    terminal.echo(f"To be made again, if it changes: {', '.join(steps)}.")


@dataclass(frozen=True)
class _Versions:
    """Names the registered versions of a stage's result."""

    connections: Connections
    champions: dict[str, int | None] = field(default_factory=dict)

    def of(self, manifest: Manifest) -> list[str]:
        registry, root = self.connections.registry, self.connections.store.root
        return [
            f"{receipt.name}/{receipt.version}{' (champion)' * self._is_champion(receipt)}"
            for receipt in receipts_of(root, manifest, registry.mlflow.address)
            if receipt.name is not None
        ]

    def _is_champion(self, receipt: Receipt) -> bool:
        if (name := str(receipt.name)) not in self.champions:
            present = champion(self.connections.registry, name)
            self.champions[name] = present.target if present else None
        return self.champions[name] == receipt.version


def _table(
    title: str, manifests: Sequence[Manifest], graph: StoreGraph, versions: _Versions
) -> Table:
    table = Table(title=title, title_justify="left")
    for column in ("step", "result of", "made from", "data", "result", "version"):
        table.add_column(column)
    for made in manifests:
        table.add_row(
            made.step,
            f"{made.stage}/{made.key[:SHORT]}",
            "\n".join(_sources(made, graph)),
            "\n".join(described(source) for _, source in sources_in(made.config, made.stage)),
            result_of(ref_of(made, made.step, is_reused=True), None, None),
            "\n".join(versions.of(made)),
        )
    return table


def _sources(made: Manifest, graph: StoreGraph) -> Iterable[str]:
    roles: dict[str, list[str]] = {}
    for role, key in made.parents.items():
        source = graph.stages[key].step if key in graph.stages else key[:SHORT]
        roles.setdefault(source, []).append(role)
    return (f"{source} ({', '.join(given)})" for source, given in roles.items())


def _print_graph(before: Sequence[Manifest], after: Sequence[Manifest]) -> None:
    shown = {manifest.key for manifest in (*before, *after)}
    terminal.echo("flowchart LR")
    for made in (*before, *after):
        terminal.echo(f'  {made.key[:SHORT]}["{made.step}<br/>{made.stage}/{made.key[:SHORT]}"]')
    for made in (*before, *after):
        for parent in dict.fromkeys(made.parents.values()):
            if parent in shown:
                terminal.echo(f"  {parent[:SHORT]} --> {made.key[:SHORT]}")
    terminal.echo(f"  style {before[-1].key[:SHORT]} stroke-width:4px")
