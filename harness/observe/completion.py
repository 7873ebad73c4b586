"""Detect when a launch is over, so that the harness can stop waiting. The judge determines the cause.

A launch is over when its object (for example a JobSet or a Job) and all its pods have ended. If the
controller restarts terminated pods (a StatefulSet or a DaemonSet), the launch is over when every rank's
command has ended. A launch is also over if it cannot end by itself because an image cannot be pulled, a queue
or quota will not admit the job, no node can run a pod, a node was lost, or a controller is inactive.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes import autoscalers, refusals, waiting_reasons
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.kubernetes.unschedulable import never_fits
from harness.evidence.kubernetes.workload_pods import pod_index
from harness.evidence.schema.processes import (
    AgentResult,
    AgentWorkers,
    ProcessEnd,
    ProcessGroup,
    ProcessLine,
    ProcessStart,
)
from harness.observe.dry_run import Awaited
from harness.observe.launch_state import (
    LaunchState,
    container_statuses,
    decided,
    ended_as,
    gated,
    is_down,
    true,
)

GRACE = {
    "image": 4.0,
    "image, surely": 1.0,
    "queue": 3.0,
    "unschedulable": 20.0,
    "refused": 4.0,
    "never": 2.0,
    "others": 20.0,
    "evicted": 2.0,
    "pods": 45.0,
    "told": 10.0,
    "lingers": 3.0,
    "node": 4.0,
    "controller": 5.0,
    "idle": 45.0,
    "doubtful": 8.0,
    "helper": 20.0,
    "masked": 30.0,
}
"""The number of seconds that each condition must last before it counts. Transient conditions end sooner.

Examples of conditions:

- image: An image cannot be pulled. This is less than the 10 s until the kubelet's second attempt.
- image, surely: An image cannot be pulled, and retries will not help.
- never: A pod cannot run on any node, even an empty one.
- others: A pod cannot start, and the state of other pods is still unknown. A busy kubelet may report the
  other pods late, and the verdict should name all affected ranks.
