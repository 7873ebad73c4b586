"""Observe one launch. Record its objects, its logs, the ground truth that its ranks log, and gaps in the API
server's responses."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Final

from pydantic import ValidationError

from harness.core.deadlines import Budget, Deadline
from harness.core.errors import HarnessError, WaitError
from harness.core.kubernetes import Kube, reached
from harness.core.progress import Progress
from harness.evidence.io.ground_truth import TruthCollector
from harness.evidence.io.writer import BundleWriter
from harness.evidence.kubernetes import refusals
from harness.evidence.kubernetes.kinds import ALWAYS, FILES, SURROUNDINGS, WatchedKind
from harness.evidence.schema.acceptance import AcceptanceRecord
from harness.evidence.schema.bundle import Launch, Observation
from harness.evidence.schema.netcheck import NetcheckDiagnosis, NetcheckRecord
from harness.evidence.schema.processes import decode
from harness.observe import container_inspection, device_holders
from harness.observe.api_server_outages import Heartbeat
from harness.observe.completion import CompletionDetector
from harness.observe.control_plane import ControlPlane
from harness.observe.dry_run import dry_runs
from harness.observe.exit_code_line import exit_of
from harness.observe.logs import Life, LogFollower
from harness.observe.per_node_completion import IndependentPods
from harness.observe.rendezvous import RendezvousMonitor
from harness.observe.watcher import Watcher
from harness.workers.acceptance import emit
from harness.workers.ground_truth.truth_frames import EXIT_MARK, MARK, PROCESS_MARK
from harness.workers.netcheck import frames

LOG_SECONDS = 50.0
"""The time limit for reading logs to the end, in seconds. It exceeds a pod's termination grace period (30
s)."""
GONE_SECONDS = 600.0
"""The number of seconds without a response after which the API server counts as lost.

