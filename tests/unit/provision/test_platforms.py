"""The platform of the images is that of the Docker server, whatever machine the harness runs on."""

from __future__ import annotations

import platform
from pathlib import Path

import pytest

from harness.core.errors import HarnessError, UsageError
from harness.provision import platforms
from harness.provision.platforms import AMD64, ARM64


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Docker client whose server is what the file says."""
    answer, client = tmp_path / "answer", tmp_path / "docker"
    client.write_text(f'#!/bin/sh\n[ "$1" = version ] && cat {answer}\n')
    client.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.delenv(platforms.DEFAULT, raising=False)
    return answer


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("linux/amd64", AMD64),
        ("linux/x86_64\n", AMD64),
        ("linux/arm64", ARM64),
        ("linux/arm64/v8", ARM64),
        ("Linux/aarch64", ARM64),
    ],
)
def test_the_platform_is_that_of_the_server(server: Path, name: str, found: platforms.Platform) -> None:
    """On Apple Silicon, `docker info` has the kernel's names and `docker version` has Go's."""
    server.write_text(name)
    assert platforms.target() == found == platforms.parse(name)


@pytest.mark.parametrize("name", ["linux/s390x", "linux/arm/v7", "windows/amd64", "linux/", "", "/", "amd64"])
def test_platform_without_images_is_refused_before_anything_is_built(server: Path, name: str) -> None:
    server.write_text(name)
    with pytest.raises(UsageError, match="linux/amd64 or linux/arm64") as error:
        platforms.target()
    assert name in error.value.message
    assert error.value.cause == "docker.unsupported"


def test_dockers_own_variable_decides(server: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`docker build` obeys it, so the packages must be for the same platform."""
    server.write_text("linux/arm64")
    monkeypatch.setenv(platforms.DEFAULT, "linux/amd64")
    assert platforms.target() == AMD64
    monkeypatch.setenv(platforms.DEFAULT, "linux/riscv64")
    with pytest.raises(UsageError, match=platforms.DEFAULT):
        platforms.target()


def test_server_that_does_not_answer_is_error_of_docker(server: Path) -> None:
    with pytest.raises(HarnessError, match="docker version"):
        platforms.target()


def test_node_images_of_another_platform_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "aarch64")
    platforms.require_native(ARM64)
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    platforms.require_native(ARM64)
    assert platforms.here() == ARM64
    with pytest.raises(
        HarnessError, match="linux/amd64 can be built from source only on a machine with this platform"
    ) as error:
        platforms.require_native(AMD64)
    assert "HARNESS_IMAGES=registry" in error.value.hint
