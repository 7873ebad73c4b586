"""The launch to be judged, with its bundle, pods, ranks and times."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

from harness.core.clock import seconds
from harness.evidence import worlds
from harness.evidence.io.reader import Bundle
from harness.evidence.kubernetes import kinds
from harness.evidence.kubernetes.objects import ObjectState, Pod, items, mapping
from harness.evidence.schema.bundle import Expected, Launch, Manifest, Stage
from harness.evidence.schema.columns import Columns
from harness.evidence.schema.ground_truth import TruthEnd, TruthRow, TruthStart
from harness.judge import recorded_exits


@dataclass(frozen=True)
class Restart:
    """A restart of a single node's ranks or of all ranks. `at` is the time in seconds since the epoch."""

    at: float
    ranks: list[int]
    text: str
    allowed: bool
    evidence: list[str] = field(default_factory=list)
    by_script: bool = False
    """Whether the run script restarted the ranks, rather than torchrun or Kubernetes."""
    resized: bool = False
    """Whether torchrun formed a world of a different size. This does not count as a job restart."""


_ENDS = (
    *(("Completed", "Completed"), ("Complete", "Completed"), ("Succeeded", "Completed")),
    ("Failed", "Failed"),
)
"""Pairs of (terminal condition of a launched object, resulting terminal state)."""
_PHASES = {"Succeeded": "Completed", **dict.fromkeys(("Failed", "TimedOut", "Cancelled"), "Failed")}
"""Terminal phases of a TorchrunJob, mapped to the resulting terminal state."""


def _of_phases(pods: Iterable[ObjectState]) -> Literal["Completed", "Failed"] | None:
    """Return the terminal state of pods without a controller, or None until all of them have ended."""
    phases = {str(mapping(pod.object, "status").get("phase")) for pod in pods}
    if not phases or phases - {"Succeeded", "Failed"}:
        return None
    return "Failed" if "Failed" in phases else "Completed"


NONCE_LABEL = "pluto-e2e-harness/nonce"
"""The label that holds the launch's nonce on its pods. harness/launch/labels.py defines the same value."""
OBSERVE_STAGE = "observe"
"""The stage in which the harness waits for the job. When this stage ends, the harness stops everything that
is still running."""


def condition(item: ObjectState | None, kind: str) -> dict[str, Any]:
    """Return the status condition of type `kind`, or {} if the object does not have it."""
    states = items(item.object, "status", "conditions") if item else []
    return next((state for state in states if state.get("type") == kind), {})


def ever_ready(pod: Pod) -> bool:
    """Return whether the pod was Ready in any of its recorded states."""
    return any(condition(state, "Ready").get("status") == "True" for state in pod.history)


def gated(pod: ObjectState) -> bool:
    """Return whether the pod has a scheduling gate. Kueue adds one to each pod of a StatefulSet."""
    return bool(items(pod.object, "spec", "schedulingGates"))


def names(ranks: Iterable[int]) -> str:
    """Format ranks as text, such as "rank 1" or "ranks 0 and 2"."""
    texts = [str(rank) for rank in sorted(set(ranks))]
    if len(texts) == 1:
        return f"rank {texts[0]}"
    if len(texts) > 12:
        texts = [*texts[:10], f"{len(texts) - 10} more"]
    return "ranks " + ", ".join(texts[:-1]) + f" and {texts[-1]}" if texts else "no rank"


SIGNALS = {"KeyboardInterrupt", "SIGINT", "SIGTERM", "SIGHUP"}
"""Values of a stage's `error` field that show that a signal ended the stage."""


