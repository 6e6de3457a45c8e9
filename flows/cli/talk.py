"""`ratchet chat`: talk to a model in the terminal, or to two of them side by side."""

from __future__ import annotations

import re
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from rich.live import Live
from rich.table import Table

from flows.cli import terminal
from flows.cli.terminal import Terminal
from flows.model_use.conversation import Conversation
from flows.model_use.named_model import find_model
from flows.model_use.sampling_options import rollout_config
from stages.configs.model_config import FrozenModelsConfig
from stages.configs.training_config import MAX_SEQUENCE_TOKENS
from stages.sampling.rollouts import sampling_of
from training_core.errors import InputError
from training_core.rollout.sampling import Sampling

COMMAND = re.compile(r"/(\w*)(?:\s+(.*))?")
HELP = "/reset forgets what was said, /system TEXT sets the system message, /quit leaves"
PROMPT = "> "


@dataclass
class Chat:
    """Lines of a person, and the answers of one or two models.

    Attributes:
        conversations: one per model.
        sampling: parameters of sampling.
        seed: of the first answer; each further one has another.
        is_live: whether a person sits at the terminal; otherwise only answers are printed, and
            the first error ends it.
    """

    conversations: Sequence[Conversation]
    sampling: Sampling
    seed: int
    is_live: bool
    answers: int = field(default=0, init=False)

    def run(self, lines: Iterator[str]) -> None:
        """Answer lines until there are no more, or one says /quit."""
        for line in lines:
            text = line.strip()
            if (command := COMMAND.fullmatch(text)) is not None:
                if command[1] == "quit":
                    return
                self._obey(command[1], command[2] or "")
            elif text:
                self._answer(text)

    def _obey(self, command: str, argument: str) -> None:
        if command not in ("reset", "system"):
            terminal.note(HELP)
            return
        for conversation in self.conversations:
            if command == "reset":
                conversation.reset()
            else:
                conversation.set_system(argument)

    def _answer(self, text: str) -> None:
        """Print the answers; Ctrl-C stops them, and the conversation goes on."""
        self.answers += 1
        answer = self._one if len(self.conversations) == 1 else self._side_by_side
        try:
            if not self.is_live:
                answer(text, lambda: None)
                return
            with _stopped_between_pieces() as check:
                answer(text, check)
        except KeyboardInterrupt:
            if not self.is_live:
                raise
            terminal.note("(stopped)")
        except InputError as error:
            if not self.is_live:
                raise
            terminal.tell_error(error)

    def _one(self, text: str, check: Callable[[], None]) -> None:
        seed = self.seed * 1_000_003 + self.answers - 1

        def show(piece: str) -> None:
            terminal.write(piece)
            check()

        try:
            self.conversations[0].answer(text, self.sampling, seed=seed, on_text=show)
        finally:
            terminal.write("\n")

    def _side_by_side(self, text: str, check: Callable[[], None]) -> None:
        seed = self.seed * 1_000_003 + self.answers - 1
        said = ["" for _ in self.conversations]
        with Live(self._table(said), console=Terminal(), refresh_per_second=8) as live:
            for i, conversation in enumerate(self.conversations):

                def show(piece: str, column: int = i) -> None:
                    said[column] += piece
                    live.update(self._table(said))
                    check()

                conversation.answer(text, self.sampling, seed=seed, on_text=show)

    def _table(self, said: Sequence[str]) -> Table:
        table = Table(expand=True, box=None, padding=(0, 2, 0, 0))
        for conversation in self.conversations:
            table.add_column(conversation.name, ratio=1, overflow="fold")
        table.add_row(*said)
        return table


@contextmanager
def _stopped_between_pieces() -> Iterator[Callable[[], None]]:
    """Yield what raises KeyboardInterrupt after Ctrl-C.

    By itself Python raises it anywhere, e.g. in a callback of torch, which would swallow it.
    """
    asked = threading.Event()
    before = signal.signal(signal.SIGINT, lambda *_: asked.set())

    def check() -> None:
        if asked.is_set():
            raise KeyboardInterrupt

    try:
        yield check
    finally:
        signal.signal(signal.SIGINT, before)


def chat(names: Sequence[str], rollouts: Mapping[str, Any], *, seed: int, dtype: str) -> None:
    """Talk until the person leaves, or standard input ends.

    Args:
        names: of one or two models; see `find_model`.
        rollouts: fields of `TruncatedRolloutConfig`.
        seed: the same seed and lines give the same answers.
        dtype: type of the weights.

    Raises:
        ConfigError: if there is no such model, or an option is wrong.
        DataError: if it cannot be loaded; without a terminal also if a line cannot be answered.
    """
    terminal.hide_loading_bars()
    sampling = sampling_of(rollout_config({"max_tokens": MAX_SEQUENCE_TOKENS, **rollouts}))
    frozen = FrozenModelsConfig.model_validate({"dtype": dtype})
    conversations = [Conversation(find_model(name), frozen) for name in names]
    for conversation in conversations:
        if not conversation.has_template:
            terminal.note(
                f"{conversation.name} has no chat template, so it continues each text by itself "
                "and remembers nothing"
            )
    is_live = sys.stdin.isatty() and sys.stdout.isatty()
    if is_live:
        terminal.note(f"{HELP}; Ctrl-C stops an answer")
    lines = _typed_lines() if is_live else iter(sys.stdin)
    Chat(conversations, sampling, seed, is_live).run(lines)


def _typed_lines() -> Iterator[str]:
    """Yield the lines that a person types; Ctrl-C empties the line, Ctrl-D ends them."""
    import readline  # noqa: F401, PLC0415 - `input` then has a history, and keys to edit the line

    while True:
        try:
            yield input(PROMPT)
        except KeyboardInterrupt:
            terminal.write("\n")
        except EOFError:
            terminal.write("\n")
            return
