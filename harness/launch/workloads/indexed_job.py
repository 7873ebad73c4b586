"""Launch an Indexed Job as a workload. Each pod has a completion index and runs to completion."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from harness.core.input_limits import MAX_NODES, count_problem, shown
from harness.core.kubernetes import Kube, Object
from harness.evidence.kubernetes import kinds
from harness.launch.workloads.base import Surroundings
from harness.launch.workloads.pod_template_workload import PlainWorkload


class IndexedJobWorkload(PlainWorkload):
    """An Indexed Job. It is complete once a pod has succeeded for every index."""

    kind: ClassVar[str] = "Job"
    keep_alive: ClassVar[bool] = False
    watched_kind: ClassVar[kinds.WatchedKind] = kinds.JOB

    @property
    def first_host(self) -> str | None:
        """Return the DNS name of the pod with index 0, or None if the pods have no subdomain."""
        subdomain = self.template["spec"].get("subdomain")
        return f"{self.name}-0.{subdomain}" if subdomain else None

    def members(self, _kube: Kube, /) -> int:
        """Return the Job's number of completions."""
        return int(self.document["spec"]["completions"])

    def prepare(self, document: Object, surroundings: Surroundings) -> None:
        """Set the deadline at which the cluster terminates the job, even if the harness has stopped."""
        limit = int(surroundings.max_seconds)
        spec = document["spec"]
        spec["activeDeadlineSeconds"] = min(int(spec.get("activeDeadlineSeconds") or limit), limit)

    def mistakes(self) -> Iterable[str]:
        spec = self.document.get("spec") or {}
        if spec.get("completionMode") != "Indexed":
            mode = shown(spec.get("completionMode"))
            yield f"spec.completionMode: expected Indexed, so that each pod has a rank, found {mode}"
        if spec.get("suspend") is True and not self.queue:
            yield (
                "spec.suspend: without a queue label, nothing resumes this Job; remove the field, or add "
                "the label"
            )
        count = spec.get("completions")
        if problem := count_problem("spec.completions", count, MAX_NODES, "pods"):
            yield problem
        elif spec.get("parallelism") != count:
            yield (
                f"spec.parallelism: expected {count}, the same as completions, because all ranks must run "
                "at the same time, "
                f"found {shown(spec.get('parallelism'))}"
            )
