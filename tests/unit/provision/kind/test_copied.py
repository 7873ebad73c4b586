"""Which clusters kind creates although there may be a template."""

from __future__ import annotations

import base64
import io
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.provision.kind import from_template
from harness.settings import Settings

SOURCE: Any = SimpleNamespace(image_source="source", mirrors={}, containerd_patches=())


def kind(**settings: Any) -> Any:
    return SimpleNamespace(settings=Settings(**settings))


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An environment in which nothing speaks against a copy."""
    for name in (*from_template.PROXIES, *(name.lower() for name in from_template.PROXIES)):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))


def test_a_fresh_one_is_asked_for() -> None:
    assert from_template.rejection(kind(fresh=True), SOURCE) == "as asked"


@pytest.mark.parametrize(
    "stack",
    [
        {"image_source": "registry"},
        {"mirrors": {"docker.io": "http://mirror"}},
        {"containerd_patches": ("[plugins]",)},
    ],
)
def test_published_images_need_no_words(stack: dict[str, Any]) -> None:
    assert from_template.rejection(kind(), SimpleNamespace(**{**vars(SOURCE), **stack})) == ""  # type: ignore[arg-type]


def test_a_node_image_of_the_users_own() -> None:
    assert from_template.rejection(kind(node_image="kindest/node:v1.36.3"), SOURCE) == ""


@pytest.mark.parametrize("name", ["HTTP_PROXY", "https_proxy"])
def test_nodes_that_get_a_proxy(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """kind gives it to the nodes, with a list of what is reached without."""
    monkeypatch.setenv(name, "http://proxy:3128")
    assert from_template.rejection(kind(), SOURCE) == "nodes get a proxy"


def test_a_proxy_of_dockers_client(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"proxies": {"default": {"httpProxy": "http://proxy:3128"}}}')
    assert from_template.rejection(kind(), SOURCE) == "nodes get a proxy"


def test_a_proxy_on_a_loopback_address_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """kind does not get it, because the nodes cannot reach it."""
    monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:3128")
    assert from_template.rejection(kind(), SOURCE) != "nodes get a proxy"


@pytest.mark.parametrize(
    ("output", "refused"),
    [
        ('overlay2\n["name=seccomp,profile=builtin","name=cgroupns"]\nDebian GNU/Linux 12', False),
        ("overlayfs\nnull\nFedora Linux 43", False),
        ('overlayfs\n["name=seccomp,profile=unconfined"]\nDocker Desktop', True),
        ("overlay2\nnull\nDocker Desktop", True),
        ("btrfs\n[]\n", True),
        ("zfs\n[]\n", True),
        ('overlay2\n["name=rootless"]\n', True),
        ('overlay2\n["name=userns"]\n', True),
        ("", True),
    ],
)
def test_what_docker_is(output: str, refused: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """kind gives nodes other options there. A daemon that does not answer is no reason to try."""
    monkeypatch.setattr(from_template.processes, "run", lambda *_a, **_k: SimpleNamespace(stdout=output))
    assert (from_template.rejection(kind(), SOURCE) is not None) == refused


@given(st.dictionaries(st.from_regex(r"[a-z]{1,8}(/[a-z]{1,8}){0,2}", fullmatch=True), st.text(), max_size=5))
def test_files_are_packed_as_they_are(files: dict[str, str]) -> None:
    text = from_template.packed({path: (0o600, content) for path, content in files.items()})
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(text))) as archive:
        found = {member.name: archive.extractfile(member) for member in archive}
        assert {member.mode for member in archive} <= {0o600}
        assert {name: file.read().decode() for name, file in found.items() if file} == files
