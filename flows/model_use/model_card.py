"""The model card of a published model: YAML for the hub, and its lineage for people."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from huggingface_hub import ModelCardData

from flows.model_use.lineage import Lineage, PastDecision, described, hub_repos
from stages.runtime.manifest import Manifest
from stages.runtime.store_graph import sources_in
from stages.safe_text import shown
from tasks.gate import as_table

TASKS = {
    "policy": "text-generation",
    "reward_model": "text-classification",
    "process_reward_model": "token-classification",
}
LOADERS = {
    "policy": "AutoModelForCausalLM",
    "reward_model": "AutoModelForSequenceClassification",
    "process_reward_model": "AutoModelForTokenClassification",
}


def model_card(repo: str, kind: str, lineage: Lineage | None) -> str:
    """Return the text of README.md.

    Args:
        repo: id on the hub.
        kind: policy, reward_model or process_reward_model.
        lineage: how the model was made; None for one that is not registered.
    """
    stages = lineage.stages if lineage else ()
    parts = [
        f"---\n{_metadata(kind, stages)}\n---",
        f"# {repo.rpartition('/')[2]}",
        _about(kind, lineage),
        _use(repo, kind),
    ]
    if lineage:
        parts += [_steps(stages), _metrics(lineage.metrics), _gate(lineage.decisions)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _metadata(kind: str, stages: Sequence[Manifest]) -> str:
    sources = [(field, source) for m in stages for field, source in sources_in(m.config, m.stage)]
    bases = [repo for field, source in sources if field == "base" for repo in hub_repos(source)]
    data = [repo for field, source in sources if field != "base" for repo in hub_repos(source)]
    methods = dict.fromkeys(manifest.stage.replace("_", "-") for manifest in stages)
    card = ModelCardData(
        library_name="transformers",
        pipeline_tag=TASKS[kind],
        tags=["ratchet", *methods],
        base_model=sorted(set(bases)) or None,
        datasets=sorted(set(data)) or None,
    )
    return card.to_yaml().strip()


def _about(kind: str, lineage: Lineage | None) -> str:
    words = kind.replace("_", " ")
    if lineage is None:
        return (
            f"A {words}, published with Ratchet. It was not registered, so nothing is known of "
            "how it was made."
        )
    version = lineage.version
    return (
        f"A {words} trained with Ratchet: version {version.version} of `{version.name}`, made by "
        f"the step `{version.step}` (stage `{version.stage}`, key `{version.stage_key[:12]}`)."
    )


def _use(repo: str, kind: str) -> str:
    loader = LOADERS[kind]
    code = (
        f"from transformers import {loader}, AutoTokenizer\n\n"
        f'model = {loader}.from_pretrained("{repo}")\n'
        f'tokenizer = AutoTokenizer.from_pretrained("{repo}")'
    )
    return f"## Use\n\n```python\n{code}\n```"


def _steps(stages: Sequence[Manifest]) -> str:
    if not stages:
        return ""
    names = {manifest.key: manifest.step for manifest in stages}
    rows = []
    for manifest in stages:
        inputs = [f"{role}: {names.get(key, key[:12])}" for role, key in manifest.parents.items()]
        data = [
            f"{field}: {described(source)}"
            for field, source in sources_in(manifest.config, manifest.stage)
        ]
        reward = manifest.config.get("reward")
        if isinstance(reward, Mapping):
            data.append(f"reward: {reward['name']}")
        cells = (manifest.step, manifest.stage, "; ".join(inputs), "; ".join(data))
        rows.append((*cells, manifest.key[:12]))
    head = ("step", "stage", "inputs", "base, data and reward", "key")
    return f"## Lineage\n\n{_table(head, rows)}"


def _metrics(metrics: Mapping[str, float]) -> str:
    rows = [(name, f"{value:.4g}") for name, value in sorted(metrics.items())]
    return f"## Metrics of its step\n\n{_table(('metric', 'value'), rows)}" if rows else ""


def _gate(decisions: Sequence[PastDecision]) -> str:
    if not decisions:
        return "## Gate\n\nNo promotion of this version was decided."
    parts = []
    for decision in decisions:
        why = f", {_cell(decision.reason)}" if decision.reason else ""
        parts.append(f"{decision.verdict}, decided by {_cell(decision.decided_by)}{why}")
        if decision.evidence is not None:
            parts.append(as_table(decision.evidence))
    return "\n\n".join(["## Gate", *parts])


def _table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(value: object) -> str:
    """Return a text that stays in its cell."""
    return " ".join(shown(value).split()).replace("|", "\\|").replace("<", "&lt;")
