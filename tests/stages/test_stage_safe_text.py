"""Passwords and control characters in text that is shown."""

import logging

import pytest

from stages.runtime.execution import log_to
from stages.safe_text import printable, redacted, shown
from tests.stages.running import as_if_a_process


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://ann:p%40ss@host:5000/api failed", "http://host:5000/api failed"),
        ("see https://host/u@v and http://host:80/u@v", None),
        ("http://ann:p@ss@host/api", "http://host/api"),  # an @ that should be %40
        ("http://ann:p/ss@host/api", "http://host/api"),  # a slash that should be %2F
        ("postgresql+psycopg://ann:s3cret@db/mlflow", "postgresql+psycopg://db/mlflow"),
        ("mysql://db/x?user=ann&password=s3cret&ssl=1", "mysql://db/x?user=ann&password=***&ssl=1"),
        ("https://host/?api_key=s3cret'", "https://host/?api_key=***'"),
        ("https://s3cret@host", "https://host"),  # a token as user
        ("http://[::1]:4200/api, ann@example.com, a: b", None),
    ],
)
def test_passwords_are_cut_out_of_addresses(text, expected):
    assert redacted(text) == (expected or text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("\x1b]0;renamed\x07", r"\x1b]0;renamed\x07"),
        ("\x1b[2J\r\x08", r"\x1b[2J\r\x08"),
        ("\x9b31m", r"\x9b31m"),  # the same as ESC [ in one character
        ("abc\u202edef", r"abc\u202edef"),  # shows the rest from right to left
        ("\udc9b", r"\udc9b"),  # half a character, which cannot be printed at all
        ("two lines\n\tété 茶 👩‍🍳 [/b]", None),
    ],
)
def test_control_characters_are_spelled_out(text, expected):
    assert printable(text) == (expected or text)


def test_what_is_shown_has_neither():
    assert shown(ValueError("http://a:b@host\x1b[0m")) == r"http://host\x1b[0m"


def test_a_log_spells_out_what_it_is_given(tmp_path, capsys):
    with as_if_a_process():
        log_to(tmp_path / "log.txt")
        logging.getLogger("it").warning("row %s: http://ann:s3cret@host", "\x1b[2J")
    for text in ((tmp_path / "log.txt").read_text(), capsys.readouterr().out):
        assert r"WARNING it: row \x1b[2J: http://host" in text
        assert "\x1b" not in text
