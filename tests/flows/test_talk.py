"""`ratchet chat`: typed in a terminal, through a pipe, and to two models."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.cli.talk import Chat
from flows.model_use.conversation import Conversation
from flows.model_use.named_model import NamedModel
from stages.configs.model_config import FrozenModelsConfig
from training_core.data.chat import encode_prompt
from training_core.data.templates import CHAT_TEMPLATES
from training_core.errors import DataError
from training_core.models import hub
from training_core.rollout.sampling import Sampling
from training_core.rollout.transformers_engine import TransformersEngine

ROOT = Path(__file__).resolve().parents[2]
SAMPLING = Sampling(max_response_tokens=8)
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "TERM": "dumb"}


@pytest.fixture(scope="module")
def policies(tmp_path_factory, make_policy, tokenizer) -> tuple[Path, Path]:
    """Two models; the first one has room for a long answer."""
    folder = tmp_path_factory.mktemp("policies")
    hub.save(make_policy(seed=1, max_positions=4096), tokenizer, folder / "one")
    hub.save(make_policy(seed=2), tokenizer, folder / "two")
    return folder / "one", folder / "two"


def conversation(folder: Path) -> Conversation:
    return Conversation(NamedModel(folder.name, folder), FrozenModelsConfig())


def sampled(folder: Path, *messages: str, roles: str = "uaua", seed: int = 0) -> str:
    """What the engine answers to this conversation."""
    names = {"u": "user", "a": "assistant", "s": "system"}
    tokenizer = hub.load_tokenizer(folder)
    asked = [
        {"role": names[role], "content": text} for role, text in zip(roles, messages, strict=False)
    ]
    engine = TransformersEngine(hub.load_policy(folder), tokenizer)
    prompt = encode_prompt(tokenizer, "1", tuple(asked))
    return engine.generate([prompt], SAMPLING, seeds=[seed])[0].text


def talk(chat: Chat, *lines: str) -> None:
    chat.run(iter(lines))


def test_each_answer_is_to_everything_that_was_said_before(policies, capsys):
    talk(Chat([conversation(policies[0])], SAMPLING, 0, True), "two tea", "", "one cake\n")
    first, second = capsys.readouterr().out.splitlines()
    assert first.strip() == sampled(policies[0], "two tea")
    assert second.strip() == sampled(policies[0], "two tea", first.strip(), "one cake", seed=1)


def test_reset_forgets_and_system_is_said_first(policies, capsys):
    talk(
        Chat([conversation(policies[0])], SAMPLING, 0, True),
        "two tea", "/reset", "one cake", "/reset", "/system please", "one pie",
        "/system", "/reset", "one pie", "/quit", "two tea",
    )  # fmt: skip
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert lines[1:] == [
        sampled(policies[0], "one cake", seed=1),
        sampled(policies[0], "please", "one pie", roles="su", seed=2),
        sampled(policies[0], "one pie", seed=3),
    ]


def test_an_unknown_command_tells_the_known_ones_and_a_path_is_no_command(policies, capsys):
    talk(Chat([conversation(policies[0])], SAMPLING, 0, True), "/rest", "/usr/bin")
    captured = capsys.readouterr()
    assert "/reset forgets what was said, /system TEXT sets" in captured.err
    assert captured.out.strip() == sampled(policies[0], "/usr/bin")


def test_two_models_answer_side_by_side_each_from_its_own_history(policies, capsys):
    both = [conversation(folder) for folder in policies]
    talk(Chat(both, SAMPLING, 0, False), "two tea", "one cake")
    out = capsys.readouterr().out
    rows = [line for line in out.splitlines() if line.strip()]
    assert [cell.strip() for cell in (rows[0][:40], rows[0][40:])] == ["one", "two"]
    answers = [sampled(folder, "two tea") for folder in policies]
    later = [
        sampled(folder, "two tea", answer, "one cake", seed=1)
        for folder, answer in zip(policies, answers, strict=True)
    ]
    columns = [
        " ".join("".join(row[part].split()) for row in rows) for part in (slice(40), slice(40, 80))
    ]
    for column, first, second in zip(columns, answers, later, strict=True):
        text = column.replace(" ", "")
        assert first.replace(" ", "") in text
        assert second.replace(" ", "") in text


def test_a_model_without_template_continues_each_text_by_itself(policies, tmp_path):
    tokenizer = hub.load_tokenizer(policies[0])
    tokenizer.chat_template = None
    hub.save(hub.load_policy(policies[0]), tokenizer, tmp_path)
    base = conversation(tmp_path)
    assert not base.has_template
    said: list[str] = []
    base.answer("two tea", SAMPLING, seed=0, on_text=said.append)
    said.clear()
    base.answer("one cake", SAMPLING, seed=0, on_text=said.append)
    tokenizer.chat_template = CHAT_TEMPLATES["plain"]
    prompt = encode_prompt(tokenizer, "1", ({"role": "user", "content": "one cake"},))
    engine = TransformersEngine(hub.load_policy(policies[0]), tokenizer)
    expected = engine.generate([prompt], SAMPLING, seeds=[0])[0].text
    assert "".join(said).strip() == expected.strip()


def test_a_conversation_that_is_too_long_is_refused_and_can_be_begun_again(policies, capsys):
    talk(
        Chat([conversation(policies[1])], Sampling(90), 0, True),
        "two tea", "one cake " * 50, "/reset", "two tea",
    )  # fmt: skip
    captured = capsys.readouterr()
    assert "and two takes 96 with the answer; /reset begins a new one" in captured.err
    assert len(captured.out.splitlines()) == 3  # the second answer is empty
    with pytest.raises(DataError, match="the conversation has"):
        talk(Chat([conversation(policies[1])], SAMPLING, 0, False), "one cake " * 50)


def test_a_reward_model_does_not_talk(tmp_path, make_scalar_model, tokenizer):
    hub.save(make_scalar_model(), tokenizer, tmp_path)
    with pytest.raises(DataError, match="expected a policy, found in"):
        conversation(tmp_path)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "flows.cli.main", "chat", *arguments]


def test_through_a_pipe_only_the_answer_is_printed(policies):
    done = subprocess.run(
        command(str(policies[0]), "--max-response-tokens", "8"),
        input="two tea\n", env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == sampled(policies[0], "two tea")
    assert done.stdout.count("\n") == 1
    assert done.stderr == ""


@pytest.fixture
def typed(policies) -> Iterator[tuple[Callable[[str], None], Callable[..., str], int]]:
    """`ratchet chat` in a terminal: what types a text, what reads until a text, and the pid.

    Greedy answers of this model have no end before their limit.
    """
    pid, master = pty.fork()
    if pid == 0:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # jobs in the background begin without it
        words = command(str(policies[0]), "--temperature", "0", "--max-response-tokens", "4000")
        os.execve(words[0], words, ENVIRONMENT)
    seen = ""

    def until(text: str, again: bytes = b"") -> str:
        nonlocal seen
        deadline = time.monotonic() + 120
        while text not in seen:
            assert time.monotonic() < deadline, seen
            if select.select([master], [], [], 1)[0]:
                seen += os.read(master, 4096).decode()
            else:
                os.write(master, again)
        before, _, seen = seen.partition(text)
        return before

    yield lambda text: os.write(master, text.encode()), until, pid
    os.close(master)


def test_in_a_terminal_ctrl_c_stops_an_answer_and_ctrl_d_leaves(typed):
    type_, until, pid = typed
    assert "/quit leaves; Ctrl-C stops an answer" in until("> ")
    type_("two tea\n")
    until("two tea\r\n")
    until("have")  # a word of the answer is there, and it has thousands
    type_("\x03")
    until("(stopped)")
    until("> ")
    type_("half a line")
    until("half a line")
    type_("\x03")
    until("> ", b"\x03")  # `input` overlooks one that comes while it shows a key
    type_("\x04")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
