"""The namespace of a running launch is never deleted, however old it is, and with or without pods."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from loopback import Server

from harness.launch.labels import NONCE_LABEL
from harness.launch.namespaces import NamespaceLeases, namespace_of, prune


def namespace(nonce: str, minute: int) -> dict[str, Any]:
    return {
        "metadata": {
            "name": namespace_of(nonce),
            "creationTimestamp": f"2026-11-21T10:{minute:02}:00Z",
            "labels": {NONCE_LABEL: nonce},
        }
    }


def test_a_claimed_namespace_is_not_free(tmp_path: Path) -> None:
    mine, others = NamespaceLeases(tmp_path / "launches"), NamespaceLeases(tmp_path / "launches")
    there = [namespace("ccc", 3), namespace("aaa", 1), namespace("bbb", 2)]
    assert mine.free(there) == ["e2e-aaa", "e2e-bbb", "e2e-ccc"], "oldest first"
    others.acquire("aaa")
    assert mine.free(there) == ["e2e-bbb", "e2e-ccc"]
    others.release("aaa")
    others.release("aaa")
    assert mine.free(there) == ["e2e-aaa", "e2e-bbb", "e2e-ccc"]
    assert list((tmp_path / "launches").iterdir()) == []


def test_claims_of_killed_harnesses_are_forgotten_with_their_namespaces(tmp_path: Path) -> None:
    """Leases of launches that have no namespace yet are kept."""
    leases = NamespaceLeases(tmp_path)
    leases.acquire("held")
    for nonce in ("gone", "there", "new", "held"):
        (tmp_path / nonce).touch()
        if nonce != "new":
            os.utime(tmp_path / nonce, (0, 0))
    leases.forget([namespace("there", 1)])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held", "new", "there"]


def test_a_silent_api_server_is_not_waited_for(tmp_path: Path) -> None:
    """A verdict is about to be given. Requests are repeated for 20 s otherwise."""
    server = Server(lambda _asked: "frozen")
    prune(server.kube(tmp_path), NamespaceLeases(tmp_path / "launches"))
    assert server.asked == 1
