"""A StatefulSet: pods with stable names and numbers, NAME-0 to NAME-(n-1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from harness.core.kubernetes import Kube
from harness.evidence import kinds
from harness.launch.plain import PlainWorkload


class StatefulSetWorkload(PlainWorkload):
    """Its controller restarts what ends, so its containers are held when their command has ended."""

    kind: ClassVar[str] = "StatefulSet"
    held: ClassVar[bool] = True
    watched_kind: ClassVar[kinds.WatchedKind] = kinds.STATEFULSET

    def members(self, _kube: Kube, /) -> int:
        """Return its replicas."""
        return int(self.document["spec"].get("replicas", 1))

    def mistakes(self) -> Iterable[str]:
        spec = self.document.get("spec") or {}
        replicas = spec.get("replicas", 1)
        if not isinstance(replicas, int) or isinstance(replicas, bool) or replicas < 1:
            yield f"spec.replicas: a whole number from 1 on; seen {replicas!r}"
        elif replicas > 1 and not spec.get("serviceName"):
            yield "spec.serviceName: the headless Service that names the pods is expected; seen nothing"
