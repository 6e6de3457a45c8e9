"""Sources of a config outside the graph: files and hub revisions.

Their contents belong to the stage key.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from stages.configs.data_config import HubDataConfig
from stages.configs.model_config import HubModelConfig
from stages.configs.reward_config import PythonRewardConfig
from stages.files import files_at
from stages.runtime.stage_key import digest_of, digest_of_tree
from stages.runtime.user_code import digest_of_code, problem_in
from training_core.errors import DataError

AnyBlock = TypeVar("AnyBlock", bound=BaseModel)
T = TypeVar("T")
Paths = str | tuple[str, ...]


def local_sources(block: BaseModel, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield (dotted field, path or glob) of all local data in `block`, at any depth.

    These are all fields `path`, except the one of a Python reward, which names code.
    """
    for place, below in _blocks_at(block, prefix):
        paths = _paths_of(below)
        if isinstance(paths, str):
            yield f"{place}path", paths
        else:
            yield from ((f"{place}path.{i}", path) for i, path in enumerate(paths))


def code_sources(block: BaseModel, prefix: str = "") -> Iterator[tuple[str, PythonRewardConfig]]:
    """Yield (dotted field, config) of all Python rewards in `block`, at any depth."""
    for place, below in _blocks_at(block, prefix):
        if isinstance(below, PythonRewardConfig):
            yield f"{place}path", below


def _paths_of(block: BaseModel) -> Paths:
    return () if isinstance(block, PythonRewardConfig) else dict(block).get("path", ())


def _blocks_at(block: BaseModel, prefix: str) -> Iterator[tuple[str, BaseModel]]:
    """Yield (prefix of its fields, block) of `block` and of all blocks in it."""
    yield prefix, block
    for name in type(block).model_fields:
        for key, below in _blocks_in(getattr(block, name), name):
            yield from _blocks_at(below, f"{prefix}{key}.")


def _blocks_in(value: object, name: str) -> Iterator[tuple[str, BaseModel]]:
    if isinstance(value, BaseModel):
        yield name, value
    elif isinstance(value, list | tuple):
        for i, item in enumerate(value):
            yield from _blocks_in(item, f"{name}.{i}")


def resolve_paths(block: AnyBlock, root: Path) -> AnyBlock:
    """Return `block` with every relative path joined to `root`."""

    def root_path(path: str) -> str:
        return str((root / path).resolve())

    def root_one(source: BaseModel) -> Mapping[str, object]:
        if isinstance(source, PythonRewardConfig) and isinstance(source.code, Path):
            return {"path": f"{root_path(str(source.code))}:{source.function}"}
        paths = _paths_of(source)
        rooted = root_path(paths) if isinstance(paths, str) else tuple(map(root_path, paths))
        return {"path": rooted} if paths else {}

    return _rewritten(block, root_one)


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

    def pin_one(source: BaseModel) -> Mapping[str, object]:
        if isinstance(source, HubDataConfig | HubModelConfig) and not re.fullmatch(
            "[0-9a-f]{40}", source.revision
        ):
            kind = "model" if isinstance(source, HubModelConfig) else "dataset"
            return {"revision": ask(kind, source.repo, source.revision)}
        return {}

    return _rewritten(block, pin_one)


def _rewritten(block: AnyBlock, change: Callable[[BaseModel], Mapping[str, object]]) -> AnyBlock:
    updates: dict[str, object] = dict(change(block))
    for name in type(block).model_fields:
        value = getattr(block, name)
        if any(True for _ in _blocks_in(value, name)):
            updates[name] = _rewritten_value(value, change)
    return block.model_copy(update=updates)


def _rewritten_value(value: object, change: Callable[[BaseModel], Mapping[str, object]]) -> object:
    if isinstance(value, BaseModel):
        return _rewritten(value, change)
    if isinstance(value, list | tuple):
        return type(value)(_rewritten_value(item, change) for item in value)
    return value


def _commit_on_hub(kind: str, repo: str, revision: str) -> str:
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError, OfflineModeIsEnabled

    try:
        info = HfApi().repo_info(repo, repo_type=kind, revision=revision)
    except (HfHubHTTPError, OfflineModeIsEnabled, OSError) as error:
        raise DataError(
            f"the hub did not tell the commit of {kind} {repo}@{revision} ({error}); "
            "check the name, your HF_TOKEN and the network, "
            "or write the 40-digit commit as `revision`"
        ) from error
    return str(info.sha)


def missing_sources(block: BaseModel, prefix: str = "") -> list[str]:
    """Describe every named file, directory or function that does not exist."""
    data = [
        f"{field}: there is no file or directory {path}; "
        "set data_root (or RATCHET_SHARED) to where the data is"
        for field, path in local_sources(block, prefix)
        if not files_at(path)
    ]
    code = ((field, problem_in(reward)) for field, reward in code_sources(block, prefix))
    return data + [f"{field}: {problem}" for field, problem in code if problem]


def digests_of_sources(block: BaseModel) -> dict[str, str]:
    """Digest the contents of every named file, directory and function, by field.

    Raises:
        DataError: if one does not exist.
    """
    if missing := missing_sources(block):
        raise DataError("; ".join(missing))
    data = {field: _digest_at(path) for field, path in local_sources(block)}
    return data | {field: digest_of_code(reward) for field, reward in code_sources(block)}


def _digest_at(path: str) -> str:
    if Path(path).exists():
        return digest_of_tree(Path(path))
    return digest_of([digest_of_tree(file) for file in files_at(path)])
