"""Which pods are deleted when a machine was restarted."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

from harness.core.kubernetes import Kube
from harness.provision.controllers.install import renew
from harness.provision.controllers.readiness import CONTROLLERS

STARTED = datetime(2026, 11, 21, 5, tzinfo=UTC)


class Cluster:
    """Has an old and a new pod in each namespace that it is asked for."""

    def __init__(self) -> None:
        self.deleted: list[tuple[str, str]] = []

    def objects(self, version: str, kind: str, namespace: str) -> list[dict[str, Any]]:
        assert (version, kind) == ("v1", "Pod")
        times = {"old": "2026-11-21T04:59:59Z", "new": "2026-11-21T05:00:01Z"}
        return [{"metadata": {"name": name, "creationTimestamp": at}} for name, at in times.items()]

    def delete(self, version: str, kind: str, name: str, namespace: str) -> None:
        self.deleted.append((namespace, name))


def test_only_controller_pods_older_than_the_restart_are_deleted() -> None:
    cluster = Cluster()
    renew(cast(Kube, cluster), STARTED)
    assert cluster.deleted == [(namespace, "old") for namespace in CONTROLLERS.values()]
