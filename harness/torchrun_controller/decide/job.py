"""Derive a TorchrunJob's status and actions, as a pure function of the job, its snapshot and the time.

The decision is level-based, which means that it depends only on the current state, not on changes. The
decision is therefore the same after a missed event, a controller restart or a second reconcile. The status is
written before the actions are executed, because the status contains information that must not be lost, such
as the job's result. The actions can be repeated.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta

from pydantic import ValidationError

from harness.core.kubernetes import Object
from harness.torchrun_controller.api import names
from harness.torchrun_controller.api.condition_type import found, parsed, stamp
from harness.torchrun_controller.api.models import FINISHED, Phase, QueueSpec, Workers
from harness.torchrun_controller.api.rejected import Rejected
from harness.torchrun_controller.decide import pod_start_delays
from harness.torchrun_controller.decide.containers import (
    hindrance,
    lingering,
    restarting,
    syncing,
    workspaces,
)
from harness.torchrun_controller.decide.decisions import (
    Action,
    Check,
    Create,
    Decision,
    Snapshot,
    attempt,
    ending,
    owned,
    owned_by_job,
)
from harness.torchrun_controller.decide.kueue_admission import KueueAdmission
from harness.torchrun_controller.decide.pod_deletion import terminating
from harness.torchrun_controller.decide.queue import jobs_may_use_kai, template_condition
from harness.torchrun_controller.decide.reconcile_state import (
    WAITS,
    delete,
    ended_otherwise,
    read_spec,
    spec_error,
)
from harness.torchrun_controller.decide.silence import sentence
from harness.torchrun_controller.objects import archive_pod, dry_run_pods, etcd, workspace
from harness.torchrun_controller.objects import jobset as make
from harness.torchrun_controller.objects.pod_template import Resolved, resolve
from harness.torchrun_controller.plan.gpu_layout import Refused

OF_GARBAGE_COLLECTOR = ("foregroundDeletion", "orphan")
"""The finalizers that make the garbage collector delete an object's dependents first, or orphan them."""
ETCD_RECHECK = timedelta(seconds=10)
"""The interval at which the controller checks whether etcd's Service exists. Services are not watched."""

STARTS = "the job starts once the API server accepts this object"


def desired(job: Object, snapshot: Snapshot, now: datetime, *, kai: bool = False) -> Decision:
    """Return the decision for a job: its status, the actions, and the time of the next reconcile."""
    return _Job(job, snapshot, now, kai).decide()


