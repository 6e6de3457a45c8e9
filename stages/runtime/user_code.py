"""Find the source of a Python reward without running it.

Its digest covers the whole file. For a module in a package it covers every file of the package,
because a module may import other modules of its package.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from stages.configs.reward_config import FunctionConfig
from stages.runtime.stage_key import digest_of, digest_of_file


@dataclass(frozen=True)
class Code:
    """Python source.

    Attributes:
        file: contains the function.
        folders: folders of the file's package; empty if the file belongs to no package.
    """

    file: Path
    folders: tuple[Path, ...] = ()


def problem_in(config: FunctionConfig) -> str | None:
    """Describe why the function cannot be found, or return None."""
    code = _locate(config.code)
    if code is None and isinstance(config.code, Path):
        return (
            f"there is no file {config.code}; "
            "set data_root (or RATCHET_SHARED) to the folder of the data"
        )
    if code is None:
        return (
            f"there is no Python module '{config.code}'; install its package into this "
            "environment, add it to PYTHONPATH, or name a file, e.g. file.py:function"
        )
    try:
        tree = ast.parse(code.file.read_bytes())
    except (SyntaxError, ValueError) as error:
        return f"{code.file} is not Python: {error}"
    if not {config.function, "*"} & set(_names(tree)):
        return f"there is no function '{config.function}' in {code.file}"
    return None


def digest_of_code(config: FunctionConfig) -> str:
    """Digest the function's name and its source, which must exist."""
    code = _locate(config.code)
    if code is None:
        raise FileNotFoundError(config.code)
    if not code.folders:
        return digest_of([config.function, digest_of_file(code.file)])
    files = [
        [path.relative_to(folder).as_posix(), digest_of_file(path)]
        for folder in code.folders
        for path in sorted(folder.rglob("*"))
        if path.is_file() and _is_source(path.relative_to(folder))
    ]
    return digest_of([config.path, files])


def _is_source(path: Path) -> bool:
    return not any(part.startswith(".") or part == "__pycache__" for part in path.parts)


def _locate(code: Path | str) -> Code | None:
    if isinstance(code, Path):
        return Code(code) if code.is_file() else None
    importlib.invalidate_caches()
    top, *below = code.split(".")
    try:
        spec = find_spec(top)  # only the top package, because find_spec imports all parent packages
    except ValueError:  # a module that was not loaded from a file
        return None
    if spec is None or top == "__main__":  # `__main__` is a different module in each process
        return None
    if spec.submodule_search_locations is None:
        is_plain = not below and (spec.origin or "").endswith(".py")
        return Code(Path(str(spec.origin))) if is_plain else None
    folders = tuple(map(Path, spec.submodule_search_locations))
    for folder in folders:
        module = folder.joinpath(*below)
        for file in (module / "__init__.py", module.with_name(f"{module.name}.py")):
            if file.is_file() and (below or file.parent == folder):
                return Code(file, folders)
    return None


def _names(tree: ast.AST) -> Iterator[str]:
    """Yield every name that the code defines; `*` if it imports all names of a module."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                yield node.name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.alias():
                yield node.asname or node.name