- controller: A controller is scaled to 0, and the launch makes no progress.
- idle: The launch makes no progress for any other reason.
- doubtful: The launch makes no progress. After this time, the observer sends a dry run.
- helper: Other containers in the pods are still running after the ranks have ended.
- masked: A pod exited with 0 although its ranks had failed, and other pods are still running.
"""
INIT_RESTARTS = 3
"""The number of restarts after which a failing init container counts as permanently failed."""
NAMED_PODS, NAMED_EXCEPTIONS = 8, 3
CONTROLLERS = ("jobset-controller", "kueue-controller")
_SYSTEM = "system:serviceaccount:kube-system"
_ACCOUNTS = {"StatefulSet": "statefulset-controller", "DaemonSet": "daemon-set-controller"}
"""Maps each kind to the service account of the Kubernetes controller that creates its pods."""


@dataclass
class CompletionDetector(LaunchState):
    """Processes all watch events and determines whether the launch is over."""

    kind: str = "JobSet"
    keep_alive: bool = False
    """Whether containers are kept alive after their command has ended. If so, `exited` must be called for
    each command."""
    scalable: bool = False
    """Whether the number of pods can change during the launch."""
    members: int = 0
    """The number of pods that the launch is expected to have."""
    container: str = ""
    """The name of the container in which the ranks run."""
    admission_seconds: float = 300.0
    """The number of seconds within which Kueue must admit the job. If it is admitted later, too little time
    is left for it to run."""
    hopeless: set[str] = field(default_factory=set)
    """Controller actions that the API server refuses because of a policy, quota or webhook."""
    failed: dict[str, str] = field(default_factory=dict)
    """The failure recorded by each pod's processes, keyed by pod uid. An entry is removed if ranks are
    restarted."""
    _ranks: set[str] = field(default_factory=set)
    """The ids (ProcessEvent.id) of the processes that are ranks."""
    _steps: dict[str, str] = field(default_factory=dict)
    """The controller action that each launched object is waiting for, keyed by uid."""

    def reason(self) -> str | None:
        """Return one sentence that explains why the launch is over, or None if it is not over."""
        if self.scalable:
            self.scaled()
        return (
            self._finished()
            or self._image()
            or self._admission()
            or self._refused()
            or self._pods()
            or self._unserved()
            or self._nodes()
            or self._init()
            or self._masked()
            or self._helpers()
            or self._idle()
        )

    def scaled(self) -> None:
        """Set the expected number of pods to the launched object's replicas.

        If the object is scaled to 0, the previous number of pods is kept.
        """
        for item in self.all(self.launched):
            self.members = int((item.get("spec") or {}).get("replicas") or 0) or self.members

    def recorded(self, event: ProcessLine) -> None:
        """Store a failure recorded by a process. If ranks were started, clear any earlier failure."""
        uid = event.uid or event.pod
        if isinstance(event, ProcessGroup) or (isinstance(event, ProcessStart) and event.role == "rank"):
            self._ranks.add(event.id)
        is_start = isinstance(event, ProcessStart) and event.role != "python"
        if is_start or isinstance(event, (AgentWorkers, ProcessGroup)):
            self.failed.pop(uid, None)
        elif isinstance(event, AgentResult) and event.state != "SUCCEEDED":
            self.failed[uid] = "torchrun failed"
        elif isinstance(event, ProcessEnd) and event.code and event.id in self._ranks:
            self.failed[uid] = f"a rank ended with exit code {event.code}"

    def finished(self) -> bool:
        """Return whether all launched objects have ended."""
        launched = self.all(self.launched)
        return bool(launched) and all(ended_as(item) for item in launched)

    def ran(self) -> bool:
        """Return whether the rank's container has started in at least one existing pod."""
        return any(
            status.get("name") == self.container
            and ({"running", "terminated"} & {*(status.get("state") or {})})
            for pod in self.all("pod")
            for status in pod["status"].get("containerStatuses") or []
        )

    def lingers(self) -> bool:
        """Return whether the launched object has ended but some of its pods are still running."""
        ended_items = [item for item in self.all(self.launched) if ended_as(item)]
        return any(self._lasts(item, "lingers", bool(self.running())) for item in ended_items)

    def summary(self) -> str:
        """Return a one-line summary of the current state for progress and timeout messages."""
        pods = pods_in_line({self._short(pod): self._doing(pod) for pod in self.all("pod")})
        if self.launched != "jobset" and not self.workloads():
            return f"pods: {pods}"
        admitted = [w["metadata"]["name"] for w in self.workloads() if true(w, "Admitted")]
        return f"workload {'admitted' if admitted else 'not admitted'}; pods: {pods}"

    def many(self) -> bool:
        """Return whether there are too many pods to report every pod change."""
        return len(self.all("pod")) > NAMED_PODS

    def _short(self, pod: Object) -> str:
        """Return <replicated job>-<job index>-<completion index> for a JobSet's pod, else the pod's name."""
        name = str(pod["metadata"]["name"])
        return "-".join(name.split("-")[-4:-1]) if self.launched == "jobset" else name

    def _doing(self, pod: Object) -> str:
        code = self.exits.get(pod["metadata"]["uid"])
        return str(pod["status"].get("phase", "?")) if code is None else f"ended with {code}"

    def _lasts(
        self, item: Object, rule: str, is_true: bool, seconds: float | None = None, part: str = ""
    ) -> bool:
        """Return whether a condition has lasted for `seconds`, or for GRACE[rule] if `seconds` is None."""
        return self.lasts(item, rule, is_true, GRACE[rule] if seconds is None else seconds, part)

    def _finished(self) -> str | None:
        if self.deleted and not self.all(self.launched):
            return f"the {self.kind} was deleted"
        if self.keep_alive:
            return self._every_command_ended()
        for item in self.all(self.launched):
            state = ended_as(item)
            if state:
                unreachable = self.out_of_reach()
                running = [p for p in self.running() if p["metadata"]["name"] not in unreachable]
                if self._lasts(item, "pods", True) or not (running or self._untold(item)):
                    return f"the {self.kind} is {state}"
        return None

    def _untold(self, item: Object) -> bool:
        """Return whether to keep waiting for a TorchrunJob to report in its status that its JobSet has ended.

        The verdict depends on this status.
        """
        unreported = [j for j in self.all("torchrunjob") if not (j.get("status") or {}).get("completionTime")]
        return bool(unreported) and not self._lasts(item, "told", True)

    def _every_command_ended(self) -> str | None:
        """Return a sentence that explains why the launch is over if every rank's command has ended, or if a
        command failed more than GRACE["pods"] seconds ago. Otherwise, return None."""
        pods = [pod for pod in self.all("pod") if not self._scaled_away(pod)]
        if 0 < self.members <= sum(pod["metadata"]["uid"] in self.exits for pod in pods):
            return "the command of every rank has ended"
        for pod in pods:
            code = self.exits.get(pod["metadata"]["uid"], 0)
            if self._lasts(pod, "pods", code != 0):
                return f"the command in {pod['metadata']['name']} ended with exit code {code}"
        return None

    def _scaled_away(self, pod: Object) -> bool:
        """Return whether the StatefulSet controller will delete the pod because of a scale-down."""
        index = pod_index(pod)
        return self.scalable and index is not None and index >= self.members

    def _image(self) -> str | None:
        for pod in self.all("pod"):
            for status in container_statuses(pod):
                waiting = (status.get("state") or {}).get("waiting") or {}
                name = pod["metadata"]["name"]
                reason, message = waiting.get("reason", ""), waiting.get("message", "")
                meaning = waiting_reasons.not_started(reason, message)
                is_permanent = meaning is not None and meaning.prospect != "open"
                is_final = meaning is not None and meaning.prospect == "final"
                part = status.get("name", "")
                # Evaluate all timers, even if an earlier one has expired, so that each timer keeps its state.
                over = {
                    rule: self._lasts(pod, rule, is_true, part=part)
                    for rule, is_true in (
                        ("image, surely", is_final),
                        ("image", is_permanent),
                        ("others", is_permanent),
                    )
                }
                if (over["image, surely"] or over["image"]) and (self._all_decided() or over["others"]):
                    which = f"container {part}: " if part and part != self.container else ""
                    return f"{name}: {which}{reason}: {message}"
        return None

    def _all_decided(self) -> bool:
        """Return whether all pods exist and each pod's status shows whether it can start."""
        pods = self.all("pod")
        return len(pods) >= self.members and all(map(decided, pods))

    def _admission(self) -> str | None:
        for workload in self.workloads():
            reserved = condition(workload, "QuotaReserved")
            message = reserved.get("message", "")
            is_final = waiting_reasons.refusal(message).prospect == "final"
            is_refused = reserved.get("status") == "False" and is_final
            if self._lasts(workload, "queue", is_refused):
                return f"Kueue will not admit the workload: {message}"
            evicted = condition(workload, "Evicted")
            is_evicted = evicted.get("status") == "True" and not true(workload, "Finished")
            if self._lasts(workload, "evicted", is_evicted):
                return f"Kueue evicted the workload: {evicted.get('reason')}: {evicted.get('message')}"
            is_waiting = not true(workload, "Admitted") and not true(workload, "Finished")
            if self._lasts(workload, "admission", is_waiting, self.admission_seconds):
                reason = message or "Kueue reports no reason"
                return f"the workload was not admitted within {self.admission_seconds:.0f} s: {reason}"
        return None

    def _refused(self) -> str | None:
        """Return a sentence if the API server permanently refuses the launch's pods, otherwise None."""
        for item in self.all(self.launched):
            refusal = self.refusal()
            if self._lasts(item, "refused", refusal is not None) and refusal is not None:
                return f"the API server rejects a pod of {refusal.kind} {refusal.name}: {refusal.message}"
        return None

    def refusal(self) -> refusals.Refusal | None:
        """Return the permanent refusal that explains why pods are missing, or None."""
        pods = self.all("pod")
        min_nodes = [(job.get("spec") or {}).get("minNodes") for job in self.all("torchrunjob")]
        if len(pods) >= min([self.members, *filter(None, min_nodes)]):
            return None
        newest = refusals.last(self.all("event"), refusals.created(pods))
        return newest if newest and newest.final else None

    def _pods(self) -> str | None:
        pods = self.all("pod")
        unschedulable = {
            pod["metadata"]["uid"]
            for pod in pods
            if condition(pod, "PodScheduled").get("reason") == "Unschedulable"
        }
        reports = self._autoscaler_reports() if unschedulable else {}
        for pod in pods:
            name, uid = pod["metadata"]["name"], pod["metadata"]["uid"]
            is_waiting = uid in unschedulable and not autoscalers.adds_node(reports.get(uid, []))
            misfit = never_fits(pod, self.all("node")) if is_waiting else None
            # Evaluate all timers first, because the `or` below short-circuits.
            long = self._lasts(pod, "unschedulable", is_waiting)
            others_decided = self._lasts(pod, "others", is_waiting, part="scheduling") or self._all_decided()
            if (self._lasts(pod, "never", bool(misfit)) and others_decided) or long:
                message = misfit or condition(pod, "PodScheduled").get("message")
                return f"{name} cannot be scheduled: {message}"
        return None

    def _autoscaler_reports(self) -> dict[str, list[Object]]:
        """Map the uid of each pod to the Events in which an autoscaler reports on it."""
        reports: dict[str, list[Object]] = {}
        for event in self.all("event"):
            if autoscalers.report(event) is not None:
                reports.setdefault(str(mapping(event, "involvedObject").get("uid")), []).append(event)
        return reports

    def _unserved(self) -> str | None:
        """Return the problem as a sentence if a pod is waiting for the scheduler and no kube-scheduler is
        ready."""
        parts = {p["metadata"].get("labels", {}).get("component"): p for p in self.all("control-plane")}
        if "kube-apiserver" not in parts:
            return None  # The cluster's control plane does not run in pods.
        ready = {name for name, part in parts.items() if true(part, "Ready")}
        for pod in self.all("pod"):
            handled = gated(pod) or pod.get("spec", {}).get("nodeName") or condition(pod, "PodScheduled")
            is_waiting = not handled and "kube-scheduler" not in ready
            if self._lasts(pod, "unschedulable", is_waiting, part="unserved"):
                return f"{pod['metadata']['name']} is waiting for a node, but no kube-scheduler is ready"
        return None

    def _nodes(self) -> str | None:
        unreachable = self.out_of_reach()
        for pod in self.running():
            name = pod["metadata"]["name"]
            if self._lasts(pod, "node", name in unreachable):
                return f"node {pod['spec']['nodeName']} of {name} is not Ready"
        return None

    def _init(self) -> str | None:
        """Return a sentence if an init container has failed on every attempt, otherwise None."""
        for pod in self.all("pod"):
            for status in pod["status"].get("initContainerStatuses") or []:
                terminated = (status.get("lastState") or {}).get("terminated") or {}
                is_waiting = ((status.get("state") or {}).get("waiting") or {}).get(
                    "reason"
                ) == "CrashLoopBackOff"
                tries = int(status.get("restartCount") or 0)
                if is_waiting and terminated.get("exitCode") and tries >= INIT_RESTARTS:
                    text = f"ended {tries + 1} times with exit code {terminated['exitCode']}"
                    return f"{pod['metadata']['name']}: init container {status['name']} {text}"
        return None

    def _helpers(self) -> str | None:
        """Return a sentence if all ranks have ended but other containers in their pods are still running.

        Native sidecars do not count, because they are init containers and end with their pods.
        """
        pods = self.all("pod")
        ended_pods = [pod for pod in pods if self._rank_ended(pod)]
        if self.keep_alive or not 0 < self.members <= len(pods) or len(ended_pods) < len(pods):
            return None
        containers_by_pod = {
            pod["metadata"]["name"]: containers for pod in pods if (containers := self._still_runs(pod))
        }
        if (
            not all(self._lasts(pod, "helper", bool(containers_by_pod)) for pod in pods)
            or not containers_by_pod
        ):
            return None
        locations = ", ".join(
            f"container {names[0]} of {pod}" for pod, names in sorted(containers_by_pod.items())[:NAMED_PODS]
        )
        return f"every rank has ended; still running: {locations}"

    def _masked(self) -> str | None:
        """Return a sentence if a pod exited with 0 although its ranks failed, otherwise None.

        Controllers do not restart such a pod, so the other pods could wait forever for its ranks.
        """
        for pod in self.all("pod"):
            uid, name = str(pod["metadata"]["uid"]), pod["metadata"]["name"]
            failure = self.failed.get(uid)
            if self._lasts(pod, "masked", failure is not None and self._ended_well(pod)):
                return f"{name} exited with code 0 even though {failure}; other pods are still running"
        return None

    def _ended_well(self, pod: Object) -> bool:
        """Return whether the rank's command in a pod has exited with 0."""
        if self.keep_alive:
            return self.exits.get(pod["metadata"]["uid"]) == 0
        statuses = pod["status"].get("containerStatuses") or []
        states = [each.get("state") or {} for each in statuses if each.get("name") == self.container]
        return any((state.get("terminated") or {}).get("exitCode") == 0 for state in states)

    def _rank_ended(self, pod: Object) -> bool:
        statuses = pod["status"].get("containerStatuses") or []
        return any(
            status.get("name") == self.container and "terminated" in (status.get("state") or {})
            for status in statuses
        )

    def _still_runs(self, pod: Object) -> list[str]:
        return [
            str(status.get("name"))
            for status in pod["status"].get("containerStatuses") or []
            if status.get("name") != self.container and "running" in (status.get("state") or {})
        ]

    def _idle(self) -> str | None:
        """Return a sentence if a controller has not taken an action that was due immediately."""
        down = [name for name in CONTROLLERS for d in self.all(name) if is_down(d)]
        for jobset in self.all(self.launched):
            awaited = self._awaited(jobset)
            action, uid = awaited.text if awaited else "", jobset["metadata"]["uid"]
            # The object is now waiting for a different controller action, so restart the timers.
            if action != self._steps.get(uid, ""):
                self._steps[uid] = action
                self.begins_again(jobset, "idle")
                self.begins_again(jobset, "doubtful")
            shortened = GRACE["doubtful"] + GRACE["refused"] if action in self.hopeless else None
            is_overdue = self._lasts(jobset, "idle", bool(action), shortened)
            if is_overdue or self._lasts(jobset, "controller", bool(action and down)):
                return f"{action}" + (f"; unavailable components: {', '.join(down)}" if down else "")
        return None

    def awaited(self, at_once: bool = False) -> tuple[Awaited, Object] | None:
        """Return an overdue controller action and the launched object, or None if no action is overdue.

        If `at_once` is true, any action that the object is waiting for counts as overdue.
        """
        for item in self.all(self.launched):
            awaited = self._awaited(item)
            is_overdue = self._lasts(item, "doubtful", awaited is not None)
            if awaited is not None and (is_overdue or at_once):
                return awaited, item
        return None

    def _awaited(self, item: Object) -> Awaited | None:
        """Return the controller action that the object is waiting for, or None."""
        pods = self.all("pod")
        if ended_as(item):
            return None
        # Kueue suspends JobSets and Jobs. It holds back a StatefulSet's pods with a scheduling gate instead.
        if (item.get("spec") or {}).get("suspend") is True or (pods and all(map(gated, pods))):
            return self._of_kueue(item)
        if self.launched != "jobset":
            user = f"{_SYSTEM}:{_ACCOUNTS.get(self.kind, 'job-controller')}"
            return None if pods else Awaited(f"the {self.kind} has no pods", item, "Pod", user)
        return self._of_jobset(item, pods)

    def _of_jobset(self, item: Object, pods: list[Object]) -> Awaited | None:
        jobs, jobset, user = self.all("job"), self._account("jobset-controller"), f"{_SYSTEM}:job-controller"
        if not jobs:
            return Awaited("the JobSet is not suspended, but it has no Job", item, "Job", jobset)
        if not pods:
            return Awaited("the Job has no pods", jobs[0], "Pod", user)
        if self.running():
            return None
        return Awaited("every pod has ended, but the JobSet has not", pods[0], None, user)

    def _account(self, controller: str) -> str | None:
        """Return the user name of a controller's service account, or None if it is not known."""
        for deployment in self.all(controller):
            account = mapping(deployment, "spec", "template", "spec").get("serviceAccountName")
            if account:
                return f"system:serviceaccount:{deployment['metadata'].get('namespace')}:{account}"
        return None

    def _of_kueue(self, item: Object) -> Awaited | None:
        workloads, user = self.workloads(), self._account("kueue-controller")
        if not workloads:
            text = f"the {self.kind} is waiting for admission, but Kueue has not created a Workload for it"
            return Awaited(text, item, "Workload", user)
        unreported = [each for each in workloads if not condition(each, "QuotaReserved")]
        return (
            Awaited("Kueue has not set a condition on the Workload", unreported[0], None, user)
            if unreported
            else None
        )


def pods_in_line(states: Mapping[str, str]) -> str:
    """Summarize the state of each pod in one line.

    If there are more than NAMED_PODS pods, only the number of pods in each state is given, with pod names for
    states that have at most NAMED_EXCEPTIONS pods.
    """
    if len(states) <= NAMED_PODS:
        return ", ".join(sorted(f"{name} {state}" for name, state in states.items())) or "none"
    groups: dict[str, list[str]] = {}
    for name, state in sorted(states.items()):
        groups.setdefault(state, []).append(name)
    return ", ".join(
        f"{len(names)} {state}" + (f" ({', '.join(names)})" if len(names) <= NAMED_EXCEPTIONS else "")
        for state, names in sorted(groups.items(), key=lambda group: -len(group[1]))
    )