class _Job(KueueAdmission):
    """A single reconcile of a job."""

    def decide(self) -> Decision:
        if ending(self.job):
            return self._decision("Deleted", self._deletion())
        if self.old.phase in FINISHED:
            return self._clean_up()
        if ended_otherwise(self.job):
            return Decision(self.old)
        has_jobset = self.old.job_id is not None
        try:
            self.spec, self.version_skew = read_spec(self.job["spec"], has_jobset=has_jobset)
        except ValidationError as error:
            return self._unreadable(spec_error(error))
        if self.version_skew:
            self._not_reconciled("UnknownField", self.version_skew)
        self.status.queue = self.spec.queue_name
        return self._job_end() or (self._suspend() if self.spec.suspend else self._go_on())

    def _unreadable(self, message: str) -> Decision:
        """Return the decision for a job whose spec this version of the controller cannot read.

        Only a new job fails. An older job keeps its phase, because another version of the controller has read
        its spec, and its ranks may have been training for days.
        """
        if not (self.job.get("status") or {}).get("phase"):
            return self._reject("InvalidSpec", message)
        if self.job["spec"].get("cancel") is True:
            return self._finish("Cancelled", "Cancelled", "spec.cancel was set")
        self._not_reconciled("InvalidSpec", message)
        return self._decision(self.old.phase or "Pending", message)

    def _deletion(self) -> str:
        """Return a message that explains why a job that is being deleted still exists."""
        finalizers = self.job["metadata"].get("finalizers") or []
        others = [each for each in finalizers if each not in OF_GARBAGE_COLLECTOR]
        if not others:
            return "the garbage collector is deleting the job's objects"
        return (
            f"its finalizers {', '.join(others)} block the deletion, and its pods keep running until the "
            "finalizers are removed: check the controllers that set them"
        )

    def _go_on(self) -> Decision:
        self._condition("Suspended", False, "Resumed" if self._resumed() else "NotSuspended")
        return self._start() if self.ours is None or ending(self.ours) else self._watch(self.ours)

    # -- while no JobSet exists, or the job is suspended -------------------------------------------------
    def _suspend(self) -> Decision:
        """Suspend the job: delete the JobSet, and keep the claims and the job's history.

        If the JobSet has just ended, its resource version has changed, and the deletion fails. In this case,
        the next reconcile reports the job's result.
        """
        self.status.job_id, self.status.start_time = None, None
        self.status.workers, self.status.workers_status = Workers(), None
        self._condition("PodsReady", False, "Suspended")
        is_deleted = self.ours is None
        message = (
            "no pod is running; set suspend: false to resume" if is_deleted else "its pods are terminating"
        )
        self._condition("Suspended", True, "Suspended" if is_deleted else "Suspending", message)
        if is_deleted:
            return self._decision("Suspended", message)
        actions: list[Action] = []
        if self.ours is not None and not ending(self.ours):
            actions.append(delete(self.ours, unchanged=True))
        return replace(self._terminating("Suspended", message), actions=actions)

    def _terminating(self, phase: Phase, message: str) -> Decision:
        """Return a decision to wait for pods to terminate. The message names a pod that is overdue."""
        problem = terminating(self.snapshot.pods, self.now)
        message = f"{message}: {problem.text}" if problem.warning else message
        return self._decision(phase, message, requeue_at=problem.changes_at)

    def _start(self) -> Decision:
        self.status.workers = Workers()
        uid = self.ours["metadata"]["uid"] if self.ours is not None else None
        if self.old.job_id is not None and uid in (None, self.old.job_id):
            # If a second JobSet were created now, two training jobs might write to the same checkpoints.
            return self._finish("Failed", "JobSetDeleted", "its JobSet was deleted: create a new TorchrunJob")
        if self.ours is not None:
            return self._terminating("Pending", "the pods of the previous JobSet are terminating")
        if self.snapshot.jobset is not None:
            return self._wait_for_other_jobset(self.snapshot.jobset)
        if self.snapshot.queue is None or ending(self.snapshot.queue):
            return self._wait_for_queue("QueueNotFound", "does not exist; the job starts once it is created")
        return self._make(self.snapshot.queue)

    def _wait_for_other_jobset(self, jobset: Object) -> Decision:
        name = self.job["metadata"]["name"]
        if ending(jobset) or owned_by_job(jobset, name):
            return self._terminating("Pending", "the pods of an earlier job of this name are terminating")
        return self._decision("Pending", f"another JobSet {name} exists: delete it, or rename the job")

    def _make(self, queue: Object) -> Decision:
        if self.version_skew:
            return self._decision("Pending", self.version_skew)
        try:
            queue_spec = QueueSpec.model_validate(queue["spec"])
        except ValidationError as error:
            return self._wait_for_queue("QueueInvalid", f"is not valid: {spec_error(error)}")
        checked = template_condition(queue)
        if checked is None:
            return self._wait_for_queue("QueueChecking", "is new or has changed, and is being checked")
        if checked.status != "True":
            return self._wait_for_queue("QueueInvalid", f"is not ready: {checked.message}")
        if self.kai and not jobs_may_use_kai(queue):
            return self._wait_for_queue("KaiQueueNotOpen", "has no kai-scheduler Queue that it may use")
        self._condition("QueueReady", True, "QueueFound")
        return self._make_from(queue_spec)

    def _make_from(self, queue_spec: QueueSpec) -> Decision:
        metadata = self.job["metadata"]
        annotations = metadata.get("annotations") or {}
        try:
            resolved = self._resolved(queue_spec)
            document = make.jobset(self.job, resolved, self._local_queue(queue_spec), kai=self.kai)
            claims = make.claims(self.job, resolved)
        except Refused as refused:
            return self._reject(refused.reason, str(refused))
        missing = self._missing(resolved) or self._wait_for_claims(claims)
        if missing is not None:
            return missing
        self._describe(resolved)
        if self.snapshot.rejected is not None:
            return self._rejected(self.snapshot.rejected)
        existing_claims = {claim["metadata"]["name"] for claim in self.snapshot.claims}
        extra_documents = [
            *(claim for claim in claims if claim["metadata"]["name"] not in existing_claims),
            *archive_pod.documents(self.job, resolved),
        ]
        creates: list[Action] = [Create(each) for each in extra_documents]
        if workspace.parts_of(annotations) is None:
            message = (
                "its code is not in the cluster yet; if `kubectl torchrun submit` was interrupted, run "
                f"`kubectl torchrun sync {metadata['name']}`"
            )
            to_pod = any(each["kind"] == "StatefulSet" for each in extra_documents)
            reason = names.UPLOADING_TO_POD if to_pod else names.UPLOADING
            self._condition("WorkspaceReady", False, reason, message)
            return self._decision("Pending", message, creates)
        actions: list[Action] = [self._check(queue_spec, resolved), *creates, Create(document)]
        return self._create(document, actions)

    def _create(self, jobset: Object, actions: list[Action]) -> Decision:
        """Return the decision to create the job's JobSet.

        The status is written right before the JobSet is created.
        """
        before = found(self.old.conditions, "Accepted")
        if before is not None and before.status == "False":
            # The status keeps its message until the API server accepts the job's objects.
            return self._decision("Pending", f"{before.message}; {STARTS}", actions)
        if not jobset["spec"]["suspend"]:
            return self._decision("Pending", "its pods are being created", actions)
        # Kueue can admit the JobSet as soon as it exists, so the status already shows the job as queued.
        self._count([])
        self._condition("Admitted", False, "Pending", WAITS)
        return self._decision("Queued", WAITS, actions)

    def _check(self, queue_spec: QueueSpec, resolved: Resolved) -> Check:
        any_name = self._resolved(queue_spec, dry_run_pods.ANY_NAME)
        return Check(*(dry_run_pods.of_job(self.job, each, kai=self.kai) for each in (resolved, any_name)))

    def _missing(self, resolved: Resolved) -> Decision | None:
        """Return a decision to wait if the job's PriorityClass or its etcd is missing. Otherwise, return
        None.

        When the JobSet is created, the API server does not check whether the PriorityClass and the etcd
        exist.
        """
        priority = resolved.scheduling.priority_class_name
        if (
            priority
            and self.snapshot.priority_classes is not None
            and priority not in self.snapshot.priority_classes
        ):
            # Without the class, the API server rejects every pod, and reports this only in an Event about the
            # Job.
            message = f"PriorityClass {priority} does not exist; the job starts once it is created"
            self._condition("QueueReady", False, "PriorityClassNotFound", message)
            return self._decision("Pending", message)
        if self.snapshot.no_etcd:
            message = (
                f"rdzvBackend etcd-v2 needs the Service {etcd.NAME} in namespace {etcd.NAMESPACE}, which "
                f"does not exist: run `{etcd.INSTALL}`, or set rdzvEndpoint or rdzvBackend: c10d"
            )
            self._condition("EtcdReady", False, "ServiceNotFound", message)
            return self._decision("Pending", message, requeue_at=self.now + ETCD_RECHECK)
        if etcd.ENDPOINT in resolved.torchrun:
            self._condition("EtcdReady", True, "ServiceFound")
        return None

    def _wait_for_claims(self, claims: list[Object]) -> Decision | None:
        """Return a decision to wait if a claim that the job needs is being deleted. Otherwise, return None.

        If the job did not wait, its pods would use the old claim, and become unschedulable once that claim is
        gone. The garbage collector deletes the workspace claim of an earlier job only after that job's pods
        have ended.
        """
        claim_names = {claim["metadata"]["name"] for claim in claims}
        for claim in self.snapshot.claims:
            name = claim["metadata"]["name"]
            is_of_earlier_job = owned_by_job(claim, self.job["metadata"]["name"]) and not owned(
                claim, self.uid
            )
            if name in claim_names and (ending(claim) or is_of_earlier_job):
                of_job = " of an earlier job of this name" if is_of_earlier_job else ""
                return self._terminating(
                    "Pending", f"claim {name}{of_job} is being deleted; the job starts once it is gone"
                )
        return None

    def _rejected(self, rejected: Rejected) -> Decision:
        """Fail the job if the rejection is final. Otherwise, wait until the API server accepts the object."""
        # No JobSet was created, so the condition Admitted does not apply.
        self.status.conditions = [each for each in self.status.conditions if each.type != "Admitted"]
        if rejected.final:
            return self._reject("Rejected", f"{rejected}; change the job, and create it again")
        self._condition("Accepted", False, rejected.reason, str(rejected))
        return self._decision("Pending", f"{rejected}; {STARTS}")

    def _wait_for_queue(self, reason: str, text: str) -> Decision:
        message = f"TorchrunQueue {self.spec.queue_name} {text}"
        self._condition("QueueReady", False, reason, message)
        return self._decision("Pending", message)

    def _resolved(self, queue: QueueSpec, name: str | None = None) -> Resolved:
        """Return the job merged with the settings of its queue.

        If `name` is given, it replaces the job's name. Raises Refused if the job cannot run. If the BestFit
        layout is not possible, for example because of a ReadWriteOnce claim, the job uses as few nodes as
        possible.
        """
        metadata = self.job["metadata"]
        arguments = (name or metadata["name"], self.spec, metadata.get("annotations") or {}, queue)
        try:
            return resolve(*arguments, self.snapshot.capacity)
        except Refused:
            return resolve(*arguments)

    def _local_queue(self, queue: QueueSpec) -> str | None:
        return None if self.kai else queue.local_queue or self.spec.queue_name

    def _describe(self, resolved: Resolved) -> None:
        self.status.job_name = resolved.name
        self.status.num_nodes = resolved.plan.nodes
        self.status.processes_per_node = resolved.plan.processes
        self.status.torchrun_command = resolved.torchrun

    # -- while the JobSet exists --------------------------------------------------------------------------
    def _watch(self, jobset: Object) -> Decision:
        self.status.job_id = jobset["metadata"]["uid"]
        if found(self.status.conditions, "Accepted"):
            self._condition("Accepted", True, "Accepted")
        pods = attempt(self.snapshot.pods, jobset)
        self._count(pods)
        if jobset["spec"].get("suspend"):
            return self._queued()
        admitted = not self.kai
        if admitted:
            self._condition("Admitted", True, "Admitted")
        if self.status.start_time is None:
            self.status.start_time = stamp(self.now)
        return self._admitted(pods)

    def _admitted(self, pods: list[Object]) -> Decision:
        versions = workspaces(pods)
        if len(set(versions.values())) > 1:
            descriptions = ", ".join(f"{pod} has {version}" for pod, version in sorted(versions.items()))
            message = (
                f"the pods fetched different code: {descriptions}; set ref to a "
                "commit or to a tag that does not move"
            )
            return self._reject("WorkspaceDiffers", message)
        failed = self._attempt_failed(pods)
        if failed is not None:
            return failed
        counts, required = self.status.workers, self._min_pods()
        if counts.running + counts.succeeded >= required:
            if found(self.status.conditions, "WorkspaceReady"):
                self._condition("WorkspaceReady", True, "Synced", _version(versions))
            ready = counts.ready + counts.succeeded >= required
            # The job ends only when its JobSet ends, even if all pods have succeeded earlier.
            return self._running(pods, ready=ready)
        self._condition("PodsReady", False, "PodsNotReady")
        if syncing(pods):
            self._condition("WorkspaceReady", False, "Syncing", "pods are waiting for their workspace")
            return self._decision(
                "Syncing", "pods are waiting for their workspace", requeue_at=self._deadline()
            )
        progress = f"{counts.running + counts.succeeded} of {self.status.num_nodes} pods running"
        problem = hindrance(pods, self.now)
        if not problem and counts.pending == 0:
            # Kubernetes creates a replacement pod only after the old pod is gone.
            problem = terminating(self.snapshot.pods, self.now)
        reason, changes_at = problem.text, problem.changes_at
        if problem.warning:
            self._condition("PodsReady", False, "PodsNotStarting", reason)
        if not reason or pod_start_delays.waits_for_claims(pods) or pod_start_delays.without_image(pods):
            return self._explain(progress, reason, pods, changes_at)
        message = f"{progress}: {reason}"
        if "Unschedulable" in reason:
            # If the reason changes, the status is written immediately. If only the message changes, the write
            # is delayed.
            self._condition("PodsReady", False, "Unschedulable")
            message = self._with_capacity(message, self.status.start_time)
        return self._decision("Pending", message, requeue_at=self._first(changes_at))

    def _attempt_failed(self, pods: list[Object]) -> Decision | None:
        """Return a decision to wait for new pods if a pod has failed or is being disrupted.

        Returns None if no pod is affected, or if the other pods of an elastic job can continue.
        """
        counts, elastic = self.status.workers, self._elastic()
        disruption_reason, disruption_message = self._disruption()
        can_continue = elastic and counts.running + counts.succeeded >= self._min_pods()
        if disruption_message and not can_continue:
            self._condition("PodsReady", False, disruption_reason, disruption_message)
            consequence = self._after_disruption(is_counted=disruption_reason == "PodDeleted")
            return self._decision(
                "Pending", f"{disruption_message}; {consequence}", requeue_at=self._deadline()
            )
        if not counts.failed:
            return None
        reason = self._failure(pods)
        self._condition("PodsReady", False, "RankFailed", reason)
        if can_continue:
            return None
        consequence = (
            "its pod is created again, and the ranks rejoin the rendezvous"
            if elastic
            else "the JobSet ends this attempt"
        )
        return self._decision("Pending", f"{reason}; {consequence}", requeue_at=self._deadline())

    def _after_disruption(self, *, is_counted: bool) -> str:
        if self.spec.reliability.restart_policy == "Never":
            return "restartPolicy is Never, so this ends the job"
        if self._elastic():
            return "its pod is created again, and the ranks rejoin the rendezvous"
        if is_counted:
            return "the JobSet ends this attempt, which counts towards maxRestarts"
        return "all ranks start again, which does not count towards maxRestarts"

    def _running(self, pods: list[Object], *, ready: bool) -> Decision:
        since, next_check = self.snapshot.silent or (None, None)
        silence_text = sentence(since, self.status.workers_status or "") if since else None
        helpers, sidecars = lingering(pods, self.now), restarting(pods)
        reason, message = ("PodsReady", "") if ready else ("PodsNotReady", "")
        if helpers.warning:
            reason, message, ready = "HelpersRunning", helpers.text, False
        elif sidecars and not ready:
            reason, message = "SidecarFailing", sidecars.text
        self._condition("PodsReady", ready, reason, message)
        explanation = helpers.text or sidecars.text or silence_text
        return self._decision("Running", explanation, requeue_at=self._first(next_check, helpers.changes_at))

    def _explain(
        self, progress: str, reason: str, pods: list[Object], changes_at: datetime | None
    ) -> Decision:
        """Return a decision with the phase Pending and a message that explains why pods are late.

        The explanation comes from `reason` or from Events.
        """
        manager = ((self.ours or {}).get("spec") or {}).get("managedBy") or names.JOBSET_MANAGER
        if not pods and manager != names.JOBSET_MANAGER:
            message = (
                f"{progress} in this cluster: {manager} manages its JobSet, and may run it in another one"
            )
            return self._decision("Pending", message, requeue_at=self._deadline())
        since = self._late_since()
        warnings = self.snapshot.warnings
        if warnings is not None:
            nodes = self.status.num_nodes or 1
            secret = pod_start_delays.pull_secret(pods, warnings)
            event = (
                pod_start_delays.explanation(self.snapshot, pods, nodes, since, self.now)
                if not secret
                else ""
            )
            reason = f"{reason}; {secret}" if secret else event or reason
        ready = found(self.status.conditions, "PodsReady")
        if reason and ready is not None and ready.reason == "PodsNotReady":
            # If the reason changes, the status is written immediately. If only the number of pods changes,
            # the write is delayed.
            self._condition("PodsReady", False, "PodsWaiting")
        is_late = self.now >= since + pod_start_delays.LATE
        requeue_at = self._first(
            changes_at, self.now + pod_start_delays.RECHECK if is_late else since + pod_start_delays.LATE
        )
        decision = self._decision(
            "Pending", f"{progress}: {reason}" if reason else progress, requeue_at=requeue_at
        )
        return replace(decision, unexplained=is_late and warnings is None)

    def _late_since(self) -> datetime:
        """Return the time from which the pods' delay is measured.

        This is either the job's admission or the last change of the PodsReady condition, whichever is later.
        """
        pods = found(self.status.conditions, "PodsReady")
        times = [self.status.start_time, pods.last_transition_time if pods else None]
        return max((parsed(time) for time in times if time), default=self.now)

    def _first(self, *times: datetime | None) -> datetime | None:
        return min(filter(None, (*times, self._deadline())), default=None)


def _version(versions: dict[str, str]) -> str:
    return next(iter(versions.values()), "the workspace is in every pod")
