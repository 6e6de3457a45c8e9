"""Files that cannot be read are refused with the cause, and never with a traceback or a hang."""

import bz2
import gzip
import io
import json
import lzma
import os
import zipfile

import pytest
from datasets import Dataset

from stages.configs.data_config import FileDataConfig
from stages.datasets import demonstrations, preferences, read, texts
from stages.datasets.kinds import DEMONSTRATIONS
from stages.runtime.sources import missing_sources
from training_core.errors import DataError

ROWS = [{"prompt": "une café", "response": "oui"}, {"prompt": "two tea", "response": "no"}]
LINES = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ROWS)
CSV = "prompt,response\nune café,oui\ntwo tea,no\n"
READ = [("une café", "oui"), ("two tea", "no")]


def parquet():
    file = io.BytesIO()
    Dataset.from_list(ROWS).to_parquet(file)
    return file.getvalue()


def zipped(content):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("rows.jsonl", content)
    return file.getvalue()


def pairs_in(path, **settings):
    found = demonstrations(FileDataConfig(path=str(path), **settings))
    return [(row.prompt[0]["content"], row.response) for row in found]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("rows.jsonl.bz2", bz2.compress(LINES.encode())),
        ("rows.jsonl.xz", lzma.compress(LINES.encode())),
        ("rows.csv.gz", gzip.compress(CSV.encode())),
        ("rows.jsonl", b"\xef\xbb\xbf" + LINES.encode()),  # a byte order mark
        ("rows[1]*.jsonl", LINES.encode()),  # no pattern
        ("rows.json", json.dumps(ROWS, indent=1).encode()),
        ("rows.jsonl", LINES.replace("\n", "\n\n").encode()),
    ],
    ids=["bz2", "xz", "csv.gz", "bom", "brackets", "indented", "blank lines"],
)
def test_unusual_files_are_read(tmp_path, name, content):
    (tmp_path / name).write_bytes(content)
    assert pairs_in(tmp_path / name) == READ


BAD = [
    ("cut.parquet", parquet()[:-9], "it does not end with PAR1, so it is cut short; copy it again"),
    ("text.parquet", LINES.encode(), "it does not begin with PAR1, so it is of another format"),
    ("empty.parquet", b"", "it is empty; fill or remove it"),
    ("marks.parquet", b"PAR1PAR1", "mend or replace it"),
    ("text.arrow", LINES.encode(), "cannot be read as arrow: Not an Arrow file; mend or replace"),
    ("empty.arrow", b"", "it is empty; fill or remove it"),
    ("utf16.jsonl", LINES.encode("utf-16"), "row 1 is not UTF-8 text but probably UTF-16; convert"),
    ("utf16.csv", CSV.encode("utf-16"), "row 1 is not UTF-8 text but probably UTF-16; convert"),
    ("utf16.csv", CSV.encode("utf-16-le"), "row 1 is not UTF-8 text but probably UTF-16; convert"),
    ("latin1.jsonl", LINES.encode("latin-1"), "row 1 is not UTF-8 text (byte 0xe9 at column 20)"),
    ("latin1.csv", CSV.encode("latin-1"), "row 2 is not UTF-8 text (byte 0xe9 at column 8)"),
    ("blank.jsonl", b"\n \n", "it has only blank lines; fill or remove it"),
    ("blank.csv", b"\n\n", "it has only blank lines; fill or remove it"),
    ("fields.jsonl", b"{}\n{}\n", "it has no rows, or rows without fields; mend or replace it"),
    ("header.csv", b"prompt,response\n", "it has no rows, or rows without fields; mend or replace"),
    ("cut.jsonl.gz", gzip.compress(LINES.encode() * 99)[:-20], "it is cut short or damaged"),
    ("named.jsonl.gz", LINES.encode(), "it is cut short or damaged (Not a gzipped file"),
    (
        "rows.jsonl.zst",
        b"\x28\xb5\x2f\xfd",
        "(also compressed: gz, bz2, xz); convert",
    ),
    ("rows.jsonl.zip", zipped(LINES), "(also compressed: gz, bz2, xz); convert or decompress it"),
    ("null.jsonl", b"null\n", "row 1 is not a JSON object: found None; mend it, or set skip_bad"),
    ("late.jsonl", LINES.encode() + b"null\n", "row 3 is not a JSON object: found None"),
    ("null.json", b'[null, {"prompt": "a"}]', "row 1 is not a JSON object: found None; remove it"),
    ("cut.json", b'[{"prompt": "a"}, {', "it begins like a JSON array and is none"),
    ("number.jsonl", b"3\n", "row 1 is not a JSON object: found 3"),
    ("twice.jsonl", b'{"prompt": "a", "prompt": "b"}\n', "the field 'prompt' occurs twice"),
    ("half.jsonl", b'{"prompt": "\\ud800", "response": "b"}\n', "surrogates not allowed; mend it"),
    ("deep.jsonl", b'{"a": ' + b"[" * 5000 + b"]" * 5000 + b"}\n", "maximum recursion depth"),
    (
        "ragged.csv",
        b"prompt,response\na,b,c\nd,e,f,g\n",
        "Expected 3 fields in line 3, saw 4",
    ),
]


