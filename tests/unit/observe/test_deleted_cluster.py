"""A cluster that somebody deletes in the middle of a launch is named within seconds."""

from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import Server

from harness.core.deadlines import Budget
from harness.core.errors import HarnessError
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter
from harness.evidence.schema.bundle import Launch
from harness.observe import observer as observing
from harness.observe.observer import LaunchObserver

HOW = "Docker has no container of the control plane of cluster k"


def observer(server: Server, folder: Path, deleted: Callable[[], str | None]) -> LaunchObserver:
    writer = BundleWriter.create(folder / "runs", "aaaa", Redactor([]))
    launch = Launch(launcher="apply", namespace="ns", kind="JobSet")
    return LaunchObserver(server.kube(folder), launch, [], writer, Budget(60), deleted)


def test_the_wait_ends_when_the_cluster_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observing, "DELETED_SECONDS", 0.0)
    watching = observer(Server(lambda _: "reset"), tmp_path, lambda: HOW)
    assert not watching.answered()
    with pytest.raises(HarnessError) as raised:
        watching.wait_for_completion(lambda _: None)
    assert raised.value.cause == "cluster.deleted"
    assert HOW in raised.value.message


def test_a_deleted_cluster_is_the_cause_of_launcher_failure(tmp_path: Path) -> None:
    watching = observer(Server(lambda _: "reset"), tmp_path, lambda: HOW)
    with pytest.raises(HarnessError) as raised, watching.blamed():
        raise HarnessError("konduktor ended with 1", cause="launch.konduktor_failed")
    assert raised.value.cause == "cluster.deleted"


def test_an_error_on_an_existing_cluster_keeps_its_cause(tmp_path: Path) -> None:
    watching = observer(Server(lambda _: "reset"), tmp_path, lambda: None)
    with pytest.raises(HarnessError) as raised, watching.blamed():
        raise HarnessError("konduktor ended with 1", cause="launch.konduktor_failed")
    assert raised.value.cause == "launch.konduktor_failed"
