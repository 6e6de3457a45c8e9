"""`ratchet receipt` and `ratchet reproduce`: how a result was made, and to make it again."""

from __future__ import annotations

from pathlib import Path

from flows.cli import terminal
from flows.model_use.named_model import connections_here
from flows.model_use.named_stage import find_stage
from flows.model_use.reproduction import make_again
from flows.model_use.version_receipt import VersionReceipt, receipt_of
from stages.files import write_text
from stages.runtime.store import Store
from stages.runtime.store_graph import StoreGraph
from training_core.errors import ConfigError


def write_receipt_of(name: str, out: Path | None) -> None:
    """Write the receipt of a result to a file, or print it.

    Args:
        name: of the result; see `find_stage`.
        out: the file; None prints the receipt.

    Raises:
        ConfigError: if there is no such result, or the store does not have all stages before it.
    """
    connections = connections_here()
    own = find_stage(name, StoreGraph.of(connections.store), connections)
    receipt = receipt_of(name, own, connections.store)
    if out is None:
        terminal.write(receipt.text())
        return
    write_text(out, receipt.text())
    terminal.echo(f"{out} has the {len(receipt.stages)} stages of {name}; make it again with")
    terminal.echo(f"ratchet reproduce {out} --out FOLDER")


def reproduce(path: Path, out: Path, moves: list[str]) -> bool:
    """Make the stages of a receipt again until one differs, and say how.

    Args:
        path: the receipt.
        out: folder of the results: new, or that of a reproduction that was interrupted.
        moves: `OLD=NEW`: what begins with OLD in the receipt's paths begins with NEW here.

    Returns:
        Whether every stage gave the bytes of the receipt.

    Raises:
        ConfigError: for a wrong receipt or move; if this Ratchet cannot make a stage.
        DataError: if data is not what was read then.
        LocalRunError: if a stage fails.
    """
    receipt = VersionReceipt.read(path)
    places = dict(map(_move, moves))
    total = len(receipt.stages)
    for number, again in enumerate(make_again(receipt, Store(out.resolve()), places), 1):
        digest = again.found.digest[:12]
        if not again.is_same:
            expected = again.expected.digest[:12]
            terminal.echo(
                f"{number} of {total}, {again.expected.step}: expected the digest {expected}, "
                f"found {digest}"
            )
            for difference in again.differences():
                terminal.echo(f"  {difference}")
            terminal.echo("The stages after it were not made.")
            return False
        terminal.echo(f"{number} of {total}, {again.expected.step}: the same digest, {digest}")
    terminal.echo(f"{receipt.result} was made again, byte by byte, in {out}")
    return True


def _move(text: str) -> tuple[str, str]:
    old, found, new = text.partition("=")
    if not (found and old and new):
        raise ConfigError(f"expected --move OLD=NEW, found '{text}'; e.g. --move /old/data=/data")
    return old, new
