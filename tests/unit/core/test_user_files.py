"""Files that users write are read with bounds, and what cannot be used is refused with its line."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from harness.core.errors import UsageError
from harness.core.user_files import MAX_BYTES, read_text, toml
from harness.core.user_yaml import yaml_document, yaml_documents, yaml_texts

ALIASES = "a: &a [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)
MERGES = "a: &a {x: 1}\n" + "".join(
    f"{name}: &{name} {{<<: [{', '.join([f'*{before}'] * 10)}]}}\n"
    for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 2\na: 3\n", "line 3: duplicate key 'a'; its first occurrence is in line 1"),
        ("x:\n  1: 2\n  '1': 2\n", "line 3: duplicate key '1'; its first occurrence is in line 2"),
        (
            "a: &a {x: 1}\nb: {<<: *a, <<: *a}\n",
            "line 2: duplicate key '<<'; its first occurrence is in line",
        ),
        (ALIASES, "line 5: a file can have at most 50000 values"),
        (MERGES, "at most 50000 values"),
        ("a: &a [*a]\n", "line 1: alias *a refers to a collection that contains it"),
        ("a: &a x\nb: [" + "*a, " * 1001 + "]", "line 2: a file can have at most 1000 aliases"),
        ("[" * 100_000, "line 1: lists and mappings can be nested at most 64 deep"),
        ("- " * 50_000, "lists and mappings can be nested at most 64 deep"),
        ("{" + "a, " * 60_000, "at most 50000 values"),
        ("n: " + "9" * 10_000, "line 1: expected a number of at most 64 characters, found 10000"),
        ("n: 9223372036854775808", "expected a whole number between"),
        ("n: " + ":".join(["1"] * 5_000), "expected a number of at most 64 characters"),
        ("k" * 1025 + ": 1", "mapping values are not allowed"),
        ("? " + "k" * 1025 + "\n: 1", "line 1: expected a key of at most 1024 characters, found 1025"),
        ("? [a]\n: b\n", "line 1: a key must be a string, not a list or a mapping"),
        (
            "a: !!python/object/apply:os.system [ls]\n",
            "line 1: the tag !!python/object/apply:os.system is not",
        ),
        ("a: !!binary aGk=\n", "the tag !!binary is not"),
        ("a: !!int x\n", "line 1: !!int is expected"),
        ("a: !!bool x\n", "line 1: !!bool is expected"),
        ("a: *b\n", "not valid YAML, line 1, column 4: found undefined alias"),
        ("a: [", "not valid YAML, line 1, column 5"),
    ],
)
def test_bad_yaml_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(UsageError) as refused:
        yaml_texts(text, "job file job.yaml")
    assert refused.value.message.startswith("job file job.yaml")
    assert message in refused.value.message
    assert len(refused.value.message) < 300


def test_values_are_those_of_json() -> None:
    text = "a: 2026-01-01\nb: =\nc: &c {d: 1, e: 2}\nf: {<<: *c, e: 3}\n---\n---\n1\n"
    assert yaml_texts(text, "x") == [
        {"a": "2026-01-01", "b": "=", "c": {"d": 1, "e": 2}, "f": {"d": 1, "e": 3}},
        None,
        1,
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(1 - 2**63, 2**63 - 1) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=20,
)


@given(JSON)
def test_what_pyyaml_writes_is_read(value: object) -> None:
    """Contract: the bounds refuse nothing that a small file holds."""
    assert yaml_texts(yaml.safe_dump(value), "x") == [value]


@given(st.text(alphabet=st.sampled_from("a1 :-[]{}&*<!|>%?'\"#\n,.~"), max_size=60))
def test_junk_is_read_or_refused(text: str) -> None:
    """Contract: whatever a text is, it gives documents or a UsageError."""
    with suppress(UsageError):
        yaml_texts(text, "x")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ("a: ü\n".encode("utf-16"), " is encoded in UTF-16, but must be encoded in UTF-8"),
        ("a: ü\n".encode("utf-32"), " is encoded in UTF-32, but must be encoded in UTF-8"),
        ("a: 1\nb: ü\n".encode("latin-1"), " is not valid UTF-8: invalid byte 0xfc on line 2"),
        ("a: x".encode("utf-16-le"), " is not a text file: control character U+0000 on line 1"),
        (b"a: 1\nb: \x1b[0m", " is not a text file: control character U+001B on line 2"),
        (b"#" * (MAX_BYTES + 1), f": expected at most {MAX_BYTES} bytes, found {MAX_BYTES + 1}"),
    ],
)
def test_other_encodings_and_large_files_are_refused(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "job.yaml"
    path.write_bytes(data)
    with pytest.raises(UsageError) as refused:
        yaml_document(path, "job file")
    assert refused.value.message == f"job file {path}{message}"


def test_a_byte_order_mark_of_utf8_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_bytes("\ufeffa: ü".encode())
    assert yaml_documents(tmp_path / "job.yaml", "job file") == [{"a": "ü"}]


def test_what_is_no_regular_file_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "loop").symlink_to("loop")
    for path, message in (
        (tmp_path, "is a folder, but must be a regular file"),
        (tmp_path / "pipe", "is a pipe, a socket or a device"),
        (Path("/dev/zero"), "is a pipe, a socket or a device"),
        (tmp_path / "loop", "cannot be read: Too many levels of symbolic links"),
        (tmp_path / "none", "does not exist"),
        (tmp_path / ("n" * 300), "cannot be read: File name too long"),
    ):
        with pytest.raises(UsageError, match=message):
            read_text(path, "job file")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\na = 2\n", "is not valid TOML: Cannot overwrite a value \\(at line 2"),
        ("a = " + "[" * 100_000, "has too many nested brackets"),
        ("a = 1\n" + "b." * 10_000 + "c = 1\n", "line 2: a key can have at most 64 parts"),
        ("x = {" + '"b" . ' * 10_000 + "c = 1}", "line 1: a key can have at most 64 parts"),
        ("a = " + "9" * 10_000, "is not valid TOML"),
    ],
)
def test_bad_toml_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "pyproject.toml").write_text(text)
    with pytest.raises(UsageError, match=message):
        toml(tmp_path / "pyproject.toml", "settings")
