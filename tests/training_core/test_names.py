"""Names that become parts of paths, and JSON that is read strictly."""

import pytest

from training_core.errors import ConfigError, IntegrityError
from training_core.names import checked_file, checked_name, is_file_below, is_name, require_name
from training_core.strict_json import parse_json, read_object


@pytest.mark.parametrize("name", ["a", "tiny", "llama3-8b", "policy_dpo_1", "0", "k" * 100])
def test_names_of_things(name):
    assert is_name(name)
    assert checked_name(name) == require_name("x", name) == name


@pytest.mark.parametrize(
    "name",
    ["", ".", "..", "../x", "a/b", "a.b", "a:b", "a b", "a\n", "-a", "_a", "é", "a\0", "k" * 101],
)
def test_names_that_would_be_other_paths_are_none(name):
    assert not is_name(name)
    with pytest.raises(ConfigError, match=r"lifecycle: expected letters, digits.*found .*; rename"):
        require_name("lifecycle", name, remedy="rename it")
    with pytest.raises(ValueError, match="expected letters, digits"):
        checked_name(name)


def test_files_are_below_their_folder():
    for path in ("a.txt", "sub/config.json", "a b", ".hidden", "..a", "a..", "é"):
        assert checked_file(path) == path
    for path in ("", "/a", "../a", "a/../b", "a/..", ".", "a//b", "a/", "a\0b"):
        assert not is_file_below(path)
        with pytest.raises(ValueError, match="expected a path below its folder"):
            checked_file(path)


def test_json_is_finite_and_has_each_key_once():
    assert parse_json('{"a": [1, 2.5, null, true, "x"]}') == {"a": [1, 2.5, None, True, "x"]}
    assert parse_json(b'{"a": 1.0}') == {"a": 1.0}
    for text in ("NaN", "[Infinity]", "-Infinity", "1e400"):
        with pytest.raises(ValueError, match="which is not finite"):
            parse_json(text)
    with pytest.raises(ValueError, match="the key 'b' twice"):
        parse_json('{"a": {"b": 1, "c": 2, "b": 3}}')
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)
    with pytest.raises(ValueError, match="utf-8"):
        parse_json(b'"\xff"')


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"3", b"\xff", b'{"a": NaN}', b'{"a":1,"a":1}']
)
def test_a_broken_file_is_named_with_its_remedy(tmp_path, content):
    path = tmp_path / "beat.json"
    path.write_bytes(content)
    with pytest.raises(
        IntegrityError, match=r"beat\.json: expected a JSON object, found .*; delete"
    ):
        read_object(path, remedy="delete it")
    with pytest.raises(FileNotFoundError):
        read_object(tmp_path / "gone.json", remedy="delete it")
