"""What Docker says of a cluster's nodes."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from harness.core.errors import HarnessError, UsageError
from harness.provision.kind import pause_resume
from harness.provision.kind.install import create_or_reuse, require_versions
from harness.provision.kind.nodes import KindNodes
from harness.provision.kind.state import State, save
from harness.settings import Settings

NODES = ("k-worker", "k-control-plane")


def docker(folder: Path, monkeypatch: pytest.MonkeyPatch, states: list[str]) -> KindNodes:
    """Put a `docker` on PATH that lists the nodes with these states."""
    lines = "\n".join(f"{name} {state}" for name, state in zip(NODES, states, strict=True))
    program = folder / "docker"
    program.write_text(f"#!/bin/sh\nprintf '{lines}\n'\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    return KindNodes(Settings(cluster_name="k", state_dir=folder))


def test_the_control_plane_comes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = docker(tmp_path, monkeypatch, ["running", "exited"])
    assert kind.running() == {"k-control-plane": False, "k-worker": True}
    assert kind.nodes() == ["k-control-plane", "k-worker"]
    assert kind.pools() == ["k-worker"]


@pytest.mark.parametrize(
    ("states", "paused"),
    [
        (["exited", "exited"], True),
        (["exited", "created"], True),
        (["exited", "running"], False),
        (["paused", "paused"], False),
    ],
)
def test_a_cluster_is_paused_when_every_node_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, states: list[str], paused: bool
) -> None:
    """Contract: nodes that `docker pause` froze are there, and are trouble, not a pause."""
    assert pause_resume.paused(docker(tmp_path, monkeypatch, states)) is paused


def test_kind_cluster_that_harness_did_not_create_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: without a state file nothing is deleted, and a launch is refused before it asks kind."""
    kind = docker(tmp_path, monkeypatch, ["running", "running"])
    kind.settings = kind.settings.model_copy(update={"kind_bin": str(tmp_path / "no-kind")})
    assert kind.delete() is False
    with pytest.raises(UsageError, match="but the harness did not create it") as refused:
        kind.refuse_foreign()
    assert (refused.value.exit_code, refused.value.cause) == (64, "cluster.name_taken")


@pytest.mark.parametrize(
    ("state", "stopped"), [("exited", True), ("dead", True), ("paused", False), ("running", False)]
)
def test_a_control_plane_that_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: str, stopped: bool
) -> None:
    """Contract: the container is named, with the command that starts it. A stopped worker is none."""
    text = docker(tmp_path, monkeypatch, ["exited", state]).stopped()
    assert (text is not None) is stopped
    assert text is None or "`docker start k-control-plane` starts it" in text


@pytest.mark.parametrize(
    ("names", "deleted"),
    [(NODES, False), (["k-control-plane"], False), (["k-worker"], True), ([], True)],
)
def test_a_cluster_without_a_control_plane_was_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, names: list[str], deleted: bool
) -> None:
    """Contract: a control plane that is stopped or paused is there."""
    kind = docker(tmp_path, monkeypatch, ["exited", "exited"])
    (tmp_path / "docker").write_text("#!/bin/sh\n" + "".join(f"echo {name} exited\n" for name in names))
    assert (kind.deleted() is not None) is deleted


def test_a_docker_error_does_not_report_a_deleted_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = docker(tmp_path, monkeypatch, ["running", "running"])
    (tmp_path / "docker").write_text("#!/bin/sh\nexit 1\n")
    assert kind.deleted() is None


def test_a_recreated_cluster_counts_as_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = docker(tmp_path, monkeypatch, ["running", "running"])
    save(kind.dir, State("k", "ready", "image", 1, "2026-01-01T00:00:00Z"))
    kind.used_from_now_on()
    assert kind.deleted() is None
    save(kind.dir, State("k", "ready", "image", 1, "2026-01-01T00:09:00Z"))
    assert "replaced by a new cluster at 2026-01-01T00:09:00Z" in (kind.deleted() or "")


@pytest.mark.parametrize(
    ("image", "wanted", "message"),
    [
        ("harness/jobset:v0.12.0-0123456789ab", "v0.12.0-ba9876543210", ""),
        ("registry.k8s.io/jobset/jobset:v0.12.0@sha256:01", "v0.12.0", ""),
        ("localhost:5000/jobset:v0.12.0-rc.1", "v0.12.0-rc.1", ""),
        (
            "harness/jobset:v0.12.0-0123456789ab",
            "v0.11.1-ba9876543210",
            "expected jobset v0.11.1, found v0.12.0",
        ),
        ("localhost:5000/jobset:v0.12.0-rc.1", "v0.12.0", "expected jobset v0.12.0, found v0.12.0-rc.1"),
    ],
)
def test_a_kept_cluster_keeps_its_versions_of_the_controllers(image: str, wanted: str, message: str) -> None:
    """Contract: another version is refused before anything in the cluster is changed."""
    containers = [{"name": "proxy", "image": "proxy:v1"}, {"name": "manager", "image": image}]
    jobset = {"spec": {"template": {"spec": {"containers": containers}}}}
    kube: Any = SimpleNamespace(get=lambda *key: jobset if "jobset-controller-manager" in key else None)
    versions = {"jobset": wanted, "kueue": "v0.19.2"}
    with pytest.raises(UsageError, match=message) if message else nullcontext():
        require_versions("kept", kube, versions)


def test_kept_cluster_with_another_jobset_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Contract: the message names the two versions of JobSet, even where the node images differ too."""
    kind = docker(tmp_path, monkeypatch, ["running", "running"])
    monkeypatch.setattr(kind, "abandoned", lambda: False)
    installed = {"jobset": "v0.11.1-0123456789ab", "kueue": "v0.19.2"}
    save(kind.dir, State("k", "ready", "node:a", kind.settings.workers, "2026-01-01", versions=installed))
    stack = SimpleNamespace(node_image="node:b", versions={**installed, "jobset": "v0.12.0-0123456789ab"})
    images: Any = SimpleNamespace(stack=stack)
    context: Any = SimpleNamespace(progress=print)
    with pytest.raises(UsageError, match=r"expected jobset v0\.12\.0, found v0\.11\.1"):
        create_or_reuse(kind, images, context)
    stack.versions = installed
    with pytest.raises(HarnessError, match="expected the node image and number of workers") as refused:
        create_or_reuse(kind, images, context)
    assert refused.value.cause == "cluster.mismatch"
