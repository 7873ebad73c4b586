"""The token of a service account is the one of the moment: bound tokens end after an hour."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from events_server import EventsServer
from kubernetes.client.exceptions import ApiException

from harness.core.kubernetes import Kube


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


def test_client_keeps_last_token_while_file_is_replaced(kube: Kube, tmp_path: Path) -> None:
    """Contract: a file that is not there for a moment fails no request."""
    assert kube.fetch("/api/v1").status == 200
    (tmp_path / "token").unlink()
    assert kube.fetch("/api/v1").status == 200
