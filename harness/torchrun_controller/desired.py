"""What is to become of a TorchrunJob: a pure function of the job, what the cluster has of it, and the time.

Level-based: it asks what is, never what changed. So a missed event, a restart of the controller and a second
look at the same state decide the same. The status is written before the actions are done: it holds what must
not be forgotten (that the job is over; that its JobSet is to go), and the actions can be repeated.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from pydantic import ValidationError

from harness.core.kubernetes import Object, condition
from harness.torchrun_controller import jobset as make
from harness.torchrun_controller.capacity import Capacity, explained
from harness.torchrun_controller.conditions import found, parsed, stamp
from harness.torchrun_controller.ends import Ends
from harness.torchrun_controller.job_models import Waiting
from harness.torchrun_controller.look import delete, first_error
from harness.torchrun_controller.models import FINISHED, JobSpec, QueueSpec, Workers
from harness.torchrun_controller.nodes import Refused
from harness.torchrun_controller.observed import (
    Action,
    Create,
    Decision,
    Seen,
    attempt,
    ending,
    failure,
    hindrance,
    lingering,
    syncing,
    workspaces,
)
from harness.torchrun_controller.template import Resolved, resolve
from harness.torchrun_controller.template import capacity as capacity_of

RENEW = timedelta(seconds=60)
"""What is free is told anew after so long at the earliest."""


def desired(job: Object, seen: Seen, now: datetime, *, kai: bool = False) -> Decision:
    """Return the job's status, what is to be done, and when to look again."""
    return _Job(job, seen, now, kai).decide()