The upgrade of a managed control plane takes about 5 minutes (Azure/AKS issue 2150), and the job continues in
the meantime.
"""
SILENT_SECONDS = 10.0
"""The number of seconds without a response after which a progress line says that the harness is waiting."""
TELL_SECONDS = 15.0
"""The time that the other pods have to end after one pod has reported the final netcheck or collective test
result, in seconds."""
MANY_SECONDS, PAUSE_SECONDS = 2.0, 0.2
"""Intervals in seconds for a job with many pods. Progress lines are at least MANY_SECONDS apart, and checks
of whether the launch is over are at least PAUSE_SECONDS apart."""
UNREACHABLE: Final = "cluster.unreachable"
DELETED: Final = "cluster.deleted"


class LaunchObserver:
    """Observes one launch.

    Call `start`, `listed`, `wait_for_completion` and `finish` in this order, and `stop` even after an error.
    """

    def __init__(
        self,
        kube: Kube,
        launch: Launch,
        kinds: Sequence[WatchedKind],
        writer: BundleWriter,
        budget: Budget,
        control_plane: ControlPlane | None = None,
    ) -> None:
        """Create an observer.

        `kinds` are the kinds to watch in addition to pods, nodes and events. They include the launched
        object's kind.
        """
        self._control_plane = control_plane or ControlPlane()
        expected = writer.current.expected
        detector = IndependentPods if launch.acceptance == "nodes" else CompletionDetector
        self.completion = detector(
            launched=FILES[launch.kind],
            kind=launch.kind,
            keep_alive=launch.held,
            scalable=launch.max_nodes is not None,
            members=expected.num_nodes if expected else 0,
            admission_seconds=budget.admission,
            container=launch.container,
        )
        self._kube = kube
        self._launch = launch
        self._rendezvous = RendezvousMonitor(
            kube, expected.num_nodes if expected else 1, budget.rendezvous, writer.inspection
        )
        self._wait = budget.wait
        self._writer = writer
        self._truth = TruthCollector(writer.current.nonce)
        self._inspected = self._inspected_late = False
        self._doubted = ""
        """The overdue controller action for which the last dry runs were sent."""
        self._late_seconds = budget.rank
        self._collectors: dict[tuple[str, str], frames.Collector] = {}
        self._end_deadline: Deadline | None = None
        """The deadline for the other pods to end, set when one pod has reported the overall result."""
        self._events: set[str] = set()
        """The process events that have already been recorded, as JSON."""
        self._gaps: list[str] = []
        self._watched_again: list[str] = []
        self._heartbeat = Heartbeat(kube, self._silence)
        self._logs = LogFollower(kube, self._log, self._gaps.append)
        self._watcher = Watcher(
            kube,
            launch.namespace,
            (*ALWAYS, *kinds, *SURROUNDINGS),
            self._state,
            self._dispatch,
            self._watched_again.append,
        )

    def start(self) -> None:
        """Start the watches. The namespace must exist."""
        self._heartbeat.start()
        self._watcher.start()

    def listed(self) -> None:
        """Wait until the objects of every kind have been listed. From then on, all changes are recorded."""
        self._watcher.listed()
        self._writer.update(watched=self._watcher.kinds())

    def wait_for_completion(self, progress: Progress) -> None:
        """Wait until the launch is over.

        Raises HarnessError with the cause run.timed_out, cluster.unreachable, cluster.deleted or
        run.evidence_disk_full.
        """
        deadline, late_deadline = Deadline.after(self._wait), Deadline.after(self._late_seconds)
        summary, summary_deadline, is_waiting = "", Deadline.after(0), False
        while (reason := self._over()) is None:
            self._take_size(progress)
            if self._writer.full is not None:
                raise self._writer.full
            silence = self._heartbeat.silent
            if self._control_plane.due(silence):
                self.refuse_deleted()
                if (description := self._control_plane.lost(silence)) is not None:
                    raise self._unreachable(description)
            if silence > GONE_SECONDS or (deadline.passed and silence):
                raise self._unreachable()
            if is_waiting is not (silence > SILENT_SECONDS):
                is_waiting = not is_waiting
                limit = min(GONE_SECONDS - silence, deadline.remaining)
                waiting = f"the API server does not respond; waiting up to {limit:.0f} s"
                progress(waiting if is_waiting else "the API server responds again")
            if deadline.passed:
                last_summary = self.completion.summary()
                self._inspect_late()
                self._ask_why(at_end=True)
                self._writer.update(interrupted=f"deadline of {self._wait:.0f} s; last seen: {last_summary}")
                raise WaitError("the launch to end", last_summary, self._wait, cause="run.timed_out")
            if (
                late_deadline.passed and not self._inspected_late
            ):  # Inspect the pods before Kueue ends the job.
                self._inspected_late = True
                self._inspect(at_end=False)
            if self.completion.lingers():
                self._inspect_late()
            self._ask_why(at_end=False)
            if (
                summary_deadline.passed or not self.completion.many()
            ) and self.completion.summary() != summary:
                summary, summary_deadline = self.completion.summary(), Deadline.after(MANY_SECONDS)
                progress(summary)
            self.completion.wait(min(1.0, deadline.remaining))
            if self.completion.many():  # Each pod change triggers a check, and a check visits all pods.
                time.sleep(PAUSE_SECONDS)
        self._take_size(progress)
        if not self._rendezvous.reason():  # The rendezvous monitor has already inspected the containers.
            self._inspect_late()
        self._ask_why(at_end=True)
        progress(f"over: {reason}")

    def _take_size(self, progress: Progress) -> None:
        """Record the new expected number of nodes if the launched object was scaled."""
        expected, members = self._writer.current.expected, self.completion.members
        if not self.completion.scalable or expected is None or members == expected.num_nodes:
            return
        each = expected.ranks // expected.num_nodes
        most_ranks = max(expected.most_ranks or expected.ranks, members * each)
        changed = {"num_nodes": members, "ranks": members * each, "most_ranks": most_ranks}
        self._writer.update(expected=expected.model_copy(update=changed))
        replicas = f"from {expected.num_nodes} to {members} replicas"
        progress(f"the job was scaled {replicas}: {members * each} ranks are now expected")

    def _ask_why(self, at_end: bool) -> None:
        """Send and record dry runs for an action that a controller should have taken.

        They are sent once while the launch is waiting for the action, and once at the end, because a webhook
        may be unavailable for only a short time.
        """
        step = None if self._heartbeat.silent else self.completion.awaited(at_once=at_end)
        if step is None or (step[0].text == self._doubted and not at_end):
            return
        self._doubted = step[0].text
        for record in dry_runs(self._kube, *step):
            self._writer.dry_run(record)
            if record.user and refusals.by_rule(record.message or ""):
                self.completion.hopeless.add(self._doubted)

    def _inspect_late(self) -> None:
        """Inspect the containers that have not ended, because a process may be hanging. Do this only once."""
        if not self._inspected:
            self._inspected = True
            self._inspect(at_end=True)

    def _inspect(self, at_end: bool) -> None:
        unreachable = self.completion.out_of_reach()
        pods = [
            pod
            for pod in self.completion.running()
            if pod["status"].get("phase") == "Running"
            and pod["metadata"]["name"] not in unreachable
            and pod["metadata"]["uid"] not in self.completion.exits
        ]
        for snapshot in container_inspection.inspect_pods(self._kube, pods, network=False):
            self._writer.inspection(snapshot.model_copy(update={"at_end": at_end}))

    def _over(self) -> str | None:
        """Return one sentence that explains why the launch is over, or None if it is not over."""
        if self._end_deadline is not None and self._end_deadline.passed:
            return (
                "one pod reported the overall result, but other pods were still running "
                f"{TELL_SECONDS:.0f} s later"
            )
        return self.completion.reason() or self._rendezvous.reason()

    @contextmanager
    def blamed(self) -> Iterator[None]:
        """Return a context manager. If its block fails while the API server does not respond, HarnessError
        (cause cluster.unreachable) is raised."""
        try:
            with reached():
                yield
        except HarnessError as error:
            if self._writer.full is None:
                self.refuse_deleted(error)
            if error.cause != UNREACHABLE and self._heartbeat.silent and self._writer.full is None:
                raise self._unreachable() from error
            raise

    def refuse_deleted(self, error: HarnessError | None = None) -> None:
        """Raise HarnessError with the cause cluster.deleted if somebody deleted the cluster.

        `error` is the error that prompted the check, if any.
        """
        if (error is None or error.cause != DELETED) and (
            description := self._control_plane.deleted()
        ) is not None:
            text = f"the cluster was deleted while the launch used it, and not by this harness: {description}"
            last = f"the last state was: {self.completion.summary()}"
            raise HarnessError(f"{text}; {last}", cause=DELETED) from error

    def answered(self) -> bool:
        """Send a request to the API server, and return whether it responds."""
        return self._heartbeat.ask()

    def record_device_holders(self) -> None:
        """Record the pods outside the launch that use devices for which the launch's pods are waiting."""
        pods = self.completion.all("pod")
        device_holders.record(self._kube, pods, self._launch.namespace, self._writer)

    def finish(self) -> None:
        """Read the logs to the end if possible, and write the ground truth that the ranks logged."""
        unreachable = self.completion.out_of_reach()
        self._logs.finish(0 if self._heartbeat.silent else LOG_SECONDS, unreachable)
        self.stop()
        for suffix, by_rank in (("", self._truth.result()), (".outside", self._truth.outside())):
            for rank, lines in by_rank.items():
                self._writer.truths(rank, lines, suffix)
        self._writer.update(log_gaps=sorted(set(self._gaps)))
        for text in sorted(set(self._watched_again)):
            self._writer.retry("a watch", text)

    def stop(self) -> None:
        """Stop observing, and write the ends of the logs. A second call does nothing."""
        self._watcher.stop()
        self._heartbeat.stop()
        self._writer.close_logs()

    def _unreachable(self, description: str = "no response") -> WaitError:
        kind = self._launch.kind.lower()
        return WaitError(
            "the API server to answer",
            f"{description}; the last state was: {self.completion.summary()}",
            self._heartbeat.silent,
            hint=f"the job may still be running: check with `kubectl get {kind} -A` when the API server "
            "responds again",
            cause=UNREACHABLE,
        )

    # -- These methods are called by other threads. The writer stores its first error, which ends the wait.
    def _state(self, kind: str, observation: Observation) -> None:
        with suppress(HarnessError):
            self._writer.observe(kind, observation)

    def _dispatch(self, kind: str, observation: Observation) -> None:
        self.completion.observe(kind, observation)
        self._rendezvous.observe(kind, observation)
        self._logs.observe(kind, observation)

    def _log(self, life: Life, text: str) -> None:
        with suppress(HarnessError):
            self._writer.log(life.pod, life.container, text)
        if "@" in text:  # Every mark contains "@", which is rare in other lines.
            self._marked(life, text)

    def _marked(self, life: Life, text: str) -> None:
        """Process the lines that ranks wrote for the harness."""
        if MARK in text or EXIT_MARK in text:
            for line in text.splitlines():
                self._truth.feed(line, life.pod)
                self._exited(life, line)
        if PROCESS_MARK in text:
            for line in text.splitlines():
                self._process(life, line)
        for mark, record in ((frames.MARK, self._checked), (emit.MARK, self._accepted)):
            for line in text.splitlines() if mark in text else ():
                self._framed(life.pod, line, mark, record)

    def _process(self, life: Life, line: str) -> None:
        """Record the process events in a line, except those that have already been recorded."""
        for event in decode(self._writer.current.nonce, line, life.pod, life.uid):
            text = event.model_dump_json()
            with suppress(HarnessError):
                if text not in self._events:
                    self._events.add(text)
                    self.completion.recorded(event)
                    self._writer.process(event)

    def _framed(self, pod: str, line: str, mark: str, record: Callable[[str, str, Any], None]) -> None:
        """Collect one frame of a document, and record the document once it is complete and valid."""
        new = frames.Collector(self._writer.current.nonce, mark)
        document = self._collectors.setdefault((pod, mark), new).feed(line)
        if document is not None:
            with suppress(HarnessError, ValidationError):
                record(line.partition(" ")[0], pod, document)

    def _checked(self, at: str, pod: str, document: Any) -> None:
        """Record a diagnosis printed by netcheck."""
        diagnosis = NetcheckDiagnosis.model_validate(document)
        self._writer.netcheck(NetcheckRecord(at=at, pod=pod, diagnosis=diagnosis))
        if diagnosis.whole and self._launch.netcheck == "alone" and self._end_deadline is None:
            self._end_deadline = Deadline.after(TELL_SECONDS)

    def _accepted(self, at: str, pod: str, document: Any) -> None:
        """Record an acceptance test result or a pod's final report."""
        record = AcceptanceRecord.model_validate({**document, "at": at, "pod": pod})
        self._writer.acceptance(record)
        if record.report and record.report.kind == "ddp" and self._launch.acceptance == "ddp":
            self._end_deadline = self._end_deadline or Deadline.after(TELL_SECONDS)

    def _exited(self, life: Life, line: str) -> None:
        """Record the exit code of a command if its container is kept alive."""
        rank = self._launch.held and life.container == self._launch.container
        exit_ = exit_of(life, line, self._writer.current.nonce) if rank else None
        if exit_ is not None:
            with suppress(HarnessError):
                self._writer.exited(exit_)
            self._logs.command_ended(life)
            self.completion.exited(life.pod, exit_.exit_code, life.uid)

    def _silence(self, text: str) -> None:
        """Record a gap in the API server's responses, and restart the watches.

        The watches may have stopped without an error.
        """
        self._writer.retry("the API server", text)
        self._watcher.resume()
