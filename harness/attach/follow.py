"""Follow an attached job through watches and live logs until it has ended."""

from __future__ import annotations

import threading
from contextlib import suppress

from harness.attach import logs
from harness.attach.api_reader import NotNow, Reader
from harness.attach.rank_pods import AttachedJob
from harness.attach.recorded_objects import Recording
from harness.attach.recorder_lines import RecordedLines, nonces
from harness.attach.resources import AROUND, POD
from harness.context import RecordedContext
from harness.core.clock import now
from harness.core.deadlines import Deadline
from harness.core.errors import HarnessError
from harness.core.kubernetes import Object, condition
from harness.evidence.kubernetes.objects import mapping
from harness.evidence.schema.bundle import Observation
from harness.observe.logs import Life, LogFollower
from harness.observe.watcher import Watcher

LOG_SECONDS = 50.0
"""Time limit, in seconds, for reading the logs to their end after the job has ended."""
PODS_SECONDS = 45.0
"""Time limit, in seconds, for the pods to terminate after the job's object reports that the job has ended."""
ASK_SECONDS, GONE_SECONDS = 10.0, 600.0
"""ASK_SECONDS is the interval, in seconds, at which the job's object is read. GONE_SECONDS is the time, in
seconds, after which an API server that is busy or does not respond is considered lost."""
ENDS = ("Complete", "Completed", "Failed", "Succeeded")


class _Follower:
    """Keeps the current state of the job, as reported by watch events."""

    def __init__(
        self,
        job: AttachedJob,
        reader: Reader,
        recording: Recording,
        lines: RecordedLines,
        context: RecordedContext,
    ) -> None:
        self.job, self.recording, self.lines, self.context = job, recording, lines, context
        self.item: Object | None = job.item
        self.deleted = self._missing = False
        self.gaps: list[str] = []
        self.changed = threading.Event()
        self.logs = LogFollower(reader.kube, self._log, self.gaps.append)

    def observed(self, kind: str, observation: Observation) -> None:
        """Process a recorded watch event."""
        item = observation.object
        if kind == self.job.resource.kind.name and kind != "pod" and self._is_own(item):
            self.item = item
            self.deleted |= observation.type == "DELETED"
        if kind == "pod" and self.job.owns_pod(item):
            self.lines.know(nonces([item], self.job.uid))
            self.logs.observe(kind, observation)
            if observation.type == "DELETED":
                self.recording.pods.pop(str(mapping(item, "metadata").get("name")), None)
        self.changed.set()

    def exists(self, is_present: bool) -> None:
        """Report the deletion of the job's object if two consecutive reads did not find it.

        `is_present` is True if the last read found the object. The watch does not report objects that were
        deleted while the API server did not respond.
        """
        if is_present or not self._missing:
            self._missing = not is_present
            return
        if not self.deleted and self.item is not None:
            name = self.job.resource.kind.name
            observation = Observation(received_at=now(), type="DELETED", object=self.item)
            self.recording.observe(name, observation)
            self.observed(name, observation)

    def _is_own(self, item: Object) -> bool:
        return bool(mapping(item, "metadata").get("uid") == self.job.uid)

    def _log(self, life: Life, text: str) -> None:
        with suppress(HarnessError):
            self.context.writer.log(life.pod, life.container, text)
        if life.container == self.job.launch.container:
            self.lines.feed(life.pod, life.uid, text)

    def finish(self, seconds: float) -> None:
        """Read the logs to their end, for at most this number of seconds, and close the log files."""
        self.logs.finish(seconds)
        self.context.writer.close_logs()

    def ended(self) -> str | None:
        """Return how the job ended, or None if it has not ended."""
        kind = self.job.resource.kind.kind
        if self.deleted:
            return f"{kind} {self.job.name} was deleted"
        if kind == "Pod":
            phases = {mapping(pod, "status").get("phase") for pod in self.recording.pods.values()}
            return "every pod has ended" if phases <= {"Succeeded", "Failed"} else None
        item = self.item or {}
        state = mapping(item, "status").get("terminalState") or next(
            (word for word in ENDS if condition(item, word).get("status") == "True"), None
        )
        if kind == "TorchrunJob" and mapping(item, "status").get("completionTime"):
            state = mapping(item, "status").get("phase")
        return f"{kind} {self.job.name} is {state}" if state else None

    def running(self) -> bool:
        """Return whether any pod of the job has not terminated yet."""
        phases = {mapping(pod, "status").get("phase") for pod in self.recording.pods.values()}
        return bool(phases & {"Pending", "Running"})

    def summary(self) -> str:
        """Return the number of pods in each phase."""
        phases: dict[str, int] = {}
        for pod in list(self.recording.pods.values()):
            phase = str(mapping(pod, "status").get("phase"))
            phases[phase] = phases.get(phase, 0) + 1
        return "pods: " + (", ".join(f"{count} {phase}" for phase, count in sorted(phases.items())) or "none")


