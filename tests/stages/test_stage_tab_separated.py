"""Files whose values tabs separate."""

from __future__ import annotations

import csv
import gzip

import pytest

from stages.configs.data_config import FileDataConfig
from stages.datasets import demonstrations
from training_core.errors import DataError

PLAIN = 'question\tanswer\n"Yes" or no?\tyes\nWhat is 2\'s double?\t4\n"odd\t"one\n'
ROWS = [{"question": 'say "a, b"', "answer": "a\tb"}, {"question": "two\nlines", "answer": "c"}]


def read(path):
    found = demonstrations(FileDataConfig(path=str(path)))
    return [(row.prompt[0]["content"], row.response) for row in found]


@pytest.mark.parametrize("name", ["rows.tsv", "rows.tsv.gz", "v1.2.rows.tsv"])
def test_quotes_that_are_not_closed_are_ordinary_characters(tmp_path, name):
    opened = gzip.open if name.endswith("gz") else open
    with opened(tmp_path / name, "wt") as file:
        file.write(PLAIN)
    assert read(tmp_path / name) == [
        ('"Yes" or no?', "yes"),
        ("What is 2's double?", "4"),
        ('"odd', '"one'),
    ]


def test_quotes_that_are_closed_mean_the_same_as_in_a_csv(tmp_path):
    for name, separator in (("rows.csv", ","), ("rows.tsv", "\t")):
        with (tmp_path / name).open("w", newline="") as file:
            writer = csv.DictWriter(file, list(ROWS[0]), delimiter=separator)
            writer.writeheader()
            writer.writerows(ROWS)
    assert (
        read(tmp_path / "rows.tsv")
        == read(tmp_path / "rows.csv")
        == [
            ('say "a, b"', "a\tb"),
            ("two\nlines", "c"),
        ]
    )


def test_a_field_longer_than_the_usual_limit_of_csv_is_read(tmp_path):
    long = "a" * 200_000
    (tmp_path / "rows.tsv").write_text(f'question\tanswer\n"{long}"\tyes\n')
    assert read(tmp_path / "rows.tsv") == [(long, "yes")]
    assert csv.field_size_limit() < 200_000


def test_a_row_with_too_many_values_and_a_text_that_is_not_utf8_are_named(tmp_path):
    (tmp_path / "rows.tsv").write_text("question\tanswer\na\tb\na\tb\tc\n")
    with pytest.raises(DataError, match=r"rows\.tsv cannot be read as csv: .*line 3"):
        read(tmp_path / "rows.tsv")
    (tmp_path / "more.tsv").write_bytes(b"question\tanswer\na\tcaf\xe9\n")
    with pytest.raises(DataError, match=r"more\.tsv.* row 2 is not UTF-8"):
        read(tmp_path / "more.tsv")


@pytest.mark.parametrize(("name", "separator"), [("rows.tsv", "\t"), ("rows.csv", ",")])
def test_a_separator_at_the_end_of_each_row_does_not_shift_the_columns(tmp_path, name, separator):
    lines = ("question,answer\none,1,\ntwo,2,\n", "question,answer\none,1,x\ntwo,2,y\n")
    (tmp_path / name).write_text(lines[0].replace(",", separator))
    assert read(tmp_path / name) == [("one", "1"), ("two", "2")]
    (tmp_path / f"more-{name}").write_text(lines[1].replace(",", separator))
    with pytest.raises(DataError, match=r"cannot be read as csv: .*more values than"):
        read(tmp_path / f"more-{name}")
