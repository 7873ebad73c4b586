"""What Docker saves goes straight to a reader: whoever fails, both end, and both are quoted."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from harness.core.errors import ToolError
from harness.provision.images.containerd_import import CAUSE, LocalImage, pipe

IMAGE = LocalImage("team/job:1", "sha256:" + "ab" * 32)


def docker(folder: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> None:
    """Put a `docker` first on PATH that runs `body`."""
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\n{body}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def test_the_reader_gets_what_docker_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docker(tmp_path, monkeypatch, 'echo "$@"')
    pipe(IMAGE, ["sh", "-c", f"cat >{tmp_path}/got"])
    assert (tmp_path / "got").read_text() == "save team/job:1\n"


def test_docker_does_not_wait_for_a_reader_that_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    docker(tmp_path, monkeypatch, "yes")
    with pytest.raises(ToolError, match="no room") as caught:
        pipe(IMAGE, ["sh", "-c", "echo no room >&2; exit 3"])
    assert (caught.value.returncode, caught.value.cause) == (3, CAUSE)


@pytest.mark.parametrize("reader", ["cat >/dev/null", "cat >/dev/null; exit 1"])
def test_an_image_that_docker_cannot_save_says_why(
    reader: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the reader took half of it for the whole."""
    docker(tmp_path, monkeypatch, "echo half; echo layer is gone >&2; exit 1")
    with pytest.raises(ToolError, match="layer is gone"):
        pipe(IMAGE, ["sh", "-c", reader])
