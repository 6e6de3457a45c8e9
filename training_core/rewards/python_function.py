"""A user's Python function as a reward."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from numbers import Real
from pathlib import Path
from types import ModuleType

from training_core.errors import ConfigError
from training_core.rewards.reward import Unscored
from training_core.types import Rollout

RewardFunction = Callable[..., object]
"""(rollout, …, **arguments) -> a number, or `Unscored(reason)`; what it returns is checked."""


class PythonFunction:
    """A user's function with its arguments.

    If the function raises an exception, the rollout is unscored, and the exception is the reason.

    Args:
        function: called in this process.
        arguments: keyword arguments of the function.
        takes: what its positional arguments are, for the message.

    Raises:
        ConfigError: if the function does not accept the arguments. A call raises it if the function
            returns neither a number nor `Unscored`.
    """

    def __init__(
        self,
        function: RewardFunction,
        arguments: Mapping[str, object],
        *,
        takes: Sequence[str] = ("a rollout",),
    ) -> None:
        _require_fit(function, arguments, takes)
        self._function = function
        self._arguments = arguments

    def __call__(self, rollout: Rollout, *values: object) -> float | Unscored:
        """Call the function with a rollout and further values."""
        try:
            found = self._function(rollout, *values, **self._arguments)
            if isinstance(found, Real):
                return float(found)
        except Exception as error:  # noqa: BLE001 - a user's function may raise anything
            return Unscored(_reason(error))
        if isinstance(found, Unscored):
            return found
        raise ConfigError(
            f"prompt {rollout.prompt.id}: the reward {_name(self._function)} returned {found!r:.80}"
            f" ({type(found).__name__}); return a number, or Unscored(reason)"
        )


class PythonReward:
    """Scores rollouts one by one with a function; see `PythonFunction`."""

    def __init__(self, function: RewardFunction, arguments: Mapping[str, object]) -> None:
        self._function = PythonFunction(function, arguments)

    def __call__(self, rollouts: Sequence[Rollout]) -> list[float | Unscored]:
        """Score `rollouts`; see `Reward`."""
        return [self._function(rollout) for rollout in rollouts]


def load_function(code: Path | str, name: str) -> RewardFunction:
    """Import a function.

    Args:
        code: a file, which is run as a module, or the dotted name of a module.
        name: name of the function.

    Raises:
        ConfigError: if it cannot be imported, does not exist, or cannot be called.
    """
    try:
        module = _run_file(code) if isinstance(code, Path) else importlib.import_module(code)
    except Exception as error:
        raise ConfigError(
            f"the reward's code {code} cannot be imported: {type(error).__name__}: {error}"
        ) from error
    if not hasattr(module, name):
        raise ConfigError(f"the reward's code {code} has no function '{name}'; correct reward.path")
    found = getattr(module, name)
    if not callable(found):
        raise ConfigError(
            f"'{name}' in the reward's code {code} is {found!r:.80}, not a function; "
            "correct reward.path"
        )
    return found


def _run_file(path: Path) -> ModuleType:
    """Run a file as a module, always from its source, because cached bytecode may be outdated."""
    module = ModuleType(f"reward_{path.stem}")
    module.__file__ = str(path)
    sys.modules[module.__name__] = module  # dataclasses and pickle look up their module
    exec(compile(path.read_bytes(), path, "exec"), module.__dict__)
    return module


def _require_fit(
    function: RewardFunction, arguments: Mapping[str, object], takes: Sequence[str]
) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a builtin without a signature
        return
    try:
        signature.bind(*takes, **arguments)
    except TypeError as error:
        raise ConfigError(
            f"the reward {_name(function)}{signature} cannot be called with {' and '.join(takes)} "
            f"and reward.arguments {dict(arguments)}: {error}"
        ) from error


def _name(function: RewardFunction) -> str:
    return getattr(function, "__name__", repr(function))


def _reason(error: Exception) -> str:
    """Return the exception and the line of the user's code that raised it."""
    said = f"{type(error).__name__}: {error}"
    frames = traceback.extract_tb(error.__traceback__)
    own = [f for f in frames if f.filename != __file__]
    return f"{said} ({Path(own[0].filename).name}, line {own[0].lineno})" if own else said
