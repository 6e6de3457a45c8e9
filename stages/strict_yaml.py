"""YAML of presets, configs and assignments: YAML 1.2, without what surprises people.

`yes`, `on` and `1:30` are text, as in YAML 1.2. Refused are two equal keys in a block, keys that
are no text, numbers with a leading zero (octal in YAML 1.1, decimal in 1.2), numbers that are not
finite, and tags. Merging with `<<` works, as presets use it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from training_core.errors import ConfigError

MAX_DIGITS = 40
MAX_VALUES = 100_000
"""Aliases of aliases may stand for billions of values; no config has more than some hundreds."""

QUOTES = "close every bracket, and put text with special characters in quotes"

TAG = "tag:yaml.org,2002:"
PATTERNS = (  # of the core schema, YAML 1.2.2, chapter 10.3.2; the first that matches decides
    ("null", r"~|null|Null|NULL|", "~nN"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?", "-+.0123456789"),
    ("float", r"[-+]?\.(inf|Inf|INF)|\.nan|\.NaN|\.NAN", "-+."),
    ("merge", r"<<", "<"),
)


class _Loader(yaml.SafeLoader):
    """Resolves plain scalars by YAML 1.2; only used to compose nodes."""

    yaml_implicit_resolvers: dict[str, Any] = {}  # noqa: RUF012 - PyYAML's own attribute


for _kind, _pattern, _starts in PATTERNS:
    _first = [*_starts, ""] if _kind == "null" else list(_starts)
    _Loader.add_implicit_resolver(TAG + _kind, re.compile(rf"(?:{_pattern})\Z"), _first)


def read_yaml(path: Path) -> Any:
    """Read a YAML file.

    Raises:
        ConfigError: if it is not a readable file of strict YAML; the message has file and line.
    """
    try:
        if path.exists() and not path.is_file():  # a pipe would be read for ever
            raise ConfigError(
                f"{path}: expected a YAML file, found a folder, pipe or device; give a file"
            )
        text = path.read_bytes().decode()
    except UnicodeDecodeError as error:
        line, byte = error.object[: error.start].count(b"\n") + 1, error.object[error.start]
        raise ConfigError(
            f"{path}, line {line}: expected UTF-8, found the byte {byte:#x}; save the file as UTF-8"
        ) from error
    except (OSError, ValueError) as error:  # a ValueError for a NUL in the path
        raise ConfigError(
            f"{str(path)!r} cannot be read: {getattr(error, 'strerror', error)}; "
            "correct its name or its permissions"
        ) from error
    return parse_yaml(text, str(path))


def parse_yaml(text: str, where: str) -> Any:
    """Parse one YAML document.

    Args:
        text: the document.
        where: the file or assignment, for messages.

    Raises:
        ConfigError: if it is not strict YAML; the message has `where` and the line.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
        return None if node is None else _Values(where).value_of(node)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f", line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"{where}{line} is not YAML: {error.problem or error.context}; {QUOTES}"
        ) from error
    except yaml.YAMLError as error:
        raise ConfigError(f"{where} is not YAML: {error}; {QUOTES}") from error
    except RecursionError as error:
        raise ConfigError(
            f"{where}: expected values, found too deep a nesting; write them flat"
        ) from error


class _Values:
    """Turns the nodes of one document into values.

    Args:
        where: the file or assignment, for messages.
    """

    def __init__(self, where: str) -> None:
        self._where = where
        self._open: set[yaml.Node] = set()
        self._count = 0

    def value_of(self, node: yaml.Node) -> Any:
        """Return the value of a node."""
        self._count += 1
        if self._count > MAX_VALUES:
            raise self._error(
                node, f"expected at most {MAX_VALUES:,} values, found more; write fewer aliases"
            )
        if node in self._open:
            raise self._error(
                node,
                "expected a value, found an alias inside of what it stands for; write the value",
            )
        self._open.add(node)
        try:
            if isinstance(node, yaml.MappingNode) and node.tag == f"{TAG}map":
                return self._mapping(node)
            if isinstance(node, yaml.SequenceNode) and node.tag == f"{TAG}seq":
                return [self.value_of(item) for item in node.value]
            return self._scalar(node)
        finally:
            self._open.discard(node)

    def _mapping(self, node: yaml.MappingNode) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = "<<" if key_node.tag == f"{TAG}merge" else self._key(key_node)
            line = key_node.start_mark.line + 1
            if key in lines:
                raise self._error(
                    key_node,
                    f"expected each key once, found '{key}' also in line {lines[key]}; remove one",
                )
            lines[key] = line
            if key_node.tag == f"{TAG}merge":
                merged = self._merged(value_node)
            else:
                own[key] = self.value_of(value_node)
        return {**merged, **own}

    def _merged(self, node: yaml.Node) -> dict[str, Any]:
        """Return the blocks behind `<<`; of several, the first has precedence."""
        blocks = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for block in reversed(blocks):
            value = self.value_of(block)
            if not isinstance(value, dict):
                raise self._error(
                    block, f"expected a block behind '<<', found {value!r:.80}; give an alias"
                )
            merged |= value
        return merged

    def _key(self, node: yaml.Node) -> str:
        key = self.value_of(node)
        if not isinstance(key, str):
            raise self._error(
                node, f"expected a key that is text, found {key!r:.80}; write it in quotes"
            )
        return key

    def _scalar(self, node: yaml.Node) -> Any:
        kind, text = node.tag.removeprefix(TAG), node.value
        if isinstance(node, yaml.ScalarNode) and kind == "str":
            return text
        if not isinstance(node, yaml.ScalarNode) or node.style or kind not in READERS:
            raise self._error(
                node, f"expected a value without a tag, found '{node.tag}'; remove it"
            )
        try:
            return READERS[kind](text)
        except ValueError as error:
            raise self._error(node, str(error)) from error

    def _error(self, node: yaml.Node, text: str) -> ConfigError:
        return ConfigError(f"{self._where}, line {node.start_mark.line + 1}: {text}")


def _integer(text: str) -> int:
    digits = text.lstrip("+-")
    if len(digits) > 1 and digits.startswith("0") and digits.isdigit():
        plain = digits.lstrip("0") or "0"
        raise ValueError(
            f"expected a number without a leading zero, found {text:.40}, which some read as "
            f"octal; write {plain:.40} for a number or '{text:.40}' in quotes for text"
        )
    if len(digits) > MAX_DIGITS:
        raise ValueError(
            f"expected at most {MAX_DIGITS} digits, found {len(digits)}; write a shorter number"
        )
    return int(text, 0)


def _finite(text: str) -> float:
    value = math.nan if "n" in text.lower() else float(text)  # `.inf` or `.nan`
    if not math.isfinite(value):
        raise ValueError(f"expected a finite number, found {text:.40}; write one")
    return value


READERS: dict[str, Callable[[str], Any]] = {
    "null": lambda _: None,
    "bool": lambda text: text.lower() == "true",
    "int": _integer,
    "float": _finite,
    "merge": str,  # `<<` elsewhere than before a colon is text
}
"""Kind of a plain scalar -> function that reads it."""
