"""Report why Kueue has not admitted a job, and how many GPUs are free."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller.api.condition_type import found, parsed, stamp
from harness.torchrun_controller.api.job_fields import Waiting
from harness.torchrun_controller.api.models import QueueSpec
from harness.torchrun_controller.decide import pod_start_delays
from harness.torchrun_controller.decide.decisions import Decision
from harness.torchrun_controller.decide.job_end import JobEnd
from harness.torchrun_controller.decide.reconcile_state import UNEXPLAINED, WAITS
from harness.torchrun_controller.objects.pod_template import capacity as capacity_of
from harness.torchrun_controller.plan.capacity import Capacity, explained

RENEW = timedelta(seconds=60)
"""A waiting job's message contains the number of free GPUs. The number is updated at most once in this
interval."""
DEACTIVATED = "Kueue will not readmit the job: suspend and resume it to queue it again"


class KueueAdmission(JobEnd):
    """The part of a job's reconcile that reports why the job waits for Kueue or for GPUs."""

    def _with_capacity(self, message: str, since: str | None) -> str:
        """Return the message of a waiting job, extended with the number of free GPUs."""
        pods, share = self.status.num_nodes, self.status.processes_per_node
        capacity, queue = self.snapshot.capacity, self.snapshot.waits_in
        self.status.waiting = self.old.waiting
        if capacity is None or queue is None or not pods or not share:
            return message
        waiting_since = parsed(since) if since else self.now
        old_waiting = self.old.waiting
        if old_waiting is None or self.now - parsed(old_waiting.time) >= max(
            RENEW, parsed(old_waiting.time) - waiting_since
        ):
            text = self._capacity(capacity, queue, pods, share)
            if text and (old_waiting is None or text != old_waiting.message):
                self.status.waiting = Waiting(time=stamp(self.now), message=text)
        waiting = self.status.waiting
        return f"{message}; at {waiting.time}: {waiting.message}" if waiting else message

    def _capacity(self, capacity: Capacity, queue: Object, pods: int, share: int) -> str:
        """Return a sentence about the free GPUs for a job that needs `pods` pods with `share` GPUs each.

        Returns "" if the job needs no GPUs, or if the queue's spec is not valid.
        """
        try:
            queue_spec = QueueSpec.model_validate(queue["spec"])
            node_gpus = capacity_of(queue_spec)
        except (ValidationError, ValueError):
            return ""
        if not node_gpus or self.spec.num_gpus == 0:
            return ""
        return explained(capacity, queue_spec, self.spec.scheduling, whole=node_gpus, pods=pods, share=share)

    def _queued(self) -> Decision:
        """Report why the job is queued, based on the conditions that Kueue set on the Workload.

        A JobSet is suspended until Kueue admits it, and again after Kueue has evicted it.
        """
        self.status.start_time = None
        late_pods = self._late_pods()
        if found(self.status.conditions, "PodsReady"):
            self._condition("PodsReady", False, "NotAdmitted", late_pods)
        workload = self.snapshot.workload or {}
        evicted, finished = condition(workload, "Evicted"), condition(workload, "Finished")
        if finished.get("status") == "True":
            message = f"its Workload is finished: {finished.get('message', '')}; {DEACTIVATED}"
            self._condition("Admitted", False, "Deactivated", message)
            return self._decision("Queued", message)
        if (workload.get("spec") or {}).get("active") is False:
            # If a Workload was preempted and later deactivated, Kueue keeps its Evicted condition.
            message = f"{evicted.get('message') or 'its Workload has active: false'}; {DEACTIVATED}"
            self._condition("Admitted", False, "Deactivated", message)
            return self._decision("Queued", message)
        if evicted.get("status") == "True" and evicted.get("reason") == "Preempted":
            return self._preempted(workload, str(evicted.get("message", "")))
        reason, message, requeue_at = self._why_queued(workload)
        self._condition("Admitted", False, reason, message)
        queued = found(self.status.conditions, "Admitted")
        if evicted.get("reason") == "PodsReadyTimeout" and late_pods:
            message = f"{message}; before that, {late_pods}"
        message = self._with_capacity(message, queued.last_transition_time if queued else None)
        if self.snapshot.workload is None and self.ours is not None:
            return self._not_reported_by_kueue(self.ours, message)
        return self._decision("Queued", message, requeue_at=requeue_at)

    def _late_pods(self) -> str:
        """Return why the pods were not running when Kueue evicted the job, or "".

        Kueue reports only that the pods were late. The reason remains in the condition PodsReady until the
        job is admitted again.
        """
        if self.old.phase == "Pending" and self._was_true("Admitted"):
            return self.old.message or ""
        before = found(self.old.conditions, "PodsReady")
        return before.message if before is not None and before.reason == "NotAdmitted" else ""

    def _preempted(self, workload: Object, message: str) -> Decision:
        """Report who preempted the job, and why Kueue has not admitted it again since then."""
        message = message or "another workload preempted it"
        self._condition("Admitted", False, "Preempted", message)
        waits = str(condition(workload, "QuotaReserved").get("message", ""))
        if waits and waits not in message and message not in waits:
            message = f"{message}; the job is queued again: {waits}"
        return self._decision("Preempted", message)

    def _why_queued(self, workload: Object) -> tuple[str, str, datetime | None]:
        """Return the reason why the job waits for Kueue, a message, and the time at which both will change.

        The time is None if it is not known.
        """
        reserved = condition(workload, "QuotaReserved")
        reason, message = str(reserved.get("reason") or "Pending"), str(reserved.get("message", ""))
        details = [
            f"admission check {check['name']} is {check.get('state')}: {check.get('message', '')}".rstrip(
                ": "
            )
            for check in (workload.get("status") or {}).get("admissionChecks") or []
            if check.get("state") != "Ready"
        ]
        if reserved.get("status") != "True":
            if details and condition(workload, "Evicted").get("reason") == "AdmissionCheck":
                message = f"{message}; {details[0]}"
            return reason, message or WAITS, None
        if details:
            return "AdmissionCheck", f"quota is reserved, but {details[0]}", None
        # Without admission checks, Kueue resumes the JobSet right after it has reserved quota.
        since = reserved.get("lastTransitionTime")
        overdue_at = parsed(since) + UNEXPLAINED if since else self.now
        return (reason, message or WAITS, None) if overdue_at <= self.now else ("Pending", WAITS, overdue_at)

    def _not_reported_by_kueue(self, jobset: Object, message: str) -> Decision:
        """Report why Kueue has not created a Workload for the JobSet, according to Events about the
        JobSet."""
        created_at = jobset["metadata"].get("creationTimestamp")
        since = parsed(created_at) if created_at else self.now
        is_late, warnings = self.now >= since + pod_start_delays.LATE, self.snapshot.warnings
        if warnings is not None:
            message = (
                pod_start_delays.of_jobset(self.snapshot, since)
                or pod_start_delays.no_workload(since, self.now)
                or message
            )
        requeue_at = self.now + pod_start_delays.RECHECK if is_late else since + pod_start_delays.LATE
        return replace(
            self._decision("Queued", message, requeue_at=requeue_at), unexplained=is_late and warnings is None
        )