@pytest.mark.parametrize(("name", "content", "cause"), BAD, ids=[bad[0] for bad in BAD])
def test_a_file_that_cannot_be_read_says_why(tmp_path, name, content, cause):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError) as caught:
        pairs_in(path)
    assert str(path) in str(caught.value)
    assert cause in str(caught.value)


def test_a_fifo_and_a_device_are_refused_at_once(tmp_path):
    os.mkfifo(tmp_path / "rows.jsonl")
    for path in (tmp_path / "rows.jsonl", "/dev/zero"):
        source = FileDataConfig(path=str(path))
        with pytest.raises(DataError, match="expected a file or folder, found a FIFO, device or"):
            demonstrations(source)
        (problem,) = missing_sources(source)
        assert problem.startswith(f"path: {path}: expected a file or folder, found a FIFO")


@pytest.fixture
def as_a_user():
    """Root may read every file, so act as the user nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    yield
    os.seteuid(0)


def test_a_file_without_permission_is_an_error_of_the_input(tmp_path, as_a_user):
    path = tmp_path / "rows.jsonl"
    if os.geteuid() == os.getuid():  # root's folder is closed to nobody, anyway
        path.write_text(LINES)
        path.chmod(0)
    with pytest.raises(DataError, match="permission"):
        demonstrations(FileDataConfig(path=str(path)))
    (problem,) = missing_sources(FileDataConfig(path=str(path)))
    assert "permission" in problem


def test_na_in_a_csv_is_text_and_only_an_empty_cell_is_no_value(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("prompt,response\nNA,null\nn/a,\n")
    source = FileDataConfig(path=str(path), skip_bad_rows=True)
    found = read(DEMONSTRATIONS, source)
    assert [(row.prompt[0]["content"], row.response) for row in found.rows] == [("NA", "null")]
    assert [reason.partition(" (")[0] for reason in found.bad] == [
        "rows.csv, row 2: there is no field 'response'"
    ]


def test_broken_lines_are_bad_rows_that_can_be_skipped_and_are_counted(tmp_path, caplog):
    path = tmp_path / "rows.jsonl"
    first, second = LINES.splitlines()
    path.write_text(f'{first}\n{{"prompt": \n\n[1]\n{second}\n{{"prompt": "a"}}\n')
    with pytest.raises(DataError, match=r"row 2 is not a JSON object.*or set skip_bad_rows"):
        pairs_in(path)
    assert pairs_in(path, skip_bad_rows=True) == READ
    assert "3 of 5 rows are bad and were dropped" in caplog.text
    found = read(DEMONSTRATIONS, FileDataConfig(path=str(path), skip_bad_rows=True))
    assert [reason.partition(": ")[0] for reason in found.bad] == [
        "rows.jsonl, row 2 is not a JSON object",
        "rows.jsonl, row 4 is not a JSON object",
        "rows.jsonl, row 6",
    ]
    assert [row.where for row in found.rows] == ["rows.jsonl, row 1", "rows.jsonl, row 5"]
    assert pairs_in(path, skip_bad_rows=True, limit=1) == READ[:1]


def test_a_file_of_which_every_line_is_broken_has_no_rows(tmp_path):
    (tmp_path / "rows.jsonl").write_text("{\n{\n")
    with pytest.raises(DataError, match=r"every row is bad; the first: rows\.jsonl, row 1 is not"):
        pairs_in(tmp_path / "rows.jsonl", skip_bad_rows=True)


def test_a_file_of_chats_with_the_fields_of_an_agents_log_is_read_as_it_is(tmp_path):
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    row = {"id": "1", "source": "s", "model": "m", "system_prompt": "p", "messages": messages}
    (tmp_path / "rows.jsonl").write_text(json.dumps(row))
    assert pairs_in(tmp_path / "rows.jsonl") == [("a", "b")]


def test_an_array_of_texts_is_read(tmp_path):
    (tmp_path / "rows.json").write_text('["one tea", "two tea"]')
    assert texts(FileDataConfig(path=str(tmp_path / "rows.json"))) == ["one tea", "two tea"]


def test_a_saved_dataset_that_is_damaged_says_so(tmp_path):
    Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    (arrow,) = (tmp_path / "saved").glob("*.arrow")
    arrow.write_bytes(arrow.read_bytes()[:50])
    with pytest.raises(DataError, match=r"saved cannot be read as a saved dataset: .*save it aga"):
        preferences(FileDataConfig(path=str(tmp_path / "saved")))
