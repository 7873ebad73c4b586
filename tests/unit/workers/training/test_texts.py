"""From JSONL to sequences: every token but the first is predicted exactly once."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.workers.training import texts
from harness.workers.training.texts import Bytes, Stream


def written(path: Path, *lines: str) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


@given(st.lists(st.integers(0, 256), min_size=2, max_size=200), st.integers(1, 40))
def test_every_token_but_the_first_is_predicted_once(tokens: list[int], context: int) -> None:
    """Contract: inputs and targets of all sequences together are the stream, shifted by one."""
    stream = Stream(texts.array("q", tokens), context)
    rows = [stream.sequence(index) for index in range(stream.sequences)]
    assert [token for row in rows for token in row[:-1]] == tokens[:-1]
    assert [token for row in rows for token in row[1:]] == tokens[1:]
    assert [len(row) for row in rows[: stream.whole]] == [context + 1] * stream.whole


def test_documents_end_with_a_mark(tmp_path: Path) -> None:
    path = written(tmp_path / "a.jsonl", json.dumps({"text": "ab"}), "", json.dumps({"text": "é"}))
    stream = texts.read(path, Bytes(), 8)
    assert stream.tokens.tolist() == [97, 98, 256, *"é".encode(), 256]


@pytest.mark.parametrize("line", ["no json", "[1]", '{"other": "x"}', '{"text": 5}', "7"])
def test_a_bad_line_is_named(line: str, tmp_path: Path) -> None:
    """Contract: file, number and what was seen; nothing is left out in silence."""
    path = written(tmp_path / "a.jsonl", '{"text": "fine"}', line)
    with pytest.raises(ValueError, match=r"a\.jsonl:2: "):
        texts.read(path, Bytes(), 8)


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="two tokens"):
        texts.read(written(tmp_path / "a.jsonl"), Bytes(), 8)
