"""Fixtures of every kind of test."""

import socket

import pytest


@pytest.fixture
def unused_tcp_port() -> int:
    """A port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])
