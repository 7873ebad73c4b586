"""Who removes a cluster: the last one that uses it, when nobody wants it kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.context import RunContext
from harness.core.kubernetes import Kube
from harness.provision.cluster import Ready
from harness.provision.images.build import ImageRef
from harness.provision.kind.cluster import KindCluster
from harness.provision.kind.nodes import State
from harness.settings import Settings


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A kind that cannot delete anything is enough here."""
    monkeypatch.delenv("KEEP_CLUSTER", raising=False)
    return Settings(cluster_name="shared", state_dir=tmp_path, kind_bin="false", keep_cluster=False)


def made(settings: Settings, **changes: Any) -> KindCluster:
    kind = KindCluster(settings)
    values = {"phase": "ready", "node_image": "i", "workers": 0, "created_at": "t", "owner": "aaaa"}
    kind.save(State(name="shared", **{**values, **changes}))
    return kind


def ready(kind: KindCluster) -> Ready:
    (kind.dir / "kubeconfig").write_text(
        "contexts: [{name: kind-shared, context: {cluster: c, user: u}}]\n"
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\nusers: [{name: u, user: {}}]\n"
        "current-context: kind-shared\n"
    )
    return Ready(kind, Kube(kind.kubeconfig), ImageRef("worker:1", "sha256:0"), 1, {}, kind.use())


def test_a_cluster_that_another_uses_stays(settings: Settings) -> None:
    kind = made(settings)
    first, second = ready(kind), ready(kind)
    said: list[str] = []
    assert not kind.leave(RunContext(settings=settings, progress=said.append), first, "aaaa")
    assert said == ["cluster shared stays: another harness uses it"]
    assert kind.state() is not None
    assert kind.removable(second, ""), "though another run made it"
    assert kind.used()
    assert not kind.abandoned()
    second.use.release()
    assert kind.abandoned()


@pytest.mark.parametrize("owner", ["aaaa", "bbbb"])
def test_what_never_came_to_be_used_is_removed_by_who_began_it(settings: Settings, owner: str) -> None:
    assert made(settings, phase="creating").removable(None, owner) == (owner == "aaaa")


def test_a_cluster_that_somebody_wants_stays(settings: Settings) -> None:
    kind = made(settings)
    wanted = KindCluster(settings.model_copy(update={"keep_cluster": True}))
    assert not wanted.removable(ready(kind), "aaaa")
    kind.keep()
    assert not kind.removable(ready(kind), "aaaa")
    assert not kind.abandoned()


def test_a_state_of_another_version_is_read(settings: Settings) -> None:
    kind = made(settings)
    path = kind.dir / "state.json"
    path.write_text(path.read_text().replace('"owner"', '"pid": 7, "owner"'))
    state = kind.state()
    assert state is not None
    assert state.owner == "aaaa"
