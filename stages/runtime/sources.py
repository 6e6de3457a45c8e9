"""Sources of a config outside the graph: files and hub revisions.

Their contents belong to the stage key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from pydantic import BaseModel

from stages.configs.data_config import HubDataConfig
from stages.configs.model_config import HubModelConfig
from stages.configs.reward_config import FunctionConfig
from stages.configs.tree import AnyBlock, blocks_at, rewritten
from stages.files import files_at, unreadable
from stages.runtime.stage_key import digest_of, digest_of_tree
from stages.runtime.user_code import digest_of_code, problem_in
from training_core.errors import DataError

COMMIT = re.compile("[0-9a-f]{40}")
Paths = str | tuple[str, ...]


def local_sources(block: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted field, path or glob) of all local data in `block`, at any depth.

    These are all fields `path`, except the one of a Python reward, which names code.
    """
    for place, below in blocks_at(block, prefix):
        paths = _paths_of(below)
        if isinstance(paths, str):
            yield f"{place}path", paths
        else:
            yield from ((f"{place}path.{i}", path) for i, path in enumerate(paths))


def code_sources(block: BaseModel, prefix: str = "") -> Iterator[tuple[str, FunctionConfig]]:
    """Yield (dotted field, config) of all Python rewards in `block`, at any depth."""
    for place, below in blocks_at(block, prefix):
        if isinstance(below, FunctionConfig):
            yield f"{place}path", below


def _paths_of(block: BaseModel) -> Paths:
    return () if isinstance(block, FunctionConfig) else dict(block).get("path", ())


def resolve_paths(block: AnyBlock, root: Path) -> AnyBlock:
    """Return `block` with every relative path joined to `root`."""

    def root_path(path: str) -> str:
        return str((root / path).resolve())

    def root_one(source: BaseModel) -> BaseModel:
        if isinstance(source, FunctionConfig) and isinstance(source.code, Path):
            path = f"{root_path(str(source.code))}:{source.function}"
            return source.model_copy(update={"path": path})
        if not (paths := _paths_of(source)):
            return source
        rooted = root_path(paths) if isinstance(paths, str) else tuple(map(root_path, paths))
        return source.model_copy(update={"path": rooted})

    return rewritten(block, root_one)


def pin_revisions(
    block: AnyBlock, commit_of: Callable[[str, str, str], str] | None = None
) -> AnyBlock:
    """Return `block` with every hub revision replaced by its present commit.

    A branch may change after a stage has finished, or between a failure and its retry.

    Args:
        block: any config.
        commit_of: (`model` or `dataset`, repository, revision) -> commit; None asks the hub.

    Raises:
        DataError: if the hub does not answer, or has no such repository or revision.
    """
    ask = commit_of or _commit_on_hub

    def pin_one(source: BaseModel) -> BaseModel:
        if not isinstance(source, HubDataConfig | HubModelConfig) or COMMIT.fullmatch(
            source.revision
        ):
            return source
        kind = "model" if isinstance(source, HubModelConfig) else "dataset"
        commit = ask(kind, source.repo, source.revision)
        return source.model_copy(update={"revision": commit})

    return rewritten(block, pin_one)


def _commit_on_hub(kind: str, repo: str, revision: str) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.utils import httpx

    try:
        info = HfApi().repo_info(repo, repo_type=kind, revision=revision)
    except (httpx.HTTPError, OSError) as error:  # a refusal, no connection, or HF_HUB_OFFLINE
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(
            f"the commit of {kind} {repo}@{revision} could not be read from the hub ({reason}); "
            "check the name, your HF_TOKEN and the network, "
            "or write the 40-digit commit as `revision`"
        ) from error
    return str(info.sha)


def missing_sources(block: BaseModel, prefix: str = "") -> list[str]:
    """Describe every named file, directory or function that does not exist or cannot be read."""
    data = [
        f"{field}: {problem}"
        for field, path in local_sources(block, prefix)
        if (problem := _problem_at(path))
    ]
    code = ((field, problem_in(reward)) for field, reward in code_sources(block, prefix))
    return data + [f"{field}: {problem}" for field, problem in code if problem]


def _problem_at(path: str) -> str | None:
    """Return why the files at a path or glob cannot be read; None if they can."""
    found = files_at(path)
    if not found:
        return (
            f"there is no file or directory {path}; "
            "set data_root (or RATCHET_SHARED) to where the data is"
        )
    return next((problem for file in found if (problem := unreadable(file))), None)


def digests_of_sources(block: BaseModel) -> dict[str, str]:
    """Digest the contents of every named file, directory and function, by field.

    Raises:
        DataError: if one does not exist, or cannot be read.
    """
    if missing := missing_sources(block):
        raise DataError("; ".join(missing))
    data = {field: _digest_at(path) for field, path in local_sources(block)}
    return data | {field: digest_of_code(reward) for field, reward in code_sources(block)}


def _digest_at(path: str) -> str:
    if Path(path).exists():
        return digest_of_tree(Path(path))
    return digest_of([digest_of_tree(file) for file in files_at(path)])