class _Job(Ends):
    """What is decided at one look."""

    def decide(self) -> Decision:
        if ending(self.job):
            return self._say("Deleted", "the garbage collector deletes what the job owns")
        if self.old.phase in FINISHED:
            return self._after_the_end()
        try:
            self.spec = JobSpec.model_validate(self.job["spec"])
        except ValidationError as error:
            return self._refuse("InvalidSpec", first_error(error))
        self.status.queue = self.spec.queue_name
        return self._ended() or (self._suspend() if self.spec.suspend else self._go_on())

    def _go_on(self) -> Decision:
        self._condition("Suspended", False, "Resumed" if self._resumed() else "NotSuspended")
        return self._start() if self.ours is None or ending(self.ours) else self._watch(self.ours)

    # -- not yet, and not now ----------------------------------------------------------------------------
    def _suspend(self) -> Decision:
        """Delete the JobSet; claims and place in history stay. A JobSet that ended meanwhile has changed, so
        that its deletion is refused and the next look finds the end."""
        self.status.job_id, self.status.start_time = None, None
        self.status.workers, self.status.workers_status = Workers(), None
        self._condition("PodsReady", False, "Suspended")
        gone = self.ours is None
        message = "no pod runs; set suspend: false to go on" if gone else "its pods are ending"
        self._condition("Suspended", True, "Suspended" if gone else "Suspending", message)
        actions: list[Action] = []
        if self.ours is not None and not ending(self.ours):
            actions.append(delete(self.ours, unchanged=True))
        return self._say("Suspended", message, actions)

    def _start(self) -> Decision:
        self.status.workers = Workers()
        if self.ours is not None:
            if self.old.job_id == self.ours["metadata"]["uid"]:
                return self._finish(
                    "Failed", "JobSetDeleted", "its JobSet was deleted: make a new TorchrunJob"
                )
            return self._say("Pending", "the pods of the time before are ending")
        if self.old.job_id is not None:
            # Made again it might train twice into the same checkpoints.
            return self._finish("Failed", "JobSetDeleted", "its JobSet was deleted: make a new TorchrunJob")
        if self.seen.jobset is not None:
            message = f"there is another JobSet {self.job['metadata']['name']}: delete it, or rename the job"
            return self._say("Pending", message)
        if self.seen.queue is None or ending(self.seen.queue):
            message = f"TorchrunQueue {self.spec.queue_name} is not there: the job starts when it comes"
            self._condition("QueueReady", False, "QueueNotFound", message)
            return self._say("Pending", message)
        return self._make(self.seen.queue)

    def _make(self, queue: Object) -> Decision:
        try:
            asked = QueueSpec.model_validate(queue["spec"])
        except ValidationError as error:
            message = f"TorchrunQueue {self.spec.queue_name} is not valid: {first_error(error)}"
            self._condition("QueueReady", False, "QueueInvalid", message)
            return self._say("Pending", message)
        self._condition("QueueReady", True, "QueueFound")
        try:
            resolved = self._resolved(asked)
            document = make.jobset(self.job, resolved, self._local_queue(asked), kai=self.kai)
        except Refused as refused:
            return self._refuse(refused.reason, str(refused))
        priority = resolved.scheduling.priority_class_name
        if priority and self.seen.priority_classes is not None and priority not in self.seen.priority_classes:
            # Without it the API server refuses every pod, and only an event of the Job says so.
            message = f"PriorityClass {priority} is not there: the job starts when it comes"
            self._condition("QueueReady", False, "PriorityClassNotFound", message)
            return self._say("Pending", message)
        self._describe(resolved)
        there = {claim["metadata"]["name"] for claim in self.seen.claims}
        missing = [
            claim for claim in make.claims(self.job, resolved) if claim["metadata"]["name"] not in there
        ]
        actions: list[Action] = [Create(claim) for claim in missing]
        return self._say("Pending", "its pods are being made", [*actions, Create(document)])

    def _resolved(self, queue: QueueSpec) -> Resolved:
        """Return the job as it will run. Where the best fit is refused, such as by a claim of one node, the
        fewest nodes count. Raises Refused."""
        metadata = self.job["metadata"]
        given = (metadata["name"], self.spec, metadata.get("annotations") or {}, queue)
        try:
            return resolve(*given, self.seen.capacity)
        except Refused:
            return resolve(*given)

    def _local_queue(self, queue: QueueSpec) -> str | None:
        return None if self.kai else queue.local_queue or self.spec.queue_name

    def _describe(self, resolved: Resolved) -> None:
        self.status.job_name = resolved.name
        self.status.num_nodes = resolved.plan.nodes
        self.status.processes_per_node = resolved.plan.processes
        self.status.torchrun_command = resolved.torchrun

    # -- it is there -------------------------------------------------------------------------------------
    def _watch(self, jobset: Object) -> Decision:
        self.status.job_id = jobset["metadata"]["uid"]
        pods = attempt(self.seen.pods, jobset)
        self._count(pods)
        if jobset["spec"].get("suspend"):
            return self._queued()
        admitted = not self.kai
        if admitted:
            self._condition("Admitted", True, "Admitted")
        if self.status.start_time is None:
            self.status.start_time = stamp(self.now)
        brought = workspaces(pods)
        if len(set(brought.values())) > 1:
            each = ", ".join(f"{pod} has {what}" for pod, what in sorted(brought.items()))
            message = f"the pods brought different code: {each}; name a tag or a commit, which do not move"
            return self._refuse("WorkspaceDiffers", message)
        counts, need = self.status.workers, self._least()
        if counts.failed:
            why = failure(pods)
            self._condition("PodsReady", False, "RankFailed", why)
            if counts.running + counts.succeeded < need or self._least() == self.status.num_nodes:
                return self._say("Pending", f"{why}; the JobSet ends this attempt", wake=self._deadline())
        if counts.running + counts.succeeded >= need:
            if found(self.status.conditions, "WorkspaceReady"):
                self._condition("WorkspaceReady", True, "Synced", _brought(brought))
            ready = counts.ready + counts.succeeded >= need
            self._condition("PodsReady", ready, "PodsReady" if ready else "PodsNotReady")
            # All may have succeeded: it is over when the JobSet says so.
            return self._say("Running", lingering(pods) or None, wake=self._deadline())
        self._condition("PodsReady", False, "PodsNotReady")
        if syncing(pods):
            self._condition("WorkspaceReady", False, "Syncing", "pods wait for their workspace")
            return self._say("Syncing", "pods wait for their workspace", wake=self._deadline())
        up = f"{counts.running + counts.succeeded} of {self.status.num_nodes} pods run"
        why, again = hindrance(pods, self.now)
        wake = min(filter(None, (again, self._deadline())), default=None)
        said = f"{up}: {why}" if why else up
        if "Unschedulable" in why:
            said = self._with_capacity(said, self.status.start_time)
        return self._say("Pending", said, wake=wake)

    def _with_capacity(self, message: str, since: str | None) -> str:
        """Return the message of a job that waits, with what is free for its GPUs on nodes now."""
        pods, share = self.status.num_nodes, self.status.processes_per_node
        capacity, queue = self.seen.capacity, self.seen.waits_in
        self.status.waiting = self.old.waiting
        if capacity is None or queue is None or not pods or not share:
            return message
        began = parsed(since) if since else self.now
        old = self.old.waiting
        if old is None or self.now - parsed(old.time) >= max(RENEW, parsed(old.time) - began):
            text = self._capacity(capacity, queue, pods, share)
            if text and (old is None or text != old.message):
                self.status.waiting = Waiting(time=stamp(self.now), message=text)
        waiting = self.status.waiting
        return f"{message}; at {waiting.time}: {waiting.message}" if waiting else message

    def _capacity(self, capacity: Capacity, queue: Object, pods: int, share: int) -> str:
        """Return what is free for pods with `share` ranks; "" for a job without GPUs."""
        try:
            asked = QueueSpec.model_validate(queue["spec"])
            whole = capacity_of(asked)
        except (ValidationError, ValueError):
            return ""
        if not whole or self.spec.num_gpus == 0:
            return ""
        return explained(capacity, asked, self.spec.scheduling, whole=whole, pods=pods, share=share)

    def _queued(self) -> Decision:
        """Say what Kueue says. It sets the JobSet's suspend, also when it takes admitted pods back."""
        self.status.start_time = None
        workload = self.seen.workload or {}
        evicted = condition(workload, "Evicted")
        if evicted.get("status") == "True" and evicted.get("reason") == "Preempted":
            message = str(evicted.get("message", "")) or "a workload before it took its place"
            self._condition("Admitted", False, "Preempted", message)
            return self._say("Preempted", message)
        reserved = condition(workload, "QuotaReserved")
        message = str(reserved.get("message", "")) or "waits for Kueue to admit it"
        self._condition("Admitted", False, str(reserved.get("reason") or "Pending"), message)
        queued = found(self.status.conditions, "Admitted")
        since = queued.last_transition_time if queued else None
        return self._say("Queued", self._with_capacity(message, since))


def _brought(found: dict[str, str]) -> str:
    return next(iter(found.values()), "the workspace is in every pod")
