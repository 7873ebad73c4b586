"""Who removes a cluster: the last one that uses it, when nobody wants it kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from harness.context import RecordedContext, RunContext
from harness.core.errors import UsageError
from harness.core.kubernetes import Kube
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter
from harness.provision.cluster import Ready
from harness.provision.images.build import ImageRef
from harness.provision.kind.cluster import KindCluster
from harness.provision.kind.state import State
from harness.provision.lifecycle import ClusterUse, cluster_of
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
    messages: list[str] = []
    assert not kind.leave(RunContext(settings=settings, progress=messages.append), first, "aaaa")
    assert messages == ["cluster shared is kept, because another harness process uses it"]
    assert kind.state() is not None
    assert kind.removable(second, ""), "though another run made it"
    assert kind.used()
    assert not kind.abandoned()
    second.use.release()
    assert kind.abandoned()


@pytest.mark.parametrize("owner", ["aaaa", "bbbb"])
def test_an_unfinished_cluster_is_removed_only_by_its_owner(settings: Settings, owner: str) -> None:
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


class Interrupted(KindCluster):
    """A cluster whose deletion is interrupted so many times."""

    times = 1

    def delete(self) -> bool:
        self.times -= 1
        if self.times >= 0:
            raise KeyboardInterrupt("SIGTERM")
        (self.dir / "state.json").unlink()
        return True


def recorded(settings: Settings, messages: list[str], tmp_path: Path) -> RecordedContext:
    writer = BundleWriter.create(tmp_path / "runs", "aaaa", Redactor([]))
    return RecordedContext(settings=settings, progress=messages.append, writer=writer)


def test_one_interruption_does_not_end_a_deletion(settings: Settings, tmp_path: Path) -> None:
    """Contract: the cluster goes, and the bundle has its deletion as a stage without the interruption."""
    made(settings)
    messages: list[str] = []
    context, kind = recorded(settings, messages, tmp_path), Interrupted(settings)
    ClusterUse(kind, context).leave_recorded()
    assert kind.state() is None
    assert "the cluster is being deleted; interrupt again to stop the deletion" in messages
    assert [(stage.name, stage.ok) for stage in context.writer.current.stages] == [("delete cluster", True)]
    assert context.writer.current.interrupted is None


def test_a_second_interruption_leaves_the_cluster(settings: Settings, tmp_path: Path) -> None:
    """Contract: its state stays, so that `harness down` finds it, and that is said."""
    made(settings)
    messages: list[str] = []
    context, kind = recorded(settings, messages, tmp_path), Interrupted(settings)
    kind.times = 2
    ClusterUse(kind, context).leave_recorded()
    assert kind.state() is not None
    assert messages[-1] == "cluster shared still exists: remove it with `harness down --cluster-name shared`"
    assert context.writer.current.interrupted == "SIGTERM"


def test_deletion_that_fails_is_told_and_changes_no_verdict(settings: Settings, tmp_path: Path) -> None:
    kind = made(settings)
    messages: list[str] = []
    context = recorded(settings, messages, tmp_path)
    ClusterUse(kind, context).leave_recorded()
    assert kind.state() is not None
    assert messages[-1].startswith(
        "cluster shared still exists: remove it with `harness down --cluster-name shared` ("
    )
    assert [(stage.name, stage.ok) for stage in context.writer.current.stages] == [("delete cluster", False)]


def test_a_cluster_that_another_run_began_is_only_left(settings: Settings, tmp_path: Path) -> None:
    """Contract: leaving what is not to be removed is no stage of a launch."""
    made(settings, owner="bbbb")
    messages: list[str] = []
    context = recorded(settings, messages, tmp_path)
    ClusterUse(KindCluster(settings), context).leave_recorded()
    assert (messages, context.writer.current.stages) == ([], [])


def test_a_kubeconfig_chooses_the_users_own_cluster(settings: Settings) -> None:
    """Contract: it is never removed, a launch leaves nothing there unasked, and others launch there too."""
    kind = made(settings)
    ours = ready(kind)
    theirs = cluster_of(settings.model_copy(update={"kubeconfig": kind.kubeconfig}))
    assert (theirs.name, theirs.owns_namespaces, theirs.retains_namespaces) == ("kind-shared", False, False)
    assert not theirs.removable(ours, "aaaa")
    with pytest.raises(UsageError, match="that the harness created"):
        theirs.owned()
    mine = cluster_of(settings)
    assert (mine.name, mine.owns_namespaces, mine.retains_namespaces) == ("shared", True, True)
    assert ours.kind is kind


def test_failure_to_free_disk_is_only_reported(settings: Settings) -> None:
    """Contract: a failure only says so, and a cluster that is gone keeps nothing."""
    messages: list[str] = []
    kind = KindCluster(settings)
    kind.free_disk("e2e-1", messages.append)
    assert messages == []
    made(settings).free_disk("e2e-1", messages.append)
    assert messages[0].startswith("could not measure the disk usage of the pods in e2e-1: ")
