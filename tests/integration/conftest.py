"""Fixtures of the tests with real servers. A test file whose server has options has its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tracker_server import Server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """The tracker on loopback, one for each test file."""
    server = Server(tmp_path_factory.mktemp("tracker")).start()
    yield server
    server.stop()