@dataclass
class Case:
    """A bundle whose manifest records a launch and its expected ranks."""

    bundle: Bundle
    manifest: Manifest
    expected: Expected
    launch: Launch
    running: bool = False
    """Whether the harness is still watching the launch, so the evidence shows the launch's current state."""

    @cached_property
    def pods(self) -> dict[int, Pod]:
        """Map each node index to its last pod.

        The pod's history ends at the time when the harness stopped waiting for the job. Pods with a
        scheduling gate are omitted, because Kueue has not admitted them.
        """
        pods = {index: pod for index, pod in self._not_scaled_away.items() if not gated(pod.last)}
        if self.launch.held:
            until = self.interrupted_at
            return {
                index: recorded_exits.as_it_ended(self.bundle, self.launch, pod, until)
                for index, pod in pods.items()
            }
        return {
            index: replace(pod, history=tuple(self._awaited(list(pod.history))))
            for index, pod in pods.items()
        }

    @cached_property
    def _not_scaled_away(self) -> dict[int, Pod]:
        """Map each node index to its last pod. Nodes removed by an elastic job are omitted."""
        pods = self.bundle.pods()
        if self.launch.max_nodes is None:
            return pods
        return {index: pod for index, pod in pods.items() if index < self.expected.num_nodes}

    @cached_property
    def pod_attempts(self) -> dict[int, list[Pod]]:
        """Map each node index to all its pods, oldest first, including pods that were replaced."""
        return self.bundle.pod_attempts()

    @cached_property
    def events(self) -> dict[str, list[ObjectState]]:
        """Map the uid of each object to the Events about it, in the order in which they were observed."""
        events: dict[str, list[ObjectState]] = {}
        for event in self.bundle.history("event"):
            uid = str(mapping(event.object, "involvedObject").get("uid"))
            events.setdefault(uid, []).append(event)
        return events

    @cached_property
    def stopped_at(self) -> float | None:
        """Return the time at which the harness stopped waiting for the job, or None if the job ended."""
        return self.waited_until if self.terminal is None else None

    @property
    def wait(self) -> Stage | None:
        """Return the stage in which the harness waited for the job to end, or None if it never waited."""
        return next((stage for stage in reversed(self.manifest.stages) if stage.name == OBSERVE_STAGE), None)

    @property
    def waited_until(self) -> float | None:
        """Return the time at which the harness stopped waiting for the job, in seconds since the epoch.

        If a signal ended the launch before the harness began to wait, this is the time of the signal.
        """
        cut = (one for one in self.manifest.stages if one.error in SIGNALS)
        stage = self.wait or next(cut, None)
        start = seconds(stage.started_at) if stage else None
        return start + stage.seconds if stage and start is not None else None

    @property
    def interrupted_at(self) -> float | None:
        """Return the time at which the harness stopped waiting because of its deadline or a signal, or None.

        After that time, the harness itself stops the job.
        """
        return self.waited_until if self.by_signal or self.timed_out else None

    def _awaited(self, states: list[ObjectState]) -> list[ObjectState]:
        limit = self.stopped_at
        if limit is None:
            return states
        return [state for state in states if (seconds(state.received_at) or 0.0) <= limit] or states[:1]

    @cached_property
    def processes(self) -> dict[int, worlds.PodProcesses]:
        """Map each node index to the recorded processes of the node's last pod.

        The map is empty if no processes were recorded.
        """
        if not self.launch.processes:
            return {}
        return worlds.of_nodes(self.bundle.processes(), self.pods)

    @cached_property
    def lives(self) -> dict[int, list[worlds.RankLife]]:
        """Map each node index to the last lifetime of each rank in the node's last pod."""
        return self.bundle.lives(self.pods)

    @cached_property
    def world(self) -> worlds.World | None:
        """Return the world that spans all nodes, or None if the recorded processes do not prove one."""
        return worlds.whole(self.lives, self.expected.num_nodes)

    @property
    def per_node(self) -> int:
        return max(1, self.expected.ranks // max(1, self.expected.num_nodes))

    @property
    def ranks(self) -> range:
        """Return the numbers of the ranks that the job should have."""
        return range(self.expected.ranks)

    @property
    def ranks_ever(self) -> range:
        """Return all ranks that were expected at any time, including those that scaling removed."""
        return range(max(self.expected.ranks, self.expected.most_ranks or 0))

    def ranks_of(self, *indexes: int) -> list[int]:
        """Return the given nodes' ranks, according to the recorded processes or else to the node indexes."""
        if self._recorded_nodes:
            return [rank for index in indexes for rank in self._recorded_ranks.get(index, ())]
        return [index * self.per_node + local for index in indexes for local in range(self.per_node)]

    def node_of(self, rank: int) -> int:
        """Return the index of the node on which a rank ran."""
        return self._recorded_nodes.get(rank, rank // self.per_node)

    @property
    def met(self) -> bool:
        """Return whether recorded processes prove that the ranks formed one world of the expected size."""
        return worlds.fits(self.world, self.expected)

    @cached_property
    def _recorded_nodes(self) -> dict[int, int]:
        """Map each rank to its node's index, in rank order.

        The map is empty if the recorded processes do not prove that the ranks form one world.
        """
        return dict(sorted(self.world.nodes.items())) if self.world is not None and self.met else {}

    @cached_property
    def _recorded_ranks(self) -> dict[int, list[int]]:
        """Map each node's index to its ranks.

        The map is empty if the recorded processes do not prove that the ranks form one world.
        """
        by_node: dict[int, list[int]] = {}
        for rank, node in self._recorded_nodes.items():
            by_node.setdefault(node, []).append(rank)
        return by_node

    @cached_property
    def logging(self) -> Collection[int]:
        """Return the ranks that should log, in ascending order."""
        expected = self.expected.ranks_that_log
        return (
            self.ranks
            if expected is None
            else {rank: None for rank in sorted(expected) if rank in self.ranks}.keys()
        )

    def place(self, index: int) -> str:
        """Describe a node's ranks, pod and Kubernetes node, such as "rank 1 (pod x on node y)"."""
        return self._placed(self.ranks_of(index), index)

    def place_of(self, rank: int) -> str:
        """Describe a rank, its pod and Kubernetes node, such as "rank 1 (pod x on node y)"."""
        return self._placed([rank], self.node_of(rank))

    def _placed(self, ranks: Iterable[int], index: int) -> str:
        pod = self.pods.get(index)
        place = f"on node {pod.node}" if pod is not None and pod.node else "without a node"
        return names(ranks) if pod is None else f"{names(ranks)} (pod {pod.name} {place})"

    def broken(self, *paths: str) -> bool:
        """Return whether any of the given files is missing or damaged.

        The absence of a record from such a file proves nothing.
        """
        damaged = self.bundle.damaged
        return any(not self.bundle.has(p) or any(d.startswith(p) for d in damaged) for p in paths)

    @cached_property
    def jobsets(self) -> list[ObjectState]:
        """Return all states of the launched object, oldest first.

        These include states after the harness stopped waiting.
        """
        return self.bundle.objects(kinds.FILES.get(self.launch.kind, "jobset")).get(self.launch.uid or "", [])

    @cached_property
    def jobset(self) -> ObjectState | None:
        """Return the last state of the launched object before the harness stopped waiting, or None."""
        states = self._awaited(self.jobsets)
        return states[-1] if states else None

    @cached_property
    def terminal(self) -> str | None:
        """Return the job's terminal state, "Completed" or "Failed", or None if the job has not ended.

        The state comes from the launched object's status. If the harness keeps a workload's containers
        running after the command, this status never becomes terminal, so the commands' exit codes are used
        instead.
        """
        if self.launch.held:
            pods = self._not_scaled_away.values()
            return recorded_exits.terminal(self.bundle, pods, self.expected.num_nodes, self.interrupted_at)
        if self.launch.kind == "Pod":
            return _of_phases(pod.last for pod in self._not_scaled_away.values())
        for state in reversed(self.jobsets):
            phase = str(mapping(state.object, "status").get("phase"))
            if self.launch.kind == "TorchrunJob" and phase in _PHASES:
                return _PHASES[phase]
            for kind, word in _ENDS:
                if mapping(state.object, "status").get("terminalState") == kind:
                    return word
                if condition(state, kind).get("status") == "True":
                    return word
        return None

    @property
    def recorded(self) -> bool:
        """Return whether the ranks have a recorder. In jobs that the harness launched, they always do."""
        return not self.launch.attached or self.launch.recorder

    @cached_property
    def launches(self) -> set[str]:
        """Return the nonces that may identify this launch in the tracker.

        If a harness on another machine launched an attached job, the nonce is a label on the job's pods.
        """
        pods = [pod for pods in self.pod_attempts.values() for pod in pods] if self.launch.attached else []
        labels = (mapping(pod.last.object, "metadata", "labels").get(NONCE_LABEL) for pod in pods)
        return {self.manifest.nonce, *(str(label) for label in labels if label)}

    @property
    def since(self) -> float | None:
        """Return the time at which the harness began to record changes, in seconds since the epoch, or None.

        This is the time of the launch or, if the harness did not launch the job, the time at which it
        attached.
        """
        return seconds(self.manifest.attached_at if self.launch.attached else self.manifest.launched_at)

    @cached_property
    def workload(self) -> list[ObjectState]:
        """Return the states of the job's Workload, oldest first."""
        prefix = f"{self.launch.kind.lower()}-{self.launch.object_name}-"
        for states in self.bundle.objects("workload").values():
            owners = items(states[-1].object, "metadata", "ownerReferences")
            if any(owner.get("uid") == self.launch.uid for owner in owners) or states[-1].name.startswith(
                prefix
            ):
                return self._awaited(states)
        return []

    @cached_property
    def queue(self) -> str | None:
        """Return the name of the LocalQueue to which the job was submitted, or None."""
        labels = mapping(self.jobset.object, "metadata", "labels") if self.jobset else {}
        return self.expected.queue or labels.get("kueue.x-k8s.io/queue-name")

    @property
    def timed_out(self) -> bool:
        """Return whether the harness stopped waiting because of a deadline rather than a signal."""
        stages = any(stage.cause == "run.timed_out" for stage in self.manifest.stages)
        return stages or (bool(self.manifest.interrupted) and not self.by_signal)

    @property
    def deadline(self) -> str:
        """Return the message that the harness recorded when a deadline passed."""
        errors = [stage.error for stage in self.manifest.stages if stage.cause == "run.timed_out"]
        return self.manifest.interrupted or next((error for error in errors if error), "the deadline passed")

    @property
    def by_signal(self) -> bool:
        return (self.manifest.interrupted or "").upper().startswith(("SIG", "KEYBOARDINTERRUPT", "CTRL"))

    @property
    def cut_short(self) -> bool:
        """Return whether the harness stopped before the job ended, for a reason other than a deadline.

        This is also true for an attached job that has not ended yet.
        """
        if self.launch.attached and self.terminal is None:
            return True
        has_failed = any(not stage.ok and stage.cause != "run.timed_out" for stage in self.manifest.stages)
        is_stopped = self.by_signal or has_failed or self.manifest.ended_at is None
        return (is_stopped or self.given_up) and self.terminal is None

    @property
    def given_up(self) -> bool:
        """Return whether the harness gave up while every rank's container was running.

        The harness gives up before the deadline if a job cannot succeed, for example because a pod cannot be
        scheduled. The containers can still be running if the problem disappeared at that moment.
        """
        name = self.launch.container
        running = [
            pod.container(name, "running") is not None and pod.container(name, "terminated") is None
            for pod in self.pods.values()
        ]
        all_running = len(running) == self.expected.num_nodes and all(running)
        return all_running and not self.timed_out and self.terminal is None

    def record_ended(self, rank: int) -> bool:
        """Return whether the rank's ground truth contains an end record, which follows the last point."""
        of_child = False
        for _, line in self.bundle.truth_parts(rank):
            of_child = line.parent is not None if isinstance(line, TruthStart) else of_child
            if isinstance(line, TruthEnd) and not of_child:
                return True
        return False

    def last_logged(self, rank: int) -> float:
        """Return the time of the rank's last point, in seconds since the epoch, or 0.0.

        The time is from the rank's own clock.
        """
        return max(self._logged_at(rank), default=0.0)

    def first_logged(self, rank: int) -> float:
        """Return the time of the rank's first point, in seconds since the epoch, or 0.0.

        The time is from the rank's own clock.
        """
        return min(self._logged_at(rank), default=0.0)

    def _logged_at(self, rank: int) -> list[float]:
        """Return the times of the rank's points, in seconds since the epoch."""
        parts = [line for _, line in self.bundle.truth_parts(rank) if isinstance(line, TruthRow | Columns)]
        times = (part.times if isinstance(part, Columns) else [part.time_ms] for part in parts)
        return [time / 1000 for part in times for time in part]

    def container_started(self, index: int) -> float | None:
        """Return the start time of the node's rank container, in seconds since the epoch, or None."""
        pod = self.pods.get(index)
        if pod is None:
            return None
        states = [pod.container(self.launch.container, state) for state in ("running", "terminated")]
        times = [seconds(state[1].get("startedAt")) for state in states if state is not None]
        return min((time for time in times if time is not None), default=None)

    def log_gaps(self, pod: str) -> list[str]:
        """Return the gaps in the log of a pod's rank container. Gaps in sidecar logs are ignored."""
        log = f"{pod}-{self.launch.container}"
        return [gap for gap in self.manifest.log_gaps if gap.startswith((f"{log}:", f"{log} ("))]

    def started(self, index: int) -> bool:
        """Return whether the node's rank container ever ran."""
        pod = self.pods.get(index)
        if pod is None:
            return False
        terminated = pod.container(self.launch.container, "terminated")
        start_failures = {"StartError", "ContainerCannotRun", "RunContainerError", "ContainerStatusUnknown"}
        if terminated is not None and terminated[1].get("reason") not in start_failures:
            return True
        return pod.container(self.launch.container, "running") is not None
