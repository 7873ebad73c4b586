"""Patterns that cannot take long, and filters that are told what is wrong with them."""

from __future__ import annotations

import json
import re
import sqlite3
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.tracker.query import run_filter
from harness.tracker.query.run_facts import Facts
from harness.tracker.shared.requests import Refused
from harness.tracker.storage.database import Slow

ALPHABET = "ab.-1"
PIECES = st.sampled_from(["a", "b", ".", "[ab]", "[^a]", r"\d", r"\.", "1", "-"])
BRANCH = st.lists(st.tuples(PIECES, st.sampled_from(["", "*", "+", "?"])), min_size=1, max_size=5)
PATTERN = st.tuples(st.booleans(), BRANCH, st.booleans())


def matches(pattern: str, text: str) -> bool:
    """Return whether a filter with the pattern takes a run with the text in its configuration."""
    test = run_filter.read(json.dumps({"config.a": {"$regex": pattern}}))
    row = {"config": json.dumps({"a": text})}
    return test(Facts(None, row))  # type: ignore[arg-type]


@given(st.lists(PATTERN, min_size=1, max_size=3), st.text(ALPHABET, max_size=12))
def test_a_pattern_finds_what_pythons_engine_finds(parts: list[Any], text: str) -> None:
    pattern = "|".join(
        f"{'^' if start else ''}{''.join(map(''.join, branch))}{'$' if end else ''}"
        for start, branch, end in parts
    )
    expected = re.search(pattern.replace("$", r"\Z"), text) is not None
    assert matches(pattern, text) == expected, pattern


def test_no_pattern_takes_long() -> None:
    """Contract: a pattern and a text that keep Python's own engine busy for years."""
    began = time.process_time()
    assert not matches("a?" * 60 + "a+a+a+a+a+b$", "a" * 1000)
    assert time.process_time() - began < 5


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("*", "no argument for repetition"),
        ("[", "missing ]"),
        ("(?=a)", "(?="),
        (r"(a)\1", "escape"),
        ("(a{1000}){1000}", "repetition size"),
        ("x" * 201, "200 characters"),
    ],
)
def test_a_pattern_that_re2_lacks_is_refused(pattern: str, reason: str) -> None:
    with pytest.raises(Refused, match=re.escape(reason)):
        matches(pattern, "")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "expected JSON"),
        ("[]", "expected an object"),
        ('{"$xor": []}', "expected $and, $or or $not"),
        ('{"$and": {}}', "expects a list"),
        ('{"status": {"$gt": 1}}', "does not support $gt"),
        ('{"status": "asleep"}', "unknown state"),
        ('{"name": {"$near": 1}}', "is not one of"),
        ('{"size": 1}', "unknown field"),
        ('{"config.": 1}', "unknown field"),
        ('{"createdAt": {"$gt": "now"}}', "expected a time"),
        ('{"heartbeat_at": "2026-01-01"}', "does not support $eq"),
        ('{"config.a": {"$gt": "x"}}', "expects a number"),
        ('{"config.a": {"$regex": "(?=a)"}}', "(?="),
        ('{"summaryMetrics.a": {"$in": [1]}}', "expected a number"),
        ('{"config.' + "a." * 64 + 'a": 1}', "64 parts"),
        ('{"config.' + "a" * 1025 + '": 1}', "1024 characters"),
        ('{"$or": [' + ",".join(['{"config.a": {"$regex": "b"}}'] * 21) + "]}", "more than 20 patterns"),
        ('{"$not":' * 60 + "{}" + "}" * 60, "nested deeper"),
        ('{"$or": [' + ",".join(['{"name": "a"}'] * 600) + "]}", "more than 500 terms"),
    ],
)
def test_a_wrong_filter_says_what_is_wrong(text: str, says: str) -> None:
    with pytest.raises(Refused) as refused:
        run_filter.read(text)
    assert refused.value.status_code == 400
    assert says in refused.value.detail


def test_a_list_that_takes_too_long_ends() -> None:
    """Contract: past its time nothing of a run is read any more."""
    db = sqlite3.connect(":memory:")
    db.row_factory = sqlite3.Row
    row = db.execute("SELECT 1 AS id, '{\"a\": 1}' AS config").fetchone()
    late, early = (Facts(db, row, time.monotonic() + seconds) for seconds in (-1, 60))
    assert early.value("config", "a") == 1
    for read in (lambda: late.value("config", "a"), lambda: late.metric("m")):
        with pytest.raises(Slow):
            read()
