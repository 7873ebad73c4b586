"""Launch a StatefulSet as a workload. Its pods have the stable names NAME-0 to NAME-(n-1)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from harness.core.input_limits import MAX_NODES, count_problem
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes import kinds
from harness.evidence.kubernetes.workload_pods import POD_INDEX
from harness.launch.workloads.base import Surroundings
from harness.launch.workloads.pod_template_workload import PlainWorkload


class StatefulSetWorkload(PlainWorkload):
    """A StatefulSet. Its containers keep running after their command ends, because the kubelet would
    otherwise restart them."""

    kind: ClassVar[str] = "StatefulSet"
    keep_alive: ClassVar[bool] = True
    watched_kind: ClassVar[kinds.WatchedKind] = kinds.STATEFULSET

    @property
    def first_host(self) -> str | None:
        """Return the DNS name of pod 0, or None if the StatefulSet has no headless Service."""
        service = self.document["spec"].get("serviceName")
        return f"{self.name}-0.{service}" if service else None

    def prepare(self, document: Object, surroundings: Surroundings) -> None:
        """Add the variable HARNESS_NODE_RANK for netcheck. Its value is the pod's index label."""
        if surroundings.netcheck:
            field = {"fieldRef": {"fieldPath": f"metadata.labels['{POD_INDEX}']"}}
            env = document["spec"]["template"]["spec"]["containers"][0]["env"]
            env.append({"name": "HARNESS_NODE_RANK", "valueFrom": field})

    def members(self, _kube: Kube, /) -> int:
        """Return the StatefulSet's number of replicas."""
        return int(self.document["spec"].get("replicas", 1))

    def mistakes(self) -> Iterable[str]:
        spec = self.document.get("spec") or {}
        replicas = spec.get("replicas", 1)
        if problem := count_problem("spec.replicas", replicas, MAX_NODES, "pods"):
            yield problem
        elif replicas > 1 and not spec.get("serviceName"):
            yield (
                "spec.serviceName: expected the headless Service that gives the pods DNS names, found nothing"
            )
