"""Whose namespace may go: one that a living launch uses never, however old, and with or without pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from harness.launchers.config import NONCE_LABEL
from harness.namespaces import Claims, namespace_of


def namespace(nonce: str, minute: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": namespace_of(nonce),
            "creationTimestamp": f"2026-11-21T10:{minute:02}:00Z",
            "labels": {NONCE_LABEL: nonce},
        }
    }


def test_a_claimed_namespace_is_not_free(tmp_path: Path) -> None:
    mine, others = Claims(tmp_path / "launches"), Claims(tmp_path / "launches")
    there = [namespace("ccc", 3), namespace("aaa", 1), namespace("bbb", 2)]
    assert mine.free(there) == ["e2e-aaa", "e2e-bbb", "e2e-ccc"], "oldest first"
    others.claim("aaa")
    assert mine.free(there) == ["e2e-bbb", "e2e-ccc"]
    others.give_up("aaa")
    others.give_up("aaa")
    assert mine.free(there) == ["e2e-aaa", "e2e-bbb", "e2e-ccc"]
    assert list((tmp_path / "launches").iterdir()) == []
