"""What MLflow's pages say of runs, versions, registered models and ledgers, as Markdown.

Names in it come from presets, whose grammar has no Markdown in it.
"""

from __future__ import annotations

from pathlib import Path

from stages.runtime.manifest import Manifest
from tasks.formatting import capital, duration, measured, shown, title, words
from tasks.headlines import headline_of
from tasks.registry.receipts import receipt_of_key
from tasks.versions import MODEL_SUFFIX, TAG_DIGITS

DECISION = "\n\n**Decision.** "
"""Separates what a version is, which never changes, from what was decided about it."""

LEDGER_SUFFIX = ".promotions"
NOTE_LENGTH = 5000  # MLflow's limit for models and versions


def result_note(root: Path, lifecycle: str, manifest: Manifest, step: str) -> str:
    """Describe the result of a stage: what it is, what it improved, and what it was made from.

    Args:
        root: the store's folder; its receipts name the versions that the stage read.
        lifecycle: e.g. `tiny`.
        manifest: of the stage.
        step: name of the stage in the lifecycle's flow.
    """
    lines = [
        f"**What it is.** A {words(manifest.kind)}, made by the step `{step}` of `{lifecycle}` "
        f"(stage `{manifest.stage}`, key `{manifest.key[:TAG_DIGITS]}`) "
        f"in {duration(manifest.cost.get('seconds'))}.",
        f"**What it improved.** {_sentence(headline_of(manifest.stage, manifest.metrics))}",
        f"**Made from.** {_sentence(', '.join(_parents(root, lifecycle, manifest)))}",
    ]
    return "\n\n".join(lines)


def version_note(root: Path, lifecycle: str, manifest: Manifest, step: str) -> str:
    """Describe a model version: `result_note`, with its metrics, canaries and contract."""
    rows = [
        f"| {capital(title(name))} | {shown(value)} |" for name, value in manifest.metrics.items()
    ]
    table = "\n".join(["\n\n| metric | value |", "|---|---|", *rows]) if rows else ""
    note = result_note(root, lifecycle, manifest, step) + table
    return (note + _canaries(manifest) + _contract(manifest))[:NOTE_LENGTH]


def with_decision(note: str, decision: str) -> str:
    """Return the description of a version with the last decision about it."""
    added = (DECISION + decision)[:NOTE_LENGTH]
    return note.partition(DECISION)[0][: NOTE_LENGTH - len(added)] + added


def model_note(name: str) -> str:
    """Describe a registered model or a ledger."""
    if name.endswith(LEDGER_SUFFIX):
        model = name.removesuffix(LEDGER_SUFFIX)
        return (
            f"The promotion ledger of `{model}`: each version is a decision about one version of "
            f"that model, in the order of arrival, and its description has the evidence. The alias "
            f"`champion` of `{model}` follows the last valid entry. Delete nothing here."
        )
    lifecycle, _, suffix = name.rpartition(".")
    kinds = {suffix: kind for kind, suffix in MODEL_SUFFIX.items()}
    return (
        f"Each version is a {words(kinds.get(suffix, 'model'))} that a step of the lifecycle "
        f"`{lifecycle}` has made. The alias of a step's name marks its newest version; `candidate` "
        "is the last one that was judged, and `champion` the one that was promoted."
    )


def _parents(root: Path, lifecycle: str, manifest: Manifest) -> list[str]:
    """Name the versions that a stage has read, or else the keys of the stages that made them."""
    found = []
    for role, key in manifest.parents.items():
        receipt = receipt_of_key(root, lifecycle, key)
        origin = key[:TAG_DIGITS]
        if receipt is not None and receipt.version is not None:
            origin = f"{receipt.name}/{receipt.version}"
        found.append(f"{words(role)} `{origin}`")
    return found or ["nothing from another step"]


def _canaries(manifest: Manifest) -> str:
    rows = [
        f"| {words(c.name)}: {c.shows} | {measured(c.found)} | {measured(c.limit)} |"
        for c in manifest.canaries
    ]
    head = ["\n\n| check before the first step | found | limit |", "|---|---|---|"]
    return "\n".join([*head, *rows]) if rows else ""


def _contract(manifest: Manifest) -> str:
    shown = {k: v for k, v in manifest.contract.items() if k != "chat_template"}
    said = "; ".join(f"{words(name)} {text}" for name, text in shown.items())
    return f"\n\n**Contract.** {_sentence(said)}" if said else ""


def _sentence(text: str) -> str:
    return f"{capital(text)}."
