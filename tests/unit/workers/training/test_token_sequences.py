"""From JSONL to sequences: every token but the first is predicted exactly once."""

import json
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.training import token_sequences
from harness.workers.training.token_sequences import Bytes, Stream


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@given(st.lists(st.integers(0, 256), min_size=2, max_size=200), st.integers(1, 40))
def test_every_token_but_the_first_is_predicted_once(tokens: list[int], context: int) -> None:
    """Contract: inputs and targets of all sequences together are the stream, shifted by one."""
    stream = Stream(token_sequences.array("q", tokens), context)
    rows = [stream.sequence(index) for index in range(stream.sequences)]
    assert [token for row in rows for token in row[:-1]] == tokens[:-1]
    assert [token for row in rows for token in row[1:]] == tokens[1:]
    assert [len(row) for row in rows[: stream.whole]] == [context + 1] * stream.whole


def test_documents_end_with_a_mark(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps({"text": "ab"}), "", json.dumps({"text": "é"}))
    stream = token_sequences.read([path], Bytes(), 8)
    assert stream.tokens.tolist() == [97, 98, 256, *"é".encode(), 256]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("no json", "one JSON object per line is expected; found 'no json'"),
        ("[1]", "one JSON object per line is expected; found '[1]'"),
        ("7", "one JSON object per line is expected; found '7'"),
        ("[" * 100_000, "one JSON object per line is expected; found '[[["),
        (
            '{"other": "x", "id": 1}',
            'the key "text" is expected; the object has "other", "id". Use --text-field',
        ),
        ("{}", 'the key "text" is expected; the object is empty'),
        ('{"text": 5}', '"text" must be a string; found a number'),
        ('{"text": "half \\ud83d"}', '"text" has \\ud83d, half of a surrogate pair, which is not text'),
    ],
)
def test_a_bad_line_is_named(line: str, message: str, tmp_path: Path) -> None:
    """Contract: file, number and what was seen; nothing is left out in silence."""
    path = written(tmp_path / "a.jsonl", '{"text": "fine"}', line, '{"text": "fine"}')
    with pytest.raises(ValueError, match=re.escape(f"{path}:2: {message}")):
        token_sequences.read([path], Bytes(), 8)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "at least 2 tokens are expected; the data is empty"),
        (b"\n \n", "at least 2 tokens are expected; the data has no document"),
        (b'{"text": ""}\n', "at least 2 tokens are expected; the data has 1"),
        (b'{"text": "a"}\n{"text": "b', ':2: the last line is cut off; found \'{"text": "b\''),
        (b'{"text": "a"}\n{"text": "\xc3', ":2: the last line is cut off; found"),
        (b'{"text": "a"} {"text": "b"}', ':1: one JSON object per line is expected; found \'{"text": "a"} {'),
        (b"plain text", ":1: one JSON object per line is expected; found 'plain text'"),
    ],
)
def test_an_empty_truncated_or_wrongly_encoded_file_is_refused(
    content: bytes, message: str, tmp_path: Path
) -> None:
    """Contract: the trainer and the check before a launch refuse it with the same words."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(
        ValueError, match=re.escape(f"{path}{'' if message[0] == ':' else ': '}{message}")
    ) as of_trainer:
        token_sequences.read([path], Bytes(), 8)
    assert token_sequences.examine([path], "text", None).problems == [f"{of_trainer.value}"]


def test_a_file_of_another_system_is_read(tmp_path: Path) -> None:
    """Contract: a byte order mark, CRLF, empty lines and a last line without its end are no errors."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "ab"}\r\n\r\n{"text": "c"}')
    assert token_sequences.read([path], Bytes(), 8).tokens.tolist() == [97, 98, 256, 99, 256]
    assert token_sequences.examine([path], "text", None) == (5, [], 0)


@pytest.mark.parametrize(("letters", "whole"), [(7, False), (8, True), (9, True)])
def test_file_to_train_on_has_one_sequence_at_least(letters: int, whole: bool, tmp_path: Path) -> None:
    path = written(tmp_path / "train.jsonl", json.dumps({"text": "a" * letters}))
    if whole:
        assert token_sequences.read([path], Bytes(), 8, whole=True).whole
        assert not token_sequences.examine([path], "text", 8).problems
        return
    message = "at least 9 tokens are expected (--context 8, plus the next token); the data has 8"
    with pytest.raises(ValueError, match=re.escape(message)):
        token_sequences.read([path], Bytes(), 8, whole=True)
    assert token_sequences.examine([path], "text", 8).problems == [f"{path}: {message}"]


def test_texts_that_do_not_fit_into_memory_are_refused(tmp_path: Path) -> None:
    """Contract: a restart would end in the same way, killed by the kernel. A token needs two bytes."""
    path = written(tmp_path / "train.jsonl", json.dumps({"text": "a" * 99}), json.dumps({"text": "a" * 99}))
    assert len(token_sequences.read([path], Bytes(), 8, memory=400).tokens) == 200
    with pytest.raises(ValueError, match=r"train\.jsonl: 200 tokens or more are too many for this pod"):
        token_sequences.read([path], Bytes(), 8, memory=399)


def test_changed_texts_have_another_fingerprint(tmp_path: Path) -> None:
    before, same, after = (
        token_sequences.fingerprint(
            token_sequences.read([written(tmp_path / "a.jsonl", json.dumps({"text": text}))], Bytes(), 8)
        )
        for text in ("abc", "abc", "abd")
    )
    assert before == same != after


def test_a_rank_with_other_texts_is_named() -> None:
    """Contract: before the first step. Otherwise the ranks wait for each other at the end of an epoch."""
    folder, own = Path("/data"), [(100, 1), (10, 2)]
    assert token_sequences.other_texts([own, own, own], folder) == ""
    assert token_sequences.other_texts([own, own, [(100, 1), (9, 3)]], folder) == (
        "/data: every rank needs the same val texts; rank 0 has 10 tokens, rank 2 has 9 tokens. "
        "Use one volume for all nodes, or copy the texts to each node again"
    )
    message = token_sequences.other_texts([own, [(100, 7), (10, 2)]], folder)
    assert "same train texts; rank 0 has 100 tokens, rank 1 has 100 different tokens." in message
