"""The token of a service account is the one of the moment: bound tokens end after an hour."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from events_server import EventsServer
from kubernetes.client.exceptions import ApiException

from harness.core.kubernetes import Kube
from harness.torchrun_controller.session import connected


@pytest.fixture
def server() -> Iterator[EventsServer]:
    found = EventsServer()
    yield found
    found.shutdown()
    found.server_close()


@pytest.fixture
def kube(server: EventsServer, tmp_path: Path) -> Kube:
    """A client whose token is in a file, as a pod's is."""
    server.token = "first"
    (tmp_path / "token").write_text("first\n")
    return server.kube(tmp_path, {"tokenFile": "token"})


def test_client_takes_the_new_token(server: EventsServer, kube: Kube, tmp_path: Path) -> None:
    """Contract: the kubelet replaces the file; the next request has the new token, without a restart."""
    assert kube.fetch("/api/v1").status == 200
    server.token = "second"
    with pytest.raises(ApiException, match="401"):
        kube.fetch("/api/v1")
    (tmp_path / "token").write_text("second\n")
    assert kube.fetch("/api/v1").status == 200


def test_client_keeps_the_last_token_while_the_file_is_replaced(kube: Kube, tmp_path: Path) -> None:
    """Contract: a file that is not there for a moment fails no request."""
    assert kube.fetch("/api/v1").status == 200
    (tmp_path / "token").unlink()
    assert kube.fetch("/api/v1").status == 200


def test_kopf_takes_the_new_token(server: EventsServer, kube: Kube, tmp_path: Path) -> None:
    """Contract: the session that kopf watches with has the token of the moment; each answer is told."""
    told: list[tuple[str, str, int]] = []

    async def run() -> list[int]:
        info = connected(kube, lambda *answer: told.append(answer))
        statuses = []
        async with info.aiohttp_session as session:
            for token in ("first", "second"):
                server.token = token
                (tmp_path / "token").write_text(token)
                async with session.get(f"{info.server}/api/v1") as answer:
                    statuses.append(answer.status)
        return statuses

    assert asyncio.run(run()) == [200, 200]
    assert told == [("GET", f"{kube.configuration.host}/api/v1", 200)] * 2
