"""Ids of repositories on the Hugging Face hub."""

from __future__ import annotations

from training_core.models.folders import is_hub_id


def require_hub_id(repo: str) -> str:
    """Return `repo` after checking that it is an id, and not the path of a folder.

    Raises:
        ValueError: if it is not.
    """
    if not is_hub_id(repo):
        raise ValueError(
            "expected an id of the Hugging Face hub, e.g. owner/name, of letters, digits, '-', '_' "
            "and '.', without '--', '..' and '.git' at the end; "
            "for a folder on this machine use `name: local` (a model) or `name: files` (data)"
        )
    return repo