def until_the_end(
    job: AttachedJob, reader: Reader, recording: Recording, lines: RecordedLines, context: RecordedContext
) -> list[str]:
    """Record the job until it ends or is deleted. Return a description of each gap in the logs."""
    follower = _Follower(job, reader, recording, lines, context)
    writer, name = context.writer, job.launch.container
    pods = [pod for pod in reader.all(POD, needed=True) if job.owns_pod(pod)]
    lines.know(nonces(pods, job.uid))
    gaps = logs.read(reader, pods, name, writer, lines.feed, previous_alone=True)
    resources = {each.kind.name: each for each in (job.resource, POD, *AROUND)}
    watcher = Watcher(
        reader.kube,
        reader.namespace,
        [each.kind for each in resources.values()],
        recording.observe,
        follower.observed,
        follower.gaps.append,
    )
    watcher.start()
    log_seconds = 0.0
    try:
        watcher.listed()
        recording.flush()
        writer.update(attached_at=now(), watched=watcher.kinds())
        _note_unread(resources.keys() - set(watcher.kinds()), follower.gaps, reader)
        _wait(follower, reader, context)
        log_seconds = LOG_SECONDS
    finally:  # After an error, the logs are not read to their end, because the pods may run for days.
        follower.finish(log_seconds)
        watcher.stop()
        recording.flush()
    for text in sorted({gap for gap in follower.gaps if gap.startswith("objects/")}):
        if not any(text.startswith(f"objects/{kind}: ") for kind in reader.unread):
            writer.retry("a watch", text)
    return gaps + [gap for gap in follower.gaps if not gap.startswith("objects/")]


def _note_unread(kinds: set[str], gaps: list[str], reader: Reader) -> None:
    """Record the kinds that the cluster does not serve, and the reason for each kind that could not be
    listed."""
    for kind in kinds:
        reasons = [gap.partition(": ")[2] for gap in gaps if gap.startswith(f"objects/{kind}: ")]
        reason = reasons[-1].removeprefix("not watched, ") if reasons else "not listed in time"
        if "not served" in reason or "HTTP 404" in reason:
            reader.absent.add(kind)
        else:
            reader.unread[kind] = reason


def _exists(job: AttachedJob, reader: Reader) -> bool:
    """Return whether the job's object exists. For bare pods, which have no such object, return True.

    Raises HarnessError if the API server does not respond or rejects the request.
    """
    item = reader.get(job.resource, job.name, retry=False)
    return job.item is None or (mapping(item, "metadata").get("uid") == job.uid if item else False)


def _wait(follower: _Follower, reader: Reader, context: RecordedContext) -> None:
    """Wait until the job has ended, and then at most PODS_SECONDS until its pods have terminated.

    Raises HarnessError if the API server is lost, or forbids reading the job's object.
    """
    summary, pods_end = "", Deadline.after(PODS_SECONDS)
    ask, lost_deadline = Deadline.after(ASK_SECONDS), Deadline.after(GONE_SECONDS)
    while True:
        follower.recording.flush()
        if context.writer.full is not None:
            raise context.writer.full
        end_text = follower.ended()
        if end_text is None:
            pods_end = Deadline.after(PODS_SECONDS)
        elif follower.deleted or not follower.running() or pods_end.passed:
            context.progress(f"over: {end_text}")
            return
        if follower.summary() != summary:
            summary = follower.summary()
            context.progress(summary)
        if ask.passed:
            try:
                follower.exists(_exists(follower.job, reader))
                lost_deadline = Deadline.after(GONE_SECONDS)
            except NotNow as error:
                if lost_deadline.passed:
                    raise
                context.progress(f"{error.message}; retrying for up to {lost_deadline.remaining:.0f} s")
            ask = Deadline.after(ASK_SECONDS)
        follower.changed.wait(1.0)
        follower.changed.clear()
