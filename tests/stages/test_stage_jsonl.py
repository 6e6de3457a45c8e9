"""Files of JSON lines, of which the last one may be cut off."""

from __future__ import annotations

import json

import pytest

from stages.files import read_jsonl, write_jsonl
from training_core.errors import IntegrityError


def test_a_growing_file_is_read_up_to_its_last_whole_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_jsonl(path) == []
    path.write_text(json.dumps({"step": 1}) + "\n" + '{"step": 2')
    assert read_jsonl(path) == [{"step": 1}]


def test_a_line_that_was_cut_off_is_left_out_and_a_broken_one_before_it_is_named(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for torn in (b'{"st', b'{"step": 2\n', b"\0\0\0", b"\0\0\n", b"\xff\n"):
        path.write_bytes(b'{"step": 1}\n' + torn)
        assert read_jsonl(path) == [{"step": 1}]
    path.write_bytes(b'{"step": 1}\n{"st\n{"step": 3}\n')
    with pytest.raises(
        IntegrityError, match=r"metrics\.jsonl, line 2: expected a JSON object.*remove"
    ):
        read_jsonl(path)
    path.write_bytes(b'{"step": 1}\n[2]\n{"step": 3}\n')
    with pytest.raises(IntegrityError, match=r"line 2: expected a JSON object, found \[2\]"):
        read_jsonl(path)


def test_a_text_with_unusual_line_breaks_is_one_line(tmp_path):
    path = tmp_path / "samples.jsonl"
    rows = [{"text": "a\u2028b\x85c\x0bd"}, {"text": "e"}]
    write_jsonl(path, rows)
    assert read_jsonl(path) == rows
