"""Finished stages made by hand, with a few bytes of weights."""

from __future__ import annotations

import torch
from safetensors.torch import save_file

from stages.runtime.manifest import Manifest, record_files
from stages.runtime.store import Store

KEY = "k" * 64


def draft(store: Store, attempt="a1", value=1.0, finished_at=1.0, key=KEY) -> Manifest:
    """An attempt that has made its artifact and is about to publish it."""
    artifact = store.attempt("sft", key, attempt).artifact
    (artifact / "sub").mkdir(parents=True)
    save_file({"w": torch.full((4,), value)}, artifact / "model.safetensors")
    (artifact / "sub" / "config.json").write_text("{}")
    files, digest = record_files(artifact)
    return Manifest(
        stage="sft", step="sft", version=1, key=key, kind="policy", attempt=attempt, config={},
        input_digests={}, parents={}, files=files, digest=digest, metrics={"loss": value},
        environment={}, cost={}, finished_at=finished_at,
    )  # fmt: skip


def published(store, **settings):
    manifest = draft(store, **settings)
    assert store.publish(manifest)
    return manifest
