"""A launch names a cluster that was deleted or stopped meanwhile, and asks Docker about it only rarely."""

from collections.abc import Callable
from pathlib import Path

import pytest
from loopback import Server

from harness.core.deadlines import Budget
from harness.core.errors import HarnessError
from harness.evidence.io.redaction import Redactor
from harness.evidence.io.writer import BundleWriter
from harness.evidence.schema.bundle import Launch
from harness.observe import control_plane
from harness.observe.control_plane import ControlPlane
from harness.observe.observer import LaunchObserver

HOW = "Docker has no container for the control plane of cluster k"
STOPPED = "the control plane's container k-control-plane is stopped; `docker start k-control-plane` starts it"


def observer(server: Server, folder: Path, deleted: Callable[[], str | None]) -> LaunchObserver:
    writer = BundleWriter.create(folder / "runs", "aaaa", Redactor([]))
    launch = Launch(launcher="apply", namespace="ns", kind="JobSet")
    return LaunchObserver(server.kube(folder), launch, [], writer, Budget(60), ControlPlane(deleted))


def test_the_wait_ends_when_the_cluster_is_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "FIRST_SECONDS", 0.0)
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


def test_the_wait_ends_when_the_control_plane_stays_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Contract: the cause, the container and the command that starts it."""
    monkeypatch.setattr(control_plane, "FIRST_SECONDS", 0.0)
    monkeypatch.setattr(control_plane, "STOPPED_SECONDS", 0.0)
    watching = observer(Server(lambda _: "reset"), tmp_path, lambda: None)
    watching._control_plane.stopped = lambda: STOPPED
    assert not watching.answered()
    with pytest.raises(HarnessError) as raised:
        watching.wait_for_completion(lambda _: None)
    assert raised.value.cause == "cluster.unreachable"
    assert STOPPED in raised.value.message


def asked_at(plane: ControlPlane, seconds: int) -> tuple[list[int], int | None]:
    """Return the seconds of silence at which it asks, and those at which the control plane counts as lost."""
    times = list[int]()
    for silent in range(seconds):
        if plane.due(silent):
            times.append(silent)
            if plane.lost(silent):
                return times, silent
    return times, None


def test_docker_is_asked_less_and_less_often() -> None:
    """Contract: the first question comes within seconds, and the interval grows to 30 s, in each silence."""
    plane = ControlPlane()
    for _ in range(2):
        times, lost = asked_at(plane, 600)
        assert (times[:6], lost) == ([3, 6, 12, 24, 48, 78], None)
        assert len(times) < 25


def test_a_stopped_control_plane_is_lost_after_a_minute() -> None:
    assert asked_at(ControlPlane(stopped=lambda: STOPPED), 600) == ([3, 6, 12, 24, 48, 60], 60)


def test_control_plane_that_was_started_again_is_not_lost() -> None:
    """Contract: what counts is whether it is stopped after a minute."""
    answers = iter([STOPPED] * 4 + [None] * 100)
    assert asked_at(ControlPlane(stopped=lambda: next(answers)), 600)[1] is None
